"""Batches as the core offers them, and readers that are served as the receive thread serves them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.wire.message_parts import Ticket, WireShape
from shared.wire.messages import Pushed
from trainer_client.core.instructions import Offer
from trainer_client.core.upcoming import Position, UpcomingBatch

if TYPE_CHECKING:
    from trainer_client.network.outbox import Outbox, Reader

__all__ = ["START", "offer", "serve"]

START = Position(0, 0, 1)


def offer(number: int, rows: int = 4, *, last: bool = False) -> Offer:
    """A batch that is there."""
    shape = WireShape(rows, ())
    header = Pushed(
        ticket=Ticket(number, 1),
        epoch=0,
        number=number,
        empty=False,
        in_slot=True,
        shape=shape,
        nbytes=64,
        digest=0,
        rows=rows,
        masked=0,
        build_us=1,
        read_us=0,
        held_us=1,
        waiting=0,
        reason="",
        reasons=(),
    )
    batch = UpcomingBatch(START, 0, 0, number, empty=False, last=last)
    return Offer(seq=number, slot=number, batch=batch, header=header)


def serve(outbox: Outbox, reader: Reader, head: int = 0) -> None:
    """As the receive thread does once it was asked."""
    with outbox._lock:
        outbox._ask_to_be_served(reader)
    outbox.serve(reader.serial, head)
