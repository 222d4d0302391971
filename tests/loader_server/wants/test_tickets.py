from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader_server.wants.tickets import MOST_OPEN, MOST_SLOTS, Tickets, Verdict
from shared.wire.message_parts import Ticket


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


@pytest.mark.fault(24)
def test_a_copy_of_a_want_that_was_refused_is_not_accepted():
    """Its trainer has the slot back, and may have lent it to another worker."""
    tickets = Tickets(slots=4)
    tickets.refuse(Ticket(3, 2))
    assert tickets.judge(Ticket(3, 2)) is Verdict.STALE
    assert tickets.accept(Ticket(3, 3))
    tickets.refuse(Ticket(3, 4))
    tickets.refuse(Ticket(3, 1))
    assert tickets.held() == (Ticket(3, 3),)
    tickets.answer(Ticket(3, 3))
    assert tickets.judge(Ticket(3, 4)) is Verdict.STALE
    tickets.refuse(Ticket(4, 1))
    assert len(tickets._last) == 4, "what is remembered is bounded"


def test_an_answer_to_nothing_is_a_defect():
    with pytest.raises(KeyError):
        Tickets().answer(Ticket(1, 1))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 6), st.booleans())))
def test_each_is_accepted_once_and_generations_of_a_slot_only_grow(arrivals):
    tickets, accepted, opened = Tickets(), [], {}
    for slot, generation, answered in arrivals:
        if answered and slot in opened:
            tickets.answer(opened.pop(slot))
        if tickets.accept(Ticket(slot, generation)):
            assert slot not in opened
            assert all(generation > older.generation for older in accepted if older.slot == slot)
            opened[slot] = Ticket(slot, generation)
            accepted.append(opened[slot])
        assert set(tickets.held()) == set(opened.values())
    assert len(set(accepted)) == len(accepted)


# --- no more than is bounded ---


@pytest.mark.fault(42)
def test_a_slot_has_one_open_ticket():
    tickets = Tickets()
    assert tickets.accept(Ticket(3, 1))
    assert tickets.judge(Ticket(3, 2)) is Verdict.BUSY
    assert tickets.judge(Ticket(3, 1)) is Verdict.STALE, "a copy of the open one is no second want"
    assert not tickets.accept(Ticket(3, 2))
    tickets.answer(Ticket(3, 1))
    assert tickets.judge(Ticket(3, 2)) is Verdict.NEW
    assert tickets.accept(Ticket(3, 2))
    assert tickets.held() == (Ticket(3, 2),)


def test_only_the_open_ticket_of_a_slot_is_answered():
    tickets = Tickets()
    tickets.accept(Ticket(3, 2))
    for other in (Ticket(3, 1), Ticket(3, 3)):
        assert not tickets.is_open(other)
        with pytest.raises(KeyError):
            tickets.answer(other)


@pytest.mark.fault(42)
def test_slots_that_were_not_offered_are_refused():
    tickets = Tickets(5)
    assert tickets.accept(Ticket(4, 1))
    assert tickets.judge(Ticket(5, 1)) is Verdict.BUSY
    tickets.slots = 6
    assert tickets.accept(Ticket(5, 1))
    assert Tickets().judge(Ticket(MOST_SLOTS - 1, 1)) is Verdict.NEW
    assert Tickets().judge(Ticket(MOST_SLOTS, 1)) is Verdict.BUSY


@pytest.mark.fault(42)
def test_so_many_are_open_and_no_more():
    tickets = Tickets()
    for slot in range(MOST_OPEN):
        assert tickets.accept(Ticket(slot, 1))
    assert tickets.judge(Ticket(MOST_OPEN, 1)) is Verdict.BUSY
    tickets.answer(Ticket(0, 1))
    assert tickets.accept(Ticket(MOST_OPEN, 1))
