"""The worker's half of who may write into a slot: the tickets of one trainer that this worker may write for.

Rules: pure. A ticket is accepted only if its generation is above the last one of its slot, including refused ones. It
is open until it is answered, and it is answered only once no thread of this worker can write into the slot any more. A
slot has at most one open ticket, and a trainer a bounded number, so what it can cost this worker is bounded.
"""

from __future__ import annotations

import enum
from array import array
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shared.wire.message_parts import Ticket

__all__ = ["MOST_OPEN", "MOST_SLOTS", "Tickets", "Verdict"]

#: The limit on open tickets of one trainer.
MOST_OPEN = 1024

#: The limit on slot numbers of a trainer that shares no memory, and so does not prove how many it has. Our memory grows
#: with the highest number seen.
MOST_SLOTS = 16 * 1024


class Verdict(enum.Enum):
    """The judgement on a ticket."""

    NEW = "new"
    STALE = "stale"  #: this ticket, or a later one of its slot, was seen before
    BUSY = "busy"  #: its trainer asks for too much at once


class Tickets:
    """The tickets of one trainer, whose slots are numbered from 0 to below `slots`."""

    def __init__(self, slots: int = MOST_SLOTS) -> None:
        self.slots = slots
        #: The last generation of each slot.
        self._last = array("Q")
        #: By slot.
        self._open: dict[int, Ticket] = {}

    def judge(self, ticket: Ticket) -> Verdict:
        """Return whether the ticket can be accepted (NEW), and if not, why.

        STALE if this ticket or a later one of its slot was seen before; BUSY if its slot has an open ticket or does not
        exist, or the trainer has too many open tickets.
        """
        # A late copy of a want must not be built again: the slot may be lent to another worker by now.
        if ticket.generation <= (self._last[ticket.slot] if ticket.slot < len(self._last) else 0):
            return Verdict.STALE
        if ticket.slot in self._open or ticket.slot >= self.slots or len(self._open) >= MOST_OPEN:
            return Verdict.BUSY
        return Verdict.NEW

    def accept(self, ticket: Ticket) -> bool:
        """Accept a ticket if `judge` finds it NEW, so that it is open; return whether it was accepted."""
        if self.judge(ticket) is not Verdict.NEW:
            return False
        self._note(ticket)
        self._open[ticket.slot] = ticket
        return True

    def refuse(self, ticket: Ticket) -> None:
        """Note a ticket that was refused without having been open, so that a later copy of it is stale.

        A ticket that is stale already, or of a slot that does not exist, changes nothing.
        """
        # The trainer may have lent the slot anew after the refusal, and the copy would be written into that lending.
        if ticket.slot < self.slots and self.judge(ticket) is not Verdict.STALE:
            self._note(ticket)

    def _note(self, ticket: Ticket) -> None:
        # Grown on demand: most trainers have few slots, and one without shared memory may name any below the limit.
        self._last.extend([0] * (1 + ticket.slot - len(self._last)))
        self._last[ticket.slot] = ticket.generation

    def answer(self, ticket: Ticket) -> None:
        """Close a ticket that is being answered; raise a KeyError if it is not open.

        From now on this worker may not write into its slot.
        """
        if not self.is_open(ticket):
            raise KeyError(ticket)
        del self._open[ticket.slot]

    def is_open(self, ticket: Ticket) -> bool:
        """Return whether the ticket still has to be answered."""
        return self._open.get(ticket.slot) == ticket

    def held(self) -> tuple[Ticket, ...]:
        """Return all tickets that still have to be answered, maybe none."""
        return tuple(self._open.values())
