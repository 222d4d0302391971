"""Messages about elastic worlds and the end of a job: how trainers get a place, and learn that all is over.

Rules: pure; as for all messages.
"""

from __future__ import annotations

from dataclasses import dataclass

from shared.wire.bounds import Maybe, record
from shared.wire.message_parts import (
    COUNT,
    EPOCH,
    FLAG,
    ID,
    MS,
    NAME,
    PROSE,
    RANK,
    WORLD,
    Message,
    RoundPlace,
    message,
    wire,
)

__all__ = ["Gathering", "JobEnds", "Join", "Placed", "StandsStill", "WorldOver"]


@message("Join", to="coordinator", by=("trainer",))
@dataclass(frozen=True, slots=True, kw_only=True)
class Join(Message):
    """Request of a trainer for a place in the next world of a stream, which has `least` to `most` trainers."""

    serial: int = wire(COUNT)
    job: str = wire(NAME)
    stream: str = wire(NAME)
    member: int = wire(ID)
    incarnation: int = wire(ID)
    name: str = wire(NAME)
    replicas: int = wire(WORLD)
    least: int = wire(WORLD)
    most: int = wire(WORLD)
    behind: int = wire(COUNT)


@message("Gathering")
@dataclass(frozen=True, slots=True, kw_only=True)
class Gathering(Message):
    """Not placed yet: ask again after `retry_ms`. While others train, the trainer is a spare, or joins soon."""

    serial: int = wire(COUNT)
    reason: str = wire(PROSE)
    behind: int = wire(COUNT)
    retry_ms: int = wire(MS)


@message("Placed")
@dataclass(frozen=True, slots=True, kw_only=True)
class Placed(Message):
    """Place of a trainer in the world: it attaches with this."""

    serial: int = wire(COUNT)
    version: int = wire(COUNT)
    rank: int = wire(RANK)
    world: int = wire(WORLD)


@message("WorldOver")
@dataclass(frozen=True, slots=True, kw_only=True)
class WorldOver(Message):
    """Notice that the world of this version ends, because trainers came or went: join the next one."""

    version: int = wire(COUNT)
    reason: str = wire(PROSE)


@message("JobEnds")
@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnds(Message):
    """Notice that the job ends and gives out no more batches.

    Exceptions are batches that a trainer has leased, if it `drains`, and the rounds before `last` that ranks in
    lockstep agreed on.
    """

    drains: bool = wire(FLAG)
    #: None until all ranks stand still: they may be a round apart, and all have to stop after the same one.
    last: RoundPlace | None = wire(Maybe(record(RoundPlace)))


@message("StandsStill", to="coordinator", by=("trainer",))
@dataclass(frozen=True, slots=True, kw_only=True)
class StandsStill(Message):
    """Answer of a rank in lockstep to the end: it hands out no round from this place on until it knows the last."""

    stream: str = wire(NAME)
    incarnation: int = wire(ID)
    epoch: int = wire(EPOCH)
    number: int = wire(COUNT)
