"""The parts in which an epoch is read again: all small epochs, groups and numbers of cuts."""

from __future__ import annotations

import random

import pytest

from shared.rounds import rounds
from trainer_client.verifying.cuts import CutPart, cut_plan

EPOCHS = [(batches, group) for group in range(1, 6) for batches in range(1, 4 * group + 2)]


@pytest.mark.parametrize("cuts", [1, 2, 5, 40])
def test_the_parts_have_every_batch_once_in_order(cuts):
    for seed, (batches, group) in enumerate(EPOCHS):
        parts = cut_plan(batches, group, cuts, random.Random(seed))
        assert [part.start for part in parts] == [0, *(part.stop for part in parts[:-1])]
        assert parts[-1].stop == batches
        assert all(part.start < part.stop and 1 <= part.world <= group for part in parts)
        assert len(parts) <= cuts + 1


def test_each_part_ends_where_a_round_of_its_world_ends():
    for seed, (batches, group) in enumerate(EPOCHS):
        for part in cut_plan(batches, group, 3, random.Random(seed))[:-1]:
            whole = -(-batches // group) * group
            assert part.stop in [one.stop for one in rounds(part.start, whole, group, part.world)]


def test_all_worlds_and_many_places_are_drawn():
    plans = [cut_plan(24, 4, 2, random.Random(seed)) for seed in range(200)]
    assert {part.world for parts in plans for part in parts} == {1, 2, 3, 4}
    assert {parts[0].stop for parts in plans} >= set(range(1, 20))
    assert {len(parts) for parts in plans} >= {2, 3}


def test_where_batches_come_one_by_one_there_are_exactly_as_many_cuts_as_asked():
    for cuts in range(1, 9):
        assert len(cut_plan(20, 1, cuts, random.Random(cuts))) == cuts + 1


def test_one_batch_cannot_be_cut():
    assert cut_plan(1, 1, 4, random.Random(0)) == [CutPart(0, 1, 1)]


def test_the_same_draws_give_the_same_parts():
    assert cut_plan(50, 4, 5, random.Random(3)) == cut_plan(50, 4, 5, random.Random(3))
