"""Samples of length 0: dropped unless `min_length = 0` asks for them, and then counted as one cell each."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader_server.planning import LEFT_OUT
from loader_server.planning.settings import limits_of
from shared.errors import DataError, SettingsError
from tests.loader_server.planning.tables import RATES, batches_of, log_normal, plan_of, settings_of

VARIANTS = [
    {},
    {"shapes": 3, "order": "sorted"},
    {"shapes": "none"},
    {"shapes": "none", "order": "laplace", "laplace_samples": 7},
    {"pad_to": "batch", "length_multiple": 8},
    {"window": 16},
    {"packing": "20 s"},
    {"window": 16, "packing": "20 s"},
    {"max_length": {"0": "8 s", "1": "20 s"}},
    {"quadratic_length": "20 s"},
    {"rows": 7, "shapes": 2},
]
lengths_of = st.builds(
    lambda kept, seed: np.minimum(log_normal(len(kept), seed=seed), 2000) * kept,
    st.lists(st.booleans(), max_size=120).map(lambda kept: np.array([False, *kept])),
    st.integers(1, 9),
)


@settings(max_examples=200, deadline=None)
@given(lengths_of, st.integers(1, 5), st.sampled_from(VARIANTS))
def test_each_sample_comes_once_also_the_empty_ones_and_every_shape_has_cells(lengths, group, variant):
    plan = plan_of(lengths, segment=8, min_length=0, **variant)
    batches = batches_of(plan.epoch(2, group))
    assert sorted(np.concatenate([batch.samples for batch in batches])) == list(range(len(lengths)))
    assert plan.dropped == {}
    assert len(batches) <= plan.most_batches(group)
    assert len(batches) >= plan.fewest_groups(group) * group
    for batch in batches:
        rows, length = batch.shape.rows, batch.shape.lengths["audio"]
        assert length >= max(1, lengths[batch.samples].max(initial=0))
        if "packing" in variant:
            ends = batch.offsets + np.maximum(lengths[batch.samples], 1)
            assert (ends <= length).all(), "each has a cell of its own"
            places = sorted(zip(batch.rows.tolist(), batch.offsets.tolist(), ends.tolist(), strict=True))
            assert all(one[0] < other[0] or one[2] <= other[1] for one, other in itertools.pairwise(places))
        elif "rows" not in variant:
            assert rows * length <= max(30_000, length), "an empty sample is not for nothing"


def test_nothing_but_empty_samples_is_a_plan_too():
    plan = plan_of(np.zeros(10, np.int64), min_length=0, budget="4 frames")
    batches = batches_of(plan.epoch(0, 1))
    assert [(batch.shape.rows, batch.shape.lengths["audio"]) for batch in batches] == [(4, 1)] * 3
    with pytest.raises(DataError, match=r"all dropped \(10 empty\).*min_length = 0 keeps samples of length 0"):
        plan_of(np.zeros(10, np.int64))


@pytest.mark.parametrize("least", [0, "0 s", "0 frames"])
def test_none_is_dropped_but_what_a_filter_leaves_out(least):
    assert plan_of(np.array([0, LEFT_OUT, 5]), min_length=least).dropped == {"filtered": 1}
    assert plan_of(np.array([0, 4, 5]), min_length="5 frames").dropped == {"empty": 1, "too_short": 1}
    assert plan_of(np.array([0, 4, 5])).dropped == {"empty": 1}


def test_a_key_that_is_not_bucketed_may_always_be_empty():
    lengths = {"audio": log_normal(50), "text": np.zeros(50, np.int64)}
    for variant in ({}, {"limits": {"text": "8 tokens"}}, {"sub_buckets": {"text": 2}}, {"pad_to": "batch"}):
        plan = plan_of(lengths, **variant)
        assert plan.dropped == {}
        assert {batch.shape.lengths["text"] for batch in batches_of(plan.epoch(0, 1))} == {1}


def test_the_digest_is_another_only_with_the_setting():
    lengths = np.array([3, 4, 5])
    plain, kept = plan_of(lengths).digest, plan_of(lengths, min_length=0).digest
    assert plain != kept
    assert plan_of(lengths, min_length="1 frames").digest not in (plain, kept)


@pytest.mark.parametrize("least", [1, False, -1, "none", 0.0])
def test_only_0_needs_no_unit(least):
    with pytest.raises(SettingsError, match="an amount with its unit"):
        settings_of(min_length=least)


def test_lengths_of_other_keys_count_as_they_are():
    limits = limits_of(settings_of(min_length=0), key="audio", per_second=RATES)
    lengths = np.array([0, LEFT_OUT, 7])
    assert limits.counted("audio", lengths).tolist() == [1, LEFT_OUT, 7]
    assert limits.counted("text", lengths).tolist() == [0, LEFT_OUT, 7]
    plain = limits_of(settings_of(), key="audio", per_second=RATES)
    assert plain.counted("audio", lengths).tolist() == [0, LEFT_OUT, 7]
