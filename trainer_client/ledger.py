"""Whose slot is it? The trainer's book of slots.

Rules: pure. A slot is lent again only after the answer to its last ticket, or when its writer is proved dead, or when
nobody could write into it anyway (`in_slot` is false: the batch comes as a TCP frame and the trainer itself writes).
Each lending raises the slot's generation, so an answer to an older ticket is known to be stale. One reserve slot is
never lent for writing in place: the head of the line can always be asked for through it.
"""

from __future__ import annotations

import enum

from shared.messages import Ticket

__all__ = ["Ledger", "SlotState"]


class SlotState(enum.Enum):
    """Who may touch a slot's bytes."""

    FREE = "free"  #: nobody
    LENT = "lent"  #: the worker that holds the ticket
    FILLED = "filled"  #: nobody: a batch lies in it, waiting for its turn
    OUT = "out"  #: the consumer


#: What may happen to a slot; any other pair is a defect of ours and raises.
_NEXT = {
    (SlotState.FREE, "lend"): SlotState.LENT,
    (SlotState.LENT, "fill"): SlotState.FILLED,
    (SlotState.LENT, "release"): SlotState.FREE,
    (SlotState.FILLED, "hand out"): SlotState.OUT,
    (SlotState.FILLED, "drop"): SlotState.FREE,
    (SlotState.OUT, "return"): SlotState.FREE,
}


class Ledger:
    """`slots` ordinary slots, and the reserve behind them."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.reserve = slots
        self._states = [SlotState.FREE] * (slots + 1)
        self._generations = [0] * (slots + 1)
        # The last one freed is lent first: its pages are warm, and untouched slots stay unallocated.
        self._free = list(range(slots - 1, -1, -1))

    def lend(self) -> Ticket | None:
        """A ticket for a free ordinary slot, if there is one."""
        return self._lent(self._free.pop()) if self._free else None

    def lend_reserve(self) -> Ticket | None:
        """A ticket for the reserve slot, if it is free."""
        return self._lent(self.reserve) if self._states[self.reserve] is SlotState.FREE else None

    def _lent(self, slot: int) -> Ticket:
        self._move(slot, "lend")
        self._generations[slot] += 1
        return Ticket(slot, self._generations[slot])

    def fill(self, ticket: Ticket) -> None:
        """The answer came, with a batch."""
        self._current(ticket)
        self._move(ticket.slot, "fill")

    def release(self, ticket: Ticket) -> None:
        """The answer came without a batch, or is no longer needed: nobody can write into the slot any more."""
        self._current(ticket)
        self._move(ticket.slot, "release")

    def hand_out(self, slot: int) -> None:
        """The consumer got the slot itself."""
        self._move(slot, "hand out")

    def drop(self, slot: int) -> None:
        """The batch in it is not wanted there: dropped, or copied out."""
        self._move(slot, "drop")

    def give_back(self, slot: int) -> None:
        """The consumer's last reference is gone."""
        self._move(slot, "return")

    def state(self, slot: int) -> SlotState:
        """Who may touch it."""
        return self._states[slot]

    def count(self, state: SlotState) -> int:
        """How many slots, the reserve included, are in this state."""
        return sum(one is state for one in self._states)

    def _current(self, ticket: Ticket) -> None:
        if self._generations[ticket.slot] != ticket.generation:
            raise AssertionError(f"{ticket} is stale: generation {self._generations[ticket.slot]} is current")

    def _move(self, slot: int, event: str) -> None:
        before = self._states[slot]
        after = _NEXT.get((before, event))
        if after is None:
            raise AssertionError(f"slot {slot}: cannot {event} while {before.value}")
        self._states[slot] = after
        if after is SlotState.FREE and slot != self.reserve:
            self._free.append(slot)
