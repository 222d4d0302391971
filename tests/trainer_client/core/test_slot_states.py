from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from shared.wire.message_parts import Ticket
from trainer_client.core.slot_states import SlotState, SlotStates


def test_slots_are_lent_while_there_are_any_and_the_reserve_only_on_purpose():
    slots = SlotStates(2)
    lent = [slots.lend(), slots.lend()]
    assert {ticket.slot for ticket in lent} == {0, 1}
    assert slots.lend() is None
    assert slots.lend_reserve() == Ticket(2, 1)
    assert slots.lend_reserve() is None


def test_the_last_one_freed_is_lent_first():
    slots = SlotStates(3)
    first, second = slots.lend(), slots.lend()
    slots.release(first)
    slots.release(second)
    assert slots.lend() == Ticket(second.slot, 2)


@pytest.mark.fault(23)
def test_an_answer_to_an_older_lending_is_a_defect_here():
    slots = SlotStates(1)
    old = slots.lend()
    slots.release(old)
    slots.lend()
    for act in (slots.offer, slots.release):
        with pytest.raises(AssertionError, match="is stale: generation 2 is current"):
            act(old)


def test_a_batch_goes_its_way_through_a_slot():
    slots = SlotStates(1)
    ticket = slots.lend()
    slots.offer(ticket)
    assert slots.state(0) is SlotState.OFFERED
    slots.take(0)
    assert slots.state(0) is SlotState.OUT
    slots.hand_back(0)
    assert slots.state(0) is SlotState.FREE
    assert slots.count(SlotState.FREE) == 2


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda slots: slots.take(0), "slot 0: cannot take while free"),
        (lambda slots: slots.hand_back(0), "slot 0: cannot hand back while free"),
        (lambda slots: slots.take_back(0), "slot 0: cannot take back while free"),
        (lambda slots: slots.offer(Ticket(0, 0)), "slot 0: cannot offer while free"),
        (lambda slots: slots.release(Ticket(0, 0)), "slot 0: cannot release while free"),
    ],
)
def test_what_may_not_happen_to_a_slot_raises(act, message):
    with pytest.raises(AssertionError, match=message):
        act(SlotStates(1))


@pytest.mark.fault(18)
class Lending(RuleBasedStateMachine):
    """S4: no slot is with two, none is lost, generations only grow."""

    def __init__(self):
        super().__init__()
        self.slots = SlotStates(3)
        self.lent: list[Ticket] = []
        self.offered: list[int] = []
        self.out: list[int] = []
        self.generations = [0] * 4

    def taken(self, ticket: Ticket | None) -> None:
        if ticket is not None:
            assert ticket.slot not in [*(one.slot for one in self.lent), *self.offered, *self.out]
            assert ticket.generation == self.generations[ticket.slot] + 1
            self.generations[ticket.slot] += 1
            self.lent.append(ticket)

    @rule(reserve=st.booleans())
    def lend(self, reserve):
        self.taken(self.slots.lend_reserve() if reserve else self.slots.lend())

    @precondition(lambda self: self.lent)
    @rule(which=st.integers(0, 9), offered=st.booleans())
    def answer(self, which, offered):
        ticket = self.lent.pop(which % len(self.lent))
        if offered:
            self.slots.offer(ticket)
            self.offered.append(ticket.slot)
        else:
            self.slots.release(ticket)

    @precondition(lambda self: self.offered)
    @rule(which=st.integers(0, 9), how=st.sampled_from(["take", "take back", "hand back"]))
    def take(self, which, how):
        slot = self.offered.pop(which % len(self.offered))
        if how == "take back":
            self.slots.take_back(slot)
        elif how == "hand back":  # a signal came between taking it and saying so
            self.slots.hand_back(slot)
        else:
            self.slots.take(slot)
            self.out.append(slot)

    @precondition(lambda self: self.out)
    @rule(which=st.integers(0, 9))
    def give_back(self, which):
        self.slots.hand_back(self.out.pop(which % len(self.out)))

    @invariant()
    def every_slot_is_somewhere(self):
        counts = [self.slots.count(state) for state in (SlotState.LENT, SlotState.OFFERED, SlotState.OUT)]
        assert counts == [len(self.lent), len(self.offered), len(self.out)]
        assert self.slots.count(SlotState.FREE) == 4 - sum(counts)


TestLending = Lending.TestCase


def test_superfluous_are_the_free_ones_that_are_lent_last():
    slots = SlotStates(6)
    first, second = slots.lend(), slots.lend()
    assert slots.superfluous(2) == (5, 4, 3, 2)
    assert slots.superfluous(4) == (5, 4)
    assert slots.superfluous(1) == (5, 4, 3, 2), "those in use are kept"
    slots.release(first)
    assert slots.superfluous(3) == (5, 4, 3)
    assert slots.superfluous(9) == ()
    slots.release(second)
    assert [slots.lend().slot for _ in range(3)] == [second.slot, first.slot, 2]
    assert slots.superfluous(3) == (5, 4, 3)
