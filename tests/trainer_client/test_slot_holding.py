"""No slot is written while anything looks into it, whatever consumers hold and however late or often workers answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader_server.wants.tickets import Tickets
from shared.memory import SlotMemory
from trainer_client.batch import owned
from trainer_client.core.slot_states import SlotState, SlotStates

if TYPE_CHECKING:
    from shared.wire.message_parts import Ticket

SLOTS = 4
NBYTES = 4096


class Held:
    """Hands its slot back when it goes, as an item of the outbox does."""

    def __init__(self, slots: SlotStates, slot: int) -> None:
        self.slots, self.slot = slots, slot

    def __del__(self) -> None:
        self.slots.hand_back(self.slot)


@given(st.lists(st.integers(0, 2 * SLOTS), min_size=20, max_size=200))
@settings(max_examples=60, deadline=None)
def test_whoever_holds_a_batch_sees_its_bytes_however_long(choices: list[int]) -> None:
    """Each choice either drops the held batch of that place, or reads the next batch into a free slot and holds it."""
    memory, slots = SlotMemory(SLOTS + 1, NBYTES), SlotStates(SLOTS)
    held: list[tuple[int, Any]] = []
    for number, choice in enumerate(choices):
        if choice < len(held):
            del held[choice]
        ticket = slots.lend()
        if ticket is None:
            assert len(held) == SLOTS
            continue
        view = memory.slot(ticket.slot)
        view[:] = number % 251
        slots.offer(ticket)
        slots.take(ticket.slot)
        whole = owned(view, Held(slots, ticket.slot))
        held.append((number % 251, whole[64:128].view(np.int32).reshape(4, 4)[1:]))  # views of views hold it as well
        del whole
        assert all((batch.view(np.uint8) == byte).all() for byte, batch in held)
    held.clear()
    assert slots.count(SlotState.FREE) == SLOTS + 1
    memory.close()


@dataclass
class Worker:
    """The worker's half, and what of it is slow: wants on their way to it, tickets that it writes for, answers back."""

    tickets: Tickets = field(default_factory=Tickets)
    wants: list[Ticket] = field(default_factory=list)
    writing: list[Ticket] = field(default_factory=list)
    answers: list[Ticket] = field(default_factory=list)


class World:
    """A trainer's slots and two workers; each method is one thing that can happen, at any time."""

    def __init__(self) -> None:
        self.slots = SlotStates(SLOTS)
        self.workers = [Worker(), Worker()]
        self.lent: dict[Ticket, int] = {}

    def lend(self, one: int) -> None:
        ticket = self.slots.lend()
        if ticket is not None:
            self.lent[ticket] = one
            self.workers[one].wants += [ticket, ticket]  # the wire may repeat it

    def accept(self, one: int) -> None:
        worker = self.workers[one]
        if worker.wants and worker.tickets.accept(want := worker.wants.pop()):  # and change the order
            worker.writing.append(want)

    def write(self, one: int) -> None:
        """A stopped worker comes to this as late as the order of events wants."""
        for ticket in self.workers[one].writing:
            assert self.slots.state(ticket.slot) is SlotState.LENT
            assert self.lent[ticket] == one

    def answer(self, one: int) -> None:
        worker = self.workers[one]
        if worker.writing:
            ticket = worker.writing.pop(0)
            worker.tickets.answer(ticket)
            worker.answers += [ticket, ticket]

    def arrive(self, one: int) -> None:
        worker = self.workers[one]
        if worker.answers:
            ticket = worker.answers.pop()
            if self.lent.pop(ticket, None) is not None:
                self.slots.offer(ticket)
                self.slots.take(ticket.slot)

    def die(self, one: int) -> None:
        """Proved: its lock is gone, and with it all that it could write."""
        self.workers[one] = Worker()
        for ticket in [ticket for ticket, owner in self.lent.items() if owner == one]:
            del self.lent[ticket]
            self.slots.release(ticket)

    def give_back(self, _one: int) -> None:
        for slot in range(SLOTS):
            if self.slots.state(slot) is SlotState.OUT:
                self.slots.hand_back(slot)
                return


_EVENTS = ("lend", "accept", "write", "answer", "arrive", "die", "give_back")


@pytest.mark.slow
@pytest.mark.fault(2)
@pytest.mark.fault(23)
@pytest.mark.fault(24)
@given(st.lists(st.tuples(st.sampled_from(_EVENTS), st.integers(0, 1)), min_size=80, max_size=200))
@settings(max_examples=120, deadline=None)
def test_late_repeated_and_stopped_writers_cannot_touch_a_slot_that_is_not_theirs(
    script: list[tuple[str, int]],
) -> None:
    world = World()
    for event, one in script:
        getattr(world, event)(one)
        for worker in range(2):
            world.write(worker)


def test_a_copy_of_a_want_that_was_answered_is_not_accepted_again() -> None:
    world = World()
    for event in ("lend", "accept", "answer", "arrive", "give_back", "accept"):
        getattr(world, event)(0)
    assert not world.workers[0].writing
    assert world.slots.count(SlotState.FREE) == SLOTS + 1
