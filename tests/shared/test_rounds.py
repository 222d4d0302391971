"""Rounds: every batch once, groups kept whole, equal steps for all ranks."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.rounds import Place, Round, rounds, rounds_left


@st.composite
def courses(draw):
    group = draw(st.integers(1, 16))
    batches = draw(st.integers(0, 120))
    return draw(st.integers(0, batches)), batches, group


def numbers(one, world):
    return [place.number for rank in range(world) if not (place := one.place(rank)).empty]


@pytest.mark.heritage("D6")
@settings(deadline=None)
@given(courses(), st.integers(1, 16))
def test_rounds_left_is_how_many_there_are(course, world):
    cursor, batches, group = course
    world = min(world, group)
    assert rounds_left(cursor, batches, group, world) == len(list(rounds(cursor, batches, group, world)))


@pytest.mark.heritage("D15")
@pytest.mark.parametrize("world", range(1, 17))
def test_every_batch_exactly_once_and_no_group_crossed(world):
    for group in {world, world + 1, 2 * world - 1, 2 * world, 16}:
        if group < world:
            continue
        for batches in (0, 1, group - 1, group, group + 1, 3 * group + 2):
            for cursor in range(min(batches, group + 2) + 1):
                seen = []
                for one in rounds(cursor, batches, group, world):
                    assert one.start // group == (one.stop - 1) // group
                    seen += numbers(one, world)
                assert seen == list(range(cursor, batches))


@pytest.mark.heritage("R5")
@settings(deadline=None)
@given(courses(), st.integers(1, 16))
def test_all_places_of_a_round_are_of_one_group(course, world):
    """An empty place borrows a number of its round, and with it the shape; every rank has a place in every round."""
    cursor, batches, group = course
    world = min(world, group)
    for one in rounds(cursor, batches, group, world):
        places = [one.place(rank) for rank in range(world)]
        assert {place.number // group for place in places} == {one.start // group}
        assert all(one.start <= place.number < one.stop for place in places)
        assert not places[0].empty


@pytest.mark.heritage("E18")
@pytest.mark.fault(20)
@settings(deadline=None, max_examples=200)
@given(courses(), st.data())
def test_the_world_may_change_at_any_round(course, data):
    cursor, batches, group = course
    expected = list(range(cursor, batches))
    seen = []
    while cursor < batches:
        world = data.draw(st.integers(1, group))
        one = next(rounds(cursor, batches, group, world))
        seen += numbers(one, world)
        cursor = one.stop
    assert seen == expected


def test_places():
    one = Round(6, 8)
    assert [one.place(rank) for rank in range(4)] == [
        Place(6, empty=False),
        Place(7, empty=False),
        Place(6, empty=True),
        Place(6, empty=True),
    ]


def test_a_world_needs_a_group_of_its_size():
    with pytest.raises(ValueError, match="a world of 5 needs a group of at least 5, got 4"):
        next(rounds(0, 10, 4, 5))
    with pytest.raises(ValueError, match="a world of 0"):
        next(rounds(0, 10, 4, 0))
