"""The audit finds what was lost and what came twice, in every lap, at every cut."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.rounds import rounds
from trainer_client.load_test.delivery_audit import Discrepancies, Lap, audited

FINE = Discrepancies(lost=0, repeated=0)


def lap(rank, world, *, group, groups, went, number=0):
    """What a faultless trainer gets; `went` None: to the end."""
    way = rounds(0, group * groups, group, world)
    places = [one.place(rank) for one in (way if went is None else islice(way, went))]
    return Lap(
        rank=rank,
        lap=number,
        batches=group * groups,
        group=group,
        rounds=len(places),
        ended=went is None,
        numbers=tuple(place.number for place in places if not place.empty),
    )


@st.composite
def worlds(draw):
    world = draw(st.integers(1, 5))
    how = {"group": draw(st.integers(world, 9)), "groups": draw(st.integers(1, 4))}
    laps = [lap(rank, world, went=None, **how) for rank in range(world)]
    laps += [lap(rank, world, went=draw(st.integers(0, 6)), number=1, **how) for rank in range(world)]
    return world, laps


@given(worlds())
def test_faultless_trainers_are_found_so_wherever_they_stop(world):
    assert audited(world[1], world[0]) == FINE


@given(worlds(), st.data())
def test_one_batch_lost_is_one_lost(world, data):
    size, laps = world
    at = data.draw(st.sampled_from([place for place, one in enumerate(laps) if one.numbers]))
    gone = data.draw(st.integers(0, len(laps[at].numbers) - 1))
    numbers = laps[at].numbers
    laps[at] = replace(laps[at], numbers=numbers[:gone] + numbers[gone + 1 :])
    assert audited(laps, size) == Discrepancies(lost=1, repeated=0)


@given(worlds(), st.data())
def test_one_batch_twice_is_one_repeated(world, data):
    size, laps = world
    at = data.draw(st.sampled_from([place for place, one in enumerate(laps) if one.numbers]))
    again = data.draw(st.sampled_from(laps[at].numbers))
    whose = data.draw(st.sampled_from([place for place, one in enumerate(laps) if one.lap == laps[at].lap]))
    laps[whose] = replace(laps[whose], numbers=(*laps[whose].numbers, again))
    assert audited(laps, size) == Discrepancies(lost=0, repeated=1)


def test_a_lap_that_ends_early_has_lost_its_rest():
    short = replace(lap(0, 1, group=1, groups=9, went=4), ended=True)
    assert audited([short], 1) == Discrepancies(lost=5, repeated=0)


def test_laps_are_held_apart():
    first = lap(0, 1, group=1, groups=3, went=None)
    assert audited([first, replace(first, lap=1)], 1) == FINE


@pytest.mark.parametrize("world", [1, 4])
def test_nobody_went_anywhere(world):
    assert audited([], world) == FINE
