"""What the core is told: facts, in the order in which they happened.

Rules: pure; nothing here decides. `link` is the core's own number for a connection to a worker; `seq` numbers the
batches that lie ahead of a trainer, and only grows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shared.errors import StokerError
    from shared.wire import messages as m
    from shared.wire.parts import Cursor
    from trainer_client.core.upcoming import Position

__all__ = [
    "AttachAsked",
    "Checked",
    "ConnectionDown",
    "ConnectionFailed",
    "ConnectionUp",
    "CoordinatorAway",
    "CoordinatorSaid",
    "Event",
    "GreetingFailed",
    "HandedBack",
    "LockGone",
    "Opened",
    "QuestionAsked",
    "TakenBack",
    "Took",
    "WorkerSaid",
]

# --- from consumers ---


@dataclass(frozen=True, slots=True)
class AttachAsked:
    """The user wants to attach (again) at this cursor; None: at the beginning. Serials grow."""

    serial: int
    cursor: Cursor | None


@dataclass(frozen=True, slots=True)
class Opened:
    """A reader wants to be served from now on: its way began at `start`, and it has taken so many batches of it."""

    reader: int
    start: Position
    taken: int


@dataclass(frozen=True, slots=True)
class Took:
    """The consumer has the batch. Where a signal came in between this is never said, and has to be inferred."""

    seq: int
    slot: int


@dataclass(frozen=True, slots=True)
class HandedBack:
    """Nobody looks into the batch any more."""

    seq: int
    slot: int


@dataclass(frozen=True, slots=True)
class QuestionAsked:
    """The user wants to know something that any worker can answer."""

    question: m.EpochQuery | m.NameQuery


# --- from the network ---


@dataclass(frozen=True, slots=True)
class CoordinatorSaid:
    """A message came from the coordinator."""

    message: m.Message


@dataclass(frozen=True, slots=True)
class CoordinatorAway:
    """What was to be said to the coordinator was not: the connection is not up (yet)."""


@dataclass(frozen=True, slots=True)
class ConnectionUp:
    """A connection to a worker takes messages."""

    connection_id: int


@dataclass(frozen=True, slots=True)
class ConnectionDown:
    """It is gone, and what was on it is lost; whether the worker lives is not known."""

    connection_id: int


@dataclass(frozen=True, slots=True)
class ConnectionFailed:
    """It cannot be made: the endpoint is nonsense, or the machine has no sockets left."""

    connection_id: int
    error: StokerError


@dataclass(frozen=True, slots=True)
class GreetingFailed:
    """The connection is up but does not take messages yet."""

    connection_id: int


@dataclass(frozen=True, slots=True)
class WorkerSaid:
    """A message came from a worker; `payload` is what followed a `Pushed` that is not in a slot."""

    connection_id: int
    message: m.Message
    payload: Any = None


# --- what came of instructions ---


@dataclass(frozen=True, slots=True)
class Checked:
    """A payload was written or looked at, as `Write` and `Check` ask for: `valid` says whether it is what it claims."""

    connection_id: int
    header: m.Pushed
    valid: bool


@dataclass(frozen=True, slots=True)
class LockGone:
    """Proof: this worker can write nowhere any more."""

    incarnation: int


@dataclass(frozen=True, slots=True)
class TakenBack:
    """A batch that had been offered: taken back (`won`), or the consumer was faster."""

    seq: int
    won: bool


Event = (
    AttachAsked
    | Opened
    | Took
    | HandedBack
    | QuestionAsked
    | CoordinatorSaid
    | CoordinatorAway
    | ConnectionUp
    | ConnectionDown
    | ConnectionFailed
    | GreetingFailed
    | WorkerSaid
    | Checked
    | LockGone
    | TakenBack
)
