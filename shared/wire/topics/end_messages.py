"""Messages about the end of a job by order, and the last round that ranks agree on.

Rules: pure; as for all messages.
"""

from __future__ import annotations

from dataclasses import dataclass

from shared.wire.bounds import Maybe, record
from shared.wire.declared import Message, message
from shared.wire.parts import COUNT, EPOCH, FLAG, ID, NAME, RoundPlace, wire

__all__ = ["JobEnds", "StandsStill"]


@message("JobEnds")
@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnds(Message):
    """Notice that the job ends and gives out no more batches.

    Exceptions are batches that a trainer has leased, if it `drains`, and the rounds before `last` that ranks in
    lockstep agreed on.
    """

    drains: bool = wire(FLAG)
    last: RoundPlace | None = wire(Maybe(record(RoundPlace)))


@message("StandsStill", to="coordinator", by=("trainer",))
@dataclass(frozen=True, slots=True, kw_only=True)
class StandsStill(Message):
    """Answer of a rank in lockstep to the end: it hands out no round from this place on, until it is told the last."""

    stream: str = wire(NAME)
    incarnation: int = wire(ID)
    epoch: int = wire(EPOCH)
    number: int = wire(COUNT)
