"""Orders: permutations that stay the same, windows of equal size, groups as asked; and shares of mixed sources."""

import numpy as np
import pytest

from loader_server.planning.order import DataPass, Mixture, arranged, group_order, row_order, sample_order
from shared.errors import SettingsError
from tests.loader_server.planning.tables import batches_of, log_normal, plan_of


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


# --- sources mixed by weight: shares in every window, ends and cycles as chosen ---

BOTH = log_normal(64 * 60)
SOURCES = (0, 64 * 40)


def trained(plan, epoch=0, group=1):
    return [batch.samples for batch in batches_of(plan.epoch(epoch, group))]


@pytest.mark.heritage("R11")
@pytest.mark.parametrize(("weights", "windows", "share"), [([1, 1], 4, 0.5), ([3, 1], 5, 0.75)])
def test_each_window_has_the_weights_share_of_each_source(weights, windows, share):
    plan = plan_of(BOTH, sources=SOURCES, weights=weights, window=640)
    epoch = plan.epoch(0, 1)
    shares = {}
    for number in range(epoch.batches):
        shares.setdefault(epoch._place(number)[0], []).append(epoch.batch(number).samples < SOURCES[1])
    means = [np.concatenate(of).mean() for of in shares.values()]
    assert len(means) == windows
    assert all(share - 0.1 <= mean <= share + 0.1 for mean in means)


def test_the_epoch_ends_with_the_first_source_that_does_not_cycle():
    samples = np.concatenate(trained(plan_of(BOTH, sources=SOURCES, weights=[1, 1])))
    assert len(np.unique(samples)) == len(samples) == 64 * 40
    assert (samples >= SOURCES[1]).sum() == 64 * 20


@pytest.mark.heritage("R11")
def test_a_cycling_source_starts_over_until_the_other_is_through():
    plan = plan_of(BOTH, sources=SOURCES, weights=[1, 1], cycle=[False, True])
    samples = np.concatenate(trained(plan))
    times = np.bincount(samples, minlength=len(BOTH))
    assert (times[: SOURCES[1]] == 1).all()
    assert (times[SOURCES[1] :] == 2).all()
    assert plan.epoch(0, 1).batches <= plan.most_batches(1)
    assert len(list(plan.epoch(0, 1).find(len(BOTH) - 1))) == 2


def test_a_source_of_one_sample_cycles_like_any_other():
    samples = np.concatenate(trained(plan_of(BOTH[:65], sources=(0, 64), weights=[1, 1], cycle=[False, True])))
    assert np.bincount(samples).tolist() == [1] * 64 + [64]


def test_no_more_cycles_are_shuffled_than_the_pass_reaches():
    shuffled = []

    def shuffle(segments, cycle):
        shuffled.append((int(segments[0]), cycle))
        return segments

    mixture = Mixture(segments=((0, 2), (2, 3)), weights=(1.0, 1.0), cycle=(False, True))
    mixture.turns(np.array([64, 64, 64]), shuffle)
    assert shuffled == [(0, 0), (2, 0), (2, 1)]


def test_batches_mix_sources_by_sample():
    batches = [samples for samples in trained(plan_of(BOTH, sources=SOURCES, weights=[2, 1])) if len(samples) > 10]
    mixed = [0 < (samples < SOURCES[1]).sum() < len(samples) for samples in batches]
    assert np.mean(mixed) > 0.9


@pytest.mark.parametrize("asked", [{"weights": [1]}, {"weights": [1, 1], "cycle": [True, True]}])
def test_weights_that_fit_no_sources_are_refused(asked):
    with pytest.raises(SettingsError, match="one weight a source"):
        plan_of(BOTH, sources=SOURCES, **asked)
