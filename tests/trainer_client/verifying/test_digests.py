"""Digests of epochs, what differs between two readings, and the parts in which an epoch is read again."""

from __future__ import annotations

import itertools
import random
from array import array

import pytest
import xxhash

from shared.rounds import rounds
from trainer_client.verifying.digests import CutPart, Difference, EpochDigests, cut_plan, differences, digest_of


def epoch(*digests: int, number: int = 0, group: int = 1) -> EpochDigests:
    return EpochDigests(number, group, "plan-1", array("Q", digests))


def test_it_is_that_of_the_pairs_in_order():
    pairs = b"".join(number.to_bytes(8, "little") + digest.to_bytes(8, "little") for number, digest in [(0, 7), (1, 9)])
    assert epoch(7, 9).digest == xxhash.xxh3_128_hexdigest(pairs)


def test_it_is_pinned_because_people_write_it_down():
    assert epoch(1, 2, 2**64 - 1).digest == "ca895ff1868b120d67a70ba3d8d3e12e"
    assert digest_of([epoch(1, 2), epoch(3, number=1)]) == "f278d643265a54ff4800ef59e95b99cb"


def test_whatever_differs_makes_another_digest():
    readings = [some for count in range(4) for some in itertools.product((0, 1, 2), repeat=count)]
    assert len({epoch(*some).digest for some in readings}) == len(readings)


def test_of_one_epoch_it_is_the_epochs_own_and_of_several_their_order_counts():
    one, other = epoch(1), epoch(2, number=1)
    assert digest_of([one]) == one.digest
    assert len({digest_of([one, other]), digest_of([other, one]), one.digest, other.digest}) == 4


@pytest.mark.parametrize("place", range(4))
def test_each_batch_that_differs_is_named(place):
    here = [1, 2, 3, 4]
    there = [*here[:place], 9, *here[place + 1 :]]
    found = differences([epoch(5, number=2), epoch(*here, number=3)], [epoch(5, number=2), epoch(*there, number=3)])
    assert found == [Difference(3, place, here[place], 9)]


def test_a_batch_that_only_one_has_differs():
    assert differences([epoch(1)], [epoch(1, 2)]) == [Difference(0, 1, None, 2)]
    assert differences([epoch(1, 2)], [epoch(1)]) == [Difference(0, 1, 2, None)]
    assert differences([epoch(1, 2)], [epoch(1, 2)]) == []


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
