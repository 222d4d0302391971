"""What the coordinator's state is told, orders and has kept: the words between it, its service and its journal.

Rules: pure; events and facts are what happened, instructions are orders; nothing here decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from shared import messages as m
    from shared.errors import SettingsError

__all__ = [
    "Advanced",
    "CulpritFound",
    "Fact",
    "GroupFixed",
    "Instruction",
    "Keep",
    "Received",
    "Send",
    "StreamView",
    "Ticked",
]


class StreamView(Protocol):
    """What the coordinator has to know of a stream; pure."""

    digest: str
    evaluation: bool
    fields: tuple[m.WireField, ...]
    shapes: tuple[m.WireShape, ...]

    def batches(self, epoch: int, group: int) -> int:
        """How many batches an epoch has."""

    def most_batches(self, group: int) -> int:
        """No epoch has more."""

    def objection(self, group: int) -> SettingsError | None:
        """Why batches cannot come in groups of `group`; None where they can."""


# --- events ---


@dataclass(frozen=True, slots=True)
class Received:
    """A message from a peer."""

    peer: bytes
    message: m.Message


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time went by."""


# --- facts: what survives ---


@dataclass(frozen=True, slots=True)
class GroupFixed:
    """A stream's group."""

    stream: str
    group: int


@dataclass(frozen=True, slots=True)
class Advanced:
    """How far a stream was trained."""

    stream: str
    epoch: int
    number: int


@dataclass(frozen=True, slots=True)
class CulpritFound:
    """A sample that kills its decoder."""

    stream: str
    identity: str
    #: How the children ended that had it in hand.
    ends: str


Fact = GroupFixed | Advanced | CulpritFound


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


Instruction = Keep | Send
