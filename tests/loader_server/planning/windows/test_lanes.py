"""Carried state: each recording's chunks in one lane, one after another, and lanes that end about together."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader_server.planning import Plan
from loader_server.planning.windows.lanes import balanced
from shared.errors import SettingsError
from tests.loader_server.planning.tables import RATES, Chunks, Memory, batches_of, log_normal, plan_of, settings_of

RECORDINGS = st.lists(st.integers(0, 40), min_size=1, max_size=40).filter(any)


def carried(recordings, *, steps=10, rows=3, segment=64, keeper=None, table=None, **more) -> Plan:
    said = {"budget": f"{rows * steps} steps", "shapes": [steps], "carry": True} | more
    return Plan.make(
        table or Chunks(recordings, steps, segment),
        settings_of(**said),
        key="audio",
        per_second=RATES,
        seed=7,
        keeper=keeper,
    )


def lanes_of(epoch):
    """What each lane holds, step by step: (sample, whether it begins); None where it has run dry."""
    found: dict[tuple[int, int], list] = {}
    for number, batch in enumerate(batches_of(epoch)):
        for row in range(batch.shape.rows):
            held = (int(batch.samples[row]), bool(batch.resets[row])) if row < len(batch.samples) else None
            found.setdefault((number % epoch.group, row), []).append(held)
    return found


def windowed(lane):
    """A lane's chunks in the order of its steps; those of a window that has run dry are left out."""
    return [held for held in lane if held is not None]


@settings(deadline=None)
@given(
    RECORDINGS,
    st.integers(1, 5),
    st.integers(1, 3),
    st.sampled_from(["shuffled", "as_is", "sorted"]),
    st.sampled_from([8, 40, 10_000]),
)
def test_each_recording_is_once_in_one_lane_in_order_and_reset_where_it_begins(recordings, rows, group, order, window):
    table = Chunks(recordings, 10, 8)
    plan = carried(recordings, rows=rows, table=table, order=order, window=window)
    for number in range(2):
        epoch = plan.epoch(number, group)
        assert epoch.batches <= plan.most_batches(group)
        assert epoch.batches >= plan.fewest_groups(group) * group
        seen = []
        for lane in lanes_of(epoch).values():
            held = windowed(lane)
            for (sample, begins), before in zip(held, [None, *held], strict=False):
                assert begins == (table.extents.starts[sample] == 0)
                assert begins or before[0] + 1 == sample, "a chunk follows the one before it"
            dry = [held is None for held in lane]
            assert all(held[1] for held, was_dry in zip(lane[1:], dry, strict=False) if was_dry and held)
            seen += [sample for sample, _ in held]
        taken = np.flatnonzero(table.by_key["audio"] > 0)
        assert sorted(seen) == taken.tolist()


@settings(deadline=None, max_examples=30)
@given(RECORDINGS, st.integers(1, 5), st.integers(1, 3))
def test_a_batch_is_the_same_whoever_asks_and_in_whatever_order(recordings, rows, group):
    plan, again = carried(recordings, rows=rows), carried(recordings, rows=rows)
    forward, backward = plan.epoch(3, group), again.epoch(3, group)
    for number in reversed(range(forward.batches)):
        one, other = forward.batch(number), backward.batch(number)
        np.testing.assert_array_equal(one.samples, other.samples)
        np.testing.assert_array_equal(one.resets, other.resets)
        assert (one.shape.rows, one.shape.lengths) == (rows, {"audio": 10})


def test_a_chunk_that_takes_no_part_starts_its_recording_anew():
    """The state before it is not the state that the next one needs."""
    table = Chunks([50, 20], 10)
    table.by_key["audio"][2] = -1  # filtered
    held = windowed(lanes_of(carried([], table=table, rows=1, order="as_is").epoch(0, 1))[0, 0])
    assert held == [(0, True), (1, False), (3, True), (4, False), (5, True), (6, False)]


def test_dry_lanes_are_the_last_rows():
    epoch = carried([100, 30, 70, 20, 20, 20], rows=2).epoch(0, 2)
    rows = [len(batch.samples) for batch in batches_of(epoch)]
    assert rows == [2, 2] * 4 + [2, 1] + [2, 0] * 2 + [1, 0] * 3


def test_longest_first_to_the_lane_that_holds_least():
    lane = balanced(np.array([3, 9, 1, 4, 2]), np.arange(5), 2)
    assert np.bincount(lane, weights=[3, 9, 1, 4, 2]).tolist() == [10, 9]


def test_neighbours_change_from_epoch_to_epoch():
    plan = carried([30] * 40, rows=4)
    first, second = (plan.epoch(number, 1).batch(0).samples.tolist() for number in range(2))
    assert first != second
    assert plan.epoch(0, 1).batch(0).resets.all()


@settings(deadline=None, max_examples=10)
@given(st.integers(0, 1000), st.integers(1, 8), st.integers(1, 4))
def test_a_window_is_as_long_as_its_lanes_share_or_its_longest_recording(seed, rows, group):
    recordings = log_normal(12 * rows * group, median=300, spread=0.7, seed=seed)
    chunks = -(-recordings // 10)
    steps = carried(recordings, rows=rows).epoch(0, group).batches // group
    assert steps <= max(chunks.max(), 1.03 * chunks.sum() / (rows * group) + 1)


def test_what_took_long_is_kept():
    keeper = Memory()
    first = carried([30] * 40, keeper=keeper).epoch(0, 2).batches
    table = Chunks([30] * 40, 10)
    assert carried([], table=table, keeper=keeper).epoch(0, 2).batches == first
    assert table.reads == 0


def test_plans_that_carry_no_state_have_the_digests_that_they_had():
    assert plan_of(np.arange(1, 100)).digest == "ee8230e76de84ad67e3339456549dd2d"


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"packing": "40 steps", "shapes": "auto"}, "packing"),
        ({"shapes": 4}, "shapes = 4"),
        ({"shapes": "none"}, "shapes = 'none'"),
        ({"pad_to": "batch"}, 'pad_to = "batch"'),
        ({"epoch_parts": 2}, "epoch_parts = 2"),
        ({"order": "laplace"}, 'order = "laplace"'),
        ({"sub_buckets": {"text": 2}}, "sub_buckets"),
    ],
)
def test_what_would_break_a_lane_is_refused(other, said):
    with pytest.raises(SettingsError, match="expected carry alone, got carry with .*" + said.replace("(", r"\(")):
        carried([30], **other)


def test_there_is_one_shape_however_lengths_differ():
    recordings = log_normal(3_000, median=200, spread=0.8)
    plan = carried(recordings, steps=1_000, shapes="auto", budget="4000 steps")
    assert [(shape.rows, shape.lengths) for shape in plan.buckets] == [(4, {"audio": 1_000})]
    assert {batch.bucket for batch in batches_of(plan.epoch(0, 2))} == {0}
