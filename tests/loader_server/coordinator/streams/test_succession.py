"""The order in which incarnations came to a rank, and what it says of each."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader_server.coordinator.streams.succession import Succession


def took(succession: Succession, incarnation: int, *ranks: int, shown: int | None = None) -> list[tuple]:
    changes = list(succession.after(incarnation, range(ranks[0], ranks[-1] + 1), shown))
    for rank, order, tenure in changes:
        succession.set_order(rank, order, tenure)
    return changes


def test_who_came_last_has_the_rank_and_the_one_before_is_superseded():
    succession = Succession()
    assert took(succession, 7, 0) == [(0, (7,), 1)]
    assert took(succession, 8, 0) == [(0, (7, 8), 2)]
    assert succession.holder(0) == 8
    assert (succession.is_superseded(7), succession.is_superseded(8)) == (True, False)


def test_nobody_has_a_rank_that_nobody_took():
    assert Succession().holder(0) is None
    assert not Succession().is_superseded(7)
    assert Succession().last_tenure(range(4)) == 0
    assert not Succession().is_known()


def test_taking_it_again_changes_nothing():
    succession = Succession()
    took(succession, 7, 0, 1)
    assert took(succession, 7, 0, 1) == []
    assert took(succession, 7, 0, 1, shown=1) == []
    assert succession.is_known()


def test_one_rank_of_several_is_enough_to_be_superseded():
    succession = Succession()
    took(succession, 7, 0, 1, 2)
    took(succession, 8, 2, 3)
    assert succession.is_superseded(7)
    assert [succession.holder(rank) for rank in range(4)] == [7, 7, 8, 8]
    assert [succession.tenure(7, rank) for rank in range(4)] == [1, 1, None, None]
    assert succession.last_tenure(range(3)) == 2


def test_who_moves_on_leaves_its_ranks_behind():
    succession = Succession()
    took(succession, 7, 0, 1)
    assert took(succession, 7, 1, 2) == [(0, (), 1), (1, (7,), 2), (2, (7,), 2)]
    took(succession, 8, 0)
    assert not succession.is_superseded(7)
    assert succession.holder(0) == 8
    assert not any(succession.holder(rank) == 7 for rank in (0, 3))


@pytest.mark.fault(60)
def test_each_taking_has_a_tenure_above_all_before():
    succession = Succession()
    took(succession, 7, 0, 1)
    took(succession, 8, 5)
    took(succession, 9, 0)
    assert (succession.tenure(9, 0), succession.tenure(8, 5), succession.tenure(7, 1)) == (3, 2, 1)


@pytest.mark.fault(60)
def test_who_shows_a_tenure_keeps_it_and_later_ones_are_above():
    succession = Succession()
    assert took(succession, 7, 0, shown=40) == [(0, (7,), 40)]
    assert took(succession, 8, 0) == [(0, (7, 8), 41)]


@pytest.mark.fault(48)
def test_the_latest_are_remembered():
    succession = Succession()
    for incarnation in range(20):
        took(succession, incarnation, 0)
    assert [one for one in range(20) if succession.is_superseded(one)] == list(range(4, 19))
    assert len(succession._ranks) == 16


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(1, 2)), max_size=12))
def test_its_changes_alone_rebuild_it(script):
    succession, kept = Succession(), {}
    for incarnation, rank, replicas in script:
        if not succession.is_superseded(incarnation):
            changes = took(succession, incarnation, *range(rank, rank + replicas))
            kept.update({rank: fact for rank, *fact in changes})
    again = Succession()
    for rank, (order, tenure) in kept.items():
        again.set_order(rank, order, tenure)
    assert (again._orders, again._ranks, again._tenures) == (succession._orders, succession._ranks, succession._tenures)
    assert again._next_tenure == succession._next_tenure
