from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from shared.messages import Ticket
from trainer_client.ledger import Ledger, SlotState


def test_slots_are_lent_while_there_are_any_and_the_reserve_only_on_purpose():
    ledger = Ledger(2)
    lent = [ledger.lend(), ledger.lend()]
    assert {ticket.slot for ticket in lent} == {0, 1}
    assert ledger.lend() is None
    assert ledger.lend_reserve() == Ticket(2, 1)
    assert ledger.lend_reserve() is None


def test_the_last_one_freed_is_lent_first():
    ledger = Ledger(3)
    first, second = ledger.lend(), ledger.lend()
    ledger.release(first)
    ledger.release(second)
    assert ledger.lend() == Ticket(second.slot, 2)


@pytest.mark.fault(23)
def test_an_answer_to_an_older_lending_is_a_defect_here():
    ledger = Ledger(1)
    old = ledger.lend()
    ledger.release(old)
    ledger.lend()
    for act in (ledger.fill, ledger.release):
        with pytest.raises(AssertionError, match="is stale: generation 2 is current"):
            act(old)


def test_a_batch_goes_its_way_through_a_slot():
    ledger = Ledger(1)
    ticket = ledger.lend()
    ledger.fill(ticket)
    assert ledger.state(0) is SlotState.FILLED
    ledger.hand_out(0)
    assert ledger.state(0) is SlotState.OUT
    ledger.give_back(0)
    assert ledger.state(0) is SlotState.FREE
    assert ledger.count(SlotState.FREE) == 2


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda ledger: ledger.hand_out(0), "slot 0: cannot hand out while free"),
        (lambda ledger: ledger.give_back(0), "slot 0: cannot return while free"),
        (lambda ledger: ledger.drop(0), "slot 0: cannot drop while free"),
        (lambda ledger: ledger.fill(Ticket(0, 0)), "slot 0: cannot fill while free"),
        (lambda ledger: ledger.release(Ticket(0, 0)), "slot 0: cannot release while free"),
    ],
)
def test_what_may_not_happen_to_a_slot_raises(act, message):
    with pytest.raises(AssertionError, match=message):
        act(Ledger(1))


@pytest.mark.fault(18)
class Lending(RuleBasedStateMachine):
    """S4: no slot is with two, none is lost, generations only grow."""

    def __init__(self):
        super().__init__()
        self.ledger = Ledger(3)
        self.lent: list[Ticket] = []
        self.filled: list[int] = []
        self.out: list[int] = []
        self.generations = [0] * 4

    def taken(self, ticket: Ticket | None) -> None:
        if ticket is not None:
            assert ticket.slot not in [*(one.slot for one in self.lent), *self.filled, *self.out]
            assert ticket.generation == self.generations[ticket.slot] + 1
            self.generations[ticket.slot] += 1
            self.lent.append(ticket)

    @rule(reserve=st.booleans())
    def lend(self, reserve):
        self.taken(self.ledger.lend_reserve() if reserve else self.ledger.lend())

    @precondition(lambda self: self.lent)
    @rule(which=st.integers(0, 9), filled=st.booleans())
    def answer(self, which, filled):
        ticket = self.lent.pop(which % len(self.lent))
        if filled:
            self.ledger.fill(ticket)
            self.filled.append(ticket.slot)
        else:
            self.ledger.release(ticket)

    @precondition(lambda self: self.filled)
    @rule(which=st.integers(0, 9), dropped=st.booleans())
    def take(self, which, dropped):
        slot = self.filled.pop(which % len(self.filled))
        if dropped:
            self.ledger.drop(slot)
        else:
            self.ledger.hand_out(slot)
            self.out.append(slot)

    @precondition(lambda self: self.out)
    @rule(which=st.integers(0, 9))
    def give_back(self, which):
        self.ledger.give_back(self.out.pop(which % len(self.out)))

    @invariant()
    def every_slot_is_somewhere(self):
        counts = [self.ledger.count(state) for state in (SlotState.LENT, SlotState.FILLED, SlotState.OUT)]
        assert counts == [len(self.lent), len(self.filled), len(self.out)]
        assert self.ledger.count(SlotState.FREE) == 4 - sum(counts)


TestLending = Lending.TestCase
