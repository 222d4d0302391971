"""Plans of very little data: more parts, ranks or group than there are batches."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from loader_server.planning import Plan
from shared.errors import DataError, SettingsError
from shared.rounds import rounds
from tests.loader_server.planning.tables import RATES, Lengths, batches_of, log_normal, plan_of, settings_of

VARIANTS = [
    {},
    {"shapes": 4, "order": "sorted"},
    {"shapes": "none", "order": "as_is"},
    {"pad_to": "batch", "order": "laplace", "laplace_samples": 7},
    {"packing": "20 s"},
    {"window": 16, "curriculum_epochs": 1},
    {"window": 16, "packing": "20 s"},
    {"window": 16, "shapes": "none"},
    {"max_length": "12 s", "window": 8},
]
#: 1 / 49 * 49 is below 1.
MIXTURES = [
    {"weights": [1, 2], "cycle": [False, True]},
    {"weights": [49, 49]},
    {"weights": [5, 1], "cycle": [True, False]},
]

variants = st.sampled_from(VARIANTS)
lengths_of = st.builds(
    lambda size, seed: np.minimum(log_normal(size, seed=seed), 2000), st.integers(1, 60), st.integers(1, 9)
)
groups = st.integers(1, 70)


def tiny(lengths, *, parts=1, group=1, sources=(0,), **table) -> Plan | SettingsError:
    """The plan, or why it is refused for this group."""
    try:
        plan = plan_of(lengths, segment=8, sources=sources, budget="60 s", epoch_parts=parts, **table)
    except SettingsError as error:
        return error
    return plan.objection(group) or plan


def trained(plan, epoch, group, world):
    """The samples of an epoch as the ranks of a world meet them, round by round."""
    opened = plan.epoch(epoch, group)
    places = [one.place(rank) for one in rounds(0, opened.batches, group, world) for rank in range(world)]
    return [opened.batch(place.number).samples for place in places if not place.empty]


@pytest.mark.fault(50)
@settings(max_examples=250, deadline=None)
@given(lengths_of, st.integers(1, 24), groups, st.integers(1, 70), variants)
@example(log_normal(40), 4, 1, 1, {})
@example(log_normal(40), 20, 64, 64, {})
@example(log_normal(1), 1, 70, 70, {})
def test_every_sample_comes_once_in_the_parts_of_a_pass_and_no_part_is_empty(lengths, parts, group, world, variant):
    kept = np.flatnonzero(lengths <= 1200) if "max_length" in variant else np.arange(len(lengths))
    if not kept.size:
        return
    plan = tiny(lengths, parts=parts, group=group, **variant)
    if isinstance(plan, SettingsError):
        return
    for number in range(2):
        epochs = [trained(plan, number * parts + part, group, min(world, group)) for part in range(parts)]
        assert all(epochs), "an epoch without batches"
        assert sorted(np.concatenate([samples for epoch in epochs for samples in epoch])) == kept.tolist()
        assert all(
            plan.epoch(number * parts + part, group).batches <= plan.most_batches(group) for part in range(parts)
        )


@pytest.mark.fault(50)
@settings(max_examples=150, deadline=None)
@given(lengths_of, groups, variants)
def test_no_pass_has_fewer_groups_than_the_bound_that_refuses(lengths, group, variant):
    plan = plan_of(np.minimum(lengths, 1200), segment=8, budget="60 s", **variant)
    found = [plan.epoch(number, group).batches // group for number in range(4)]
    assert 1 <= plan.fewest_groups(group) <= min(found)
    if plan.recipe.counted and "window" not in variant:
        assert {plan.fewest_groups(group)} == set(found), "with one window the bound is exact"


@pytest.mark.fault(50)
@settings(max_examples=100, deadline=None)
@given(st.integers(1, 7), st.integers(1, 7), st.integers(1, 9), variants, st.sampled_from(MIXTURES))
@example(1, 1, 1, {}, MIXTURES[1])
def test_the_bounds_hold_for_mixtures(first, second, group, variant, mixture):
    lengths = np.minimum(log_normal(8 * (first + second)), 1200)
    plan = tiny(lengths, sources=(0, 8 * first), **mixture, **variant)
    found = [plan.epoch(number, group).batches // group for number in range(6)]
    assert 1 <= plan.fewest_groups(group) <= min(found) <= max(found) <= plan.most_batches(group) // group


@pytest.mark.fault(50)
def test_one_part_too_many_is_refused_and_one_less_is_not():
    lengths, group = log_normal(40), 2
    whole = plan_of(lengths, budget="60 s").epoch(0, group).batches // group
    assert isinstance(tiny(lengths, parts=whole, group=group), Plan)
    refusal = tiny(lengths, parts=whole + 1, group=group)
    assert isinstance(refusal, SettingsError)
    assert f"expected a group of batches for each of the {whole + 1} parts of the data" in str(refusal)
    assert f"got data for {whole} groups of 2. Write epoch_parts = {whole} or less" in str(refusal)
    assert "fewer ranks" in refusal.remedy


@pytest.mark.fault(50)
def test_parts_that_no_number_of_ranks_can_fill_are_refused_at_once():
    with pytest.raises(SettingsError, match="epoch_parts: expected a group of batches for each of the 20 parts"):
        plan_of(log_normal(10), epoch_parts=20)


def test_a_group_far_beyond_the_batches_is_one_group():
    plan = plan_of(log_normal(5), budget="60 s", shapes=1)
    batches = batches_of(plan.epoch(3, 64))
    assert len(batches) == 64
    assert sum(len(batch.samples) for batch in batches) == 5


def test_no_samples_are_an_error_not_an_epoch_without_batches():
    with pytest.raises(DataError, match="no samples"):
        Plan.make(Lengths(8, audio=[]), settings_of(), key="audio", per_second=RATES, seed=7)
