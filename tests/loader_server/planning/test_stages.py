"""A curriculum by length: which samples take part from which epoch on, in shapes that are known from the beginning."""

import itertools
from contextlib import nullcontext, suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.errors import DataError, SettingsError
from tests.loader_server.planning.tables import Memory, batches_of, log_normal, plan_of

SPEECH = log_normal(2_000)
STAGES = {"0": "8 s", "2": "16 s", "5": "400 s"}
VARIANTS = [
    {},
    {"shapes": 5, "window": 300},
    {"shapes": ["10 s", "30 s", "400 s"]},
    {"shapes": "none"},
    {"order": "sorted"},
    {"pad_to": "batch"},
    {"packing": "400 s", "budget": "800 s"},
    {"curriculum_epochs": 3},
    {"largest_first": True},
]


def samples_of(epoch):
    return sorted(sample for batch in batches_of(epoch) for sample in batch.samples.tolist())


@pytest.mark.heritage("D14")
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize("group", [1, 4])
def test_longer_samples_take_part_from_later_epochs_on(variant, group):
    plan = plan_of(SPEECH, max_length=STAGES, **variant)
    for number, longest in enumerate([800, 800, 1_600, 1_600, 1_600, 40_000, 40_000]):
        epoch = plan.epoch(number, group)
        assert samples_of(epoch) == np.flatnonzero(longest >= SPEECH).tolist()
        assert epoch.batches <= plan.most_batches(group)
        assert epoch.batches // group >= plan.fewest_groups(group)


def test_all_shapes_are_those_of_the_plan_without_a_curriculum_and_short_samples_stay_in_short_ones():
    plan, whole = plan_of(SPEECH, max_length=STAGES), plan_of(SPEECH, max_length="400 s")
    assert plan.buckets == whole.buckets
    first = {batch.shape.lengths["audio"] for batch in batches_of(plan.epoch(0, 4))}
    assert max(first) == min(bucket.lengths["audio"] for bucket in whole.buckets if bucket.lengths["audio"] >= 800)
    last = [batch.samples.tolist() for batch in batches_of(plan.epoch(5, 4))]
    assert last == [batch.samples.tolist() for batch in batches_of(whole.epoch(5, 4))]


@pytest.mark.heritage("D14")
@settings(max_examples=120, deadline=None)
@given(st.data())
def test_every_epoch_has_each_of_its_samples_once_in_shapes_that_were_announced(data):
    lengths = log_normal(data.draw(st.integers(1, 90)), seed=data.draw(st.integers(1, 9)))
    lengths[0] = 100  # or there might be nothing to begin with
    epochs = sorted({0, *data.draw(st.lists(st.integers(1, 12), max_size=3))})
    limits = [data.draw(st.integers(100, 6_000)) for _ in epochs]
    text = np.maximum(lengths // 9, 1)
    parts = data.draw(st.sampled_from([1, 1, 2, 3]))
    table = data.draw(
        st.sampled_from([{}, {"window": 16}, {"shapes": 3}, {"shapes": "none"}, {"sub_buckets": {"text": 2}}])
    )
    said = {str(epoch): f"{limit} frames" for epoch, limit in zip(epochs, limits, strict=True)}
    more = {"max_length": said, "epoch_parts": parts, "budget": "60 s", **table}
    with suppress(SettingsError) if parts > 1 else nullcontext():
        plan = None
        plan = plan_of({"audio": lengths, "text": text}, segment=8, **more)
    group = data.draw(st.integers(1, 5))
    if plan is None or plan.objection(group) is not None:
        return
    for number in range(6):
        opened = [plan.epoch(number * parts + part, group) for part in range(parts)]
        limit = [limit for epoch, limit in zip(epochs, limits, strict=True) if epoch <= number * parts][-1]
        assert sorted(itertools.chain(*map(samples_of, opened))) == np.flatnonzero(lengths <= limit).tolist()
        batches = list(itertools.chain(*map(batches_of, opened)))
        assert len(batches) == sum(one.batches for one in opened)
        assert all(one.batches <= plan.most_batches(group) for one in opened)
        for batch in batches:
            assert lengths[batch.samples].max(initial=0) <= batch.shape.lengths["audio"]
            assert text[batch.samples].max(initial=0) <= batch.shape.lengths["text"]
            assert batch.shape in plan.buckets or table.get("shapes") == "none"


def test_a_pass_in_parts_keeps_the_stage_that_it_began_with():
    plan = plan_of(SPEECH, max_length={"0": "8 s", "3": "16 s"}, epoch_parts=2)
    longest = [SPEECH[samples_of(plan.epoch(number, 1))].max() <= 800 for number in range(6)]
    assert longest == [True, True, True, True, False, False]


def test_a_kept_curriculum_is_opened_without_reading_lengths():
    memory = Memory()
    first = plan_of(SPEECH, max_length=STAGES, keeper=memory)
    again = plan_of(SPEECH, max_length=STAGES, keeper=memory)
    assert [again.epoch(number, 2).batches for number in (0, 2, 5)] == [
        first.epoch(number, 2).batches for number in (0, 2, 5)
    ]
    assert again.recipe.table.reads == 0
    assert [samples_of(again.epoch(n, 2)) for n in (0, 2)] == [samples_of(first.epoch(n, 2)) for n in (0, 2)]


def test_it_is_part_of_the_digest_and_plans_without_one_stay_what_they_are():
    digests = {
        plan_of(SPEECH, max_length=one).digest
        for one in ("16 s", {"0": "8 s", "2": "16 s"}, {"0": "8 s", "3": "16 s"}, {"0": "9 s", "3": "16 s"})
    }
    assert len(digests) == 4
    assert plan_of(log_normal(600), seed=3, window=200).digest == "f188fee3f4a1d5e8a525d3f88b518bdb"
    assert plan_of(log_normal(600), max_length="10 s").digest == "2b20458dab8ca5d3b6582a49e6901402"


@pytest.mark.parametrize(
    ("said", "got"),
    [
        ({}, "nothing"),
        ({"1": "4 s"}, "1"),
        ({"0": "4 s", "two": "8 s"}, "0, two"),
        ({"0": "4 s", "02": "8 s"}, "0, 02"),
    ],
)
def test_what_is_no_curriculum_is_refused(said, got):
    with pytest.raises(SettingsError, match=f"begins with epoch 0.*got a table of {got}"):
        plan_of(SPEECH, max_length=said)


def test_a_stage_without_samples_is_refused_naming_its_limit():
    with pytest.raises(DataError, match="samples of at most 1 steps: expected at least one sample"):
        plan_of(np.array([500, 700]), max_length={"0": "7 s", "4": "1 frames"})
