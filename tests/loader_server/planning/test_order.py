"""Orders: permutations that stay the same, windows of equal size, groups as asked."""

import numpy as np
import pytest

from loader_server.planning.order import DataPass, arranged, group_order, row_order, sample_order


def data_pass(order="shuffled", number=0, seed=7):
    return DataPass(number=number, order=order, seed=seed, stream="stream")


def samples_in(number=0, seed=7):
    everything = np.arange(1000)
    return sample_order(data_pass(number=number, seed=seed), everything, np.zeros(1000, np.int64)).tolist()


def test_windows_are_whole_segments_of_about_equal_size():
    sizes = np.full(100, 64)
    found = arranged(data_pass(), sizes, 1000, None)
    windows = [found.of_window(window).segments for window in range(len(found.starts))]
    assert len(windows) == 6
    assert sorted(np.concatenate(windows)) == list(range(100))
    assert {len(segments) for segments in windows} <= {16, 17}
    assert np.concatenate(windows).tolist() != list(range(100))


def test_an_unshuffled_order_keeps_segments_in_place():
    assert arranged(data_pass("as_is"), np.full(10, 64), 128, None).turns.segments.tolist() == list(range(10))
    assert len(arranged(data_pass("sorted"), np.full(10, 64), 128, None).starts) == 1


def test_shuffles_differ_by_pass_and_seed_only():
    assert samples_in() == samples_in()
    assert sorted(samples_in()) == list(range(1000))
    assert samples_in() != samples_in(number=1)
    assert samples_in(number=1) != samples_in(seed=8)


def test_shuffles_stay_what_they_were_on_all_machines():
    assert samples_in()[:8] == [627, 980, 314, 751, 44, 13, 59, 295]


def test_repeated_samples_are_told_apart():
    twice = np.array([5, 5])
    cycles = np.array([0, 1])
    orders = {tuple(sample_order(data_pass(number=number), twice, cycles).tolist()) for number in range(20)}
    assert orders == {(0, 1), (1, 0)}


def test_packed_rows_are_dealt_as_they_were_filled_unless_the_order_shuffles():
    assert (
        row_order(data_pass("as_is"), 0, 50).tolist()
        == row_order(data_pass("sorted"), 0, 50).tolist()
        == list(range(50))
    )
    shuffled = [row_order(data_pass(), window, 50).tolist() for window in (0, 0, 1)]
    assert shuffled[0] == shuffled[1] != shuffled[2]
    assert sorted(shuffled[0]) == list(range(50)) != shuffled[0]


@pytest.mark.heritage("R12")
def test_laplace_rises_and_falls():
    buckets = np.repeat(np.arange(5), 8)
    turn = group_order(data_pass("laplace"), 0, buckets, np.arange(40), 4)
    runs = np.diff(buckets[turn].reshape(4, 10), axis=1)
    assert (runs[::2] >= 0).all()
    assert (runs[1::2] <= 0).all()
    assert sorted(turn.tolist()) == list(range(40))
