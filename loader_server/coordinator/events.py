"""What the coordinator's state is told, what it orders and what it wants kept: its language with service and journal.

Rules: pure; events and facts say what happened, instructions are orders; nothing here decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shared.errors import SettingsError
    from shared.wire import messages as m
    from shared.wire.parts import WireField, WireShape

__all__ = [
    "Advanced",
    "CulpritFound",
    "Fact",
    "Forgot",
    "GroupFixed",
    "Instruction",
    "Keep",
    "RankTaken",
    "Received",
    "Send",
    "StreamView",
    "Ticked",
    "Warn",
]


class StreamView(Protocol):
    """What the coordinator has to know about a stream; its answers never block."""

    digest: str
    evaluation: bool
    fields: tuple[WireField, ...]
    shapes: tuple[WireShape, ...]
    producers: int
    base_fields: tuple[WireField, ...]

    def batches(self, epoch: int, group: int) -> int | None:
        """How many batches an epoch has; None while they are still being counted: ask again soon."""

    def most_batches(self, group: int) -> int:
        """The most batches that any epoch has."""

    def objection(self, group: int) -> SettingsError | None:
        """Why batches cannot come in groups of `group`; None if they can."""


# --- events ---


@dataclass(frozen=True, slots=True)
class Received:
    """A message from a peer."""

    peer: bytes
    message: m.Message


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time has passed."""


# --- facts: what survives ---


@dataclass(frozen=True, slots=True)
class GroupFixed:
    """A stream's group."""

    stream: str
    group: int


@dataclass(frozen=True, slots=True)
class Advanced:
    """How far a stream has been trained on."""

    stream: str
    epoch: int
    number: int


@dataclass(frozen=True, slots=True)
class RankTaken:
    """Who has had a rank, in the order in which they came: the last one has it now."""

    stream: str
    rank: int
    incarnations: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CulpritFound:
    """A sample that kills its decoder."""

    stream: str
    identity: str
    #: How the children that had it in hand ended.
    ends: str


@dataclass(frozen=True, slots=True)
class Forgot:
    """The sample is used again: undoes `CulpritFound`."""

    stream: str
    identity: str


Fact = GroupFixed | Advanced | RankTaken | CulpritFound | Forgot


# --- instructions ---


@dataclass(frozen=True, slots=True)
class Keep:
    """Write this to the journal before any message that follows is sent."""

    fact: Fact


@dataclass(frozen=True, slots=True)
class Send:
    """Send this to a peer."""

    peer: bytes
    message: m.Message


@dataclass(frozen=True, slots=True)
class Warn:
    """Write this to the log."""

    event: str
    fields: Mapping[str, Any]


Instruction = Keep | Send | Warn
