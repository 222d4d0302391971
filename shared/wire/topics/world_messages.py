"""Messages about elastic worlds: how trainers get a place, and learn that the world is over.

Rules: pure; as for all messages.
"""

from __future__ import annotations

from dataclasses import dataclass

from shared.wire.declared import Message, message
from shared.wire.parts import COUNT, ID, MS, NAME, PROSE, RANK, WORLD, wire

__all__ = ["Gathering", "Join", "Placed", "WorldOver"]


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
