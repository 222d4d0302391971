"""Whose slot is it? The worker's half: which tickets of one trainer it may write for.

Rules: pure. A ticket is accepted only if its generation is above the last one of its slot; it is open until it is
answered, and it is answered only once no thread of this worker can write there any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shared.messages import Ticket

__all__ = ["Tickets"]


class Tickets:
    """The tickets of one trainer."""

    def __init__(self) -> None:
        self._last: dict[int, int] = {}
        self._open: set[Ticket] = set()

    def accept(self, ticket: Ticket) -> bool:
        """Take a ticket; False if it is stale, or a copy of one that was seen."""
        if ticket.generation <= self._last.get(ticket.slot, 0):
            return False
        self._last[ticket.slot] = ticket.generation
        self._open.add(ticket)
        return True

    def answer(self, ticket: Ticket) -> None:
        """It is answered: nothing of ours may write there from now on."""
        self._open.remove(ticket)

    def is_open(self, ticket: Ticket) -> bool:
        """Whether it still has to be answered."""
        return ticket in self._open

    def held(self) -> tuple[Ticket, ...]:
        """All that still have to be answered."""
        return tuple(self._open)
