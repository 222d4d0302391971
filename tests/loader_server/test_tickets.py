from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader_server.tickets import Tickets
from shared.messages import Ticket


def test_a_ticket_is_open_from_its_acceptance_to_its_answer():
    tickets, one = Tickets(), Ticket(3, 1)
    assert not tickets.is_open(one)
    assert tickets.accept(one)
    assert tickets.is_open(one)
    assert tickets.held() == (one,)
    tickets.answer(one)
    assert not tickets.is_open(one)
    assert tickets.held() == ()


@pytest.mark.fault(24)
def test_a_copy_of_a_want_is_not_accepted_again():
    tickets = Tickets()
    assert tickets.accept(Ticket(3, 1))
    assert not tickets.accept(Ticket(3, 1))
    tickets.answer(Ticket(3, 1))
    assert not tickets.accept(Ticket(3, 1))


@pytest.mark.fault(23)
def test_an_older_generation_is_not_accepted():
    tickets = Tickets()
    assert tickets.accept(Ticket(3, 5))
    assert not tickets.accept(Ticket(3, 4))
    assert tickets.accept(Ticket(2, 4)), "generations count in a slot"


def test_an_answer_to_nothing_is_a_defect():
    with pytest.raises(KeyError):
        Tickets().answer(Ticket(1, 1))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 6))))
def test_each_is_accepted_once_and_generations_of_a_slot_only_grow(arrivals):
    tickets, accepted = Tickets(), []
    for slot, generation in arrivals:
        if tickets.accept(Ticket(slot, generation)):
            assert all(generation > older.generation for older in accepted if older.slot == slot)
            accepted.append(Ticket(slot, generation))
    assert set(tickets.held()) == set(accepted)
    assert len(set(accepted)) == len(accepted)
