"""A trainer's slots, and who may be writing into them.

Rules: a slot is a few pieces, and each writing leaves the writer's stamp in one, so that a byte of somebody else's is
seen. Lock bytes are held by those who opened the memory, and go with them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shared.wire.message_parts import Ticket
    from shared.wire.messages import Want

__all__ = ["PIECES", "Memory", "Payload", "Stamp"]

#: A batch is written in so many pieces.
PIECES = 2


@dataclass(frozen=True, slots=True)
class Stamp:
    """Who wrote what for which ticket."""

    writer: int
    ticket: Ticket
    stream: str
    epoch: int
    number: int
    empty: bool

    @classmethod
    def of(cls, writer: int, want: Want) -> Stamp:
        return cls(writer, want.ticket, want.stream, want.epoch, want.number, want.empty)


@dataclass(frozen=True, slots=True)
class Payload:
    """What follows a header by TCP; `whole`: it has the digest that the header names."""

    stamp: Stamp
    whole: bool


class Memory:
    """The slots of one trainer, the reserve included."""

    def __init__(self, slots: int) -> None:
        self.slots: list[list[Stamp | None]] = [[None] * PIECES for _ in range(slots)]
        #: Lock bytes that are held.
        self.locks: set[int] = set()
        #: Tickets that a living process has accepted for writing in place, by slot.
        self.writers: dict[int, set[tuple[int, Ticket]]] = {}

    def holds(self, slot: int, stamp: Stamp) -> bool:
        """Whether all of the slot was written by this one."""
        return all(piece == stamp for piece in self.slots[slot])

    def open_for(self, writer: int, ticket: Ticket) -> None:
        """A process may write there from now on."""
        self.writers.setdefault(ticket.slot, set()).add((writer, ticket))

    def close_for(self, writer: int, ticket: Ticket) -> None:
        """It cannot any more."""
        self.writers.get(ticket.slot, set()).discard((writer, ticket))
