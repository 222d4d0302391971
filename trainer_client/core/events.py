"""The core's input: events, in the order in which they happened.

Rules: pure; nothing here decides. `connection_id` is the core's own number for a connection to a worker. `seq` numbers
a trainer's upcoming batches, and only grows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shared.errors import StokerError
    from shared.wire import messages as m
    from shared.wire.message_parts import Cursor, DoneSet, Lease
    from trainer_client.core.upcoming import Position

__all__ = [
    "AttachAsked",
    "Checked",
    "ConnectionDown",
    "ConnectionEvent",
    "ConnectionFailed",
    "ConnectionUp",
    "CoordinatorAway",
    "CoordinatorSent",
    "EndAsked",
    "EndSettled",
    "EvaluationNamed",
    "Event",
    "GreetingFailed",
    "HandedBack",
    "LeaseSettled",
    "LockGone",
    "Opened",
    "QuestionAsked",
    "ResultsReported",
    "Saved",
    "StateAsked",
    "SumsAsked",
    "TakenBack",
    "Took",
    "WorkerSent",
]

# --- from consumers ---


@dataclass(frozen=True, slots=True)
class AttachAsked:
    """Request of the user to attach at this cursor (None: at the beginning), the first time or again. Serials grow.

    In queue mode there is no cursor but a done-set (None: the one that the coordinator has).
    """

    serial: int
    cursor: Cursor | None
    done: DoneSet | None = None


@dataclass(frozen=True, slots=True)
class Opened:
    """A reader's request to be served from now on; it began at `start` and has taken this many batches since."""

    reader: int
    start: Position
    taken: int


@dataclass(frozen=True, slots=True)
class Took:
    """A consumer took the batch. A signal may prevent this report; the core then infers it from later ones."""

    #: With the slot it tells a report about this sequence from one about the sequence before a redirection.
    seq: int
    slot: int


@dataclass(frozen=True, slots=True)
class HandedBack:
    """The last reference to the batch is gone, so its slot is free."""

    seq: int
    slot: int


@dataclass(frozen=True, slots=True)
class LeaseSettled:
    """In queue mode: a batch is `done`, failed, or (if not `costs_try`) given back without counting as a try."""

    lease: Lease
    #: Of the lease table that leased the batch: after a restore, batches of an older one are in no model.
    generation: int
    done: bool
    costs_try: bool = True
    #: In a named evaluation: what the batch adds to the metrics' variables.
    states: bytes = b""
    #: The user's reason for a failure.
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint of this name was written or restored."""

    name: str


@dataclass(frozen=True, slots=True)
class StateAsked:
    """In queue mode: the user asks for the done-set. Serials grow."""

    serial: int


@dataclass(frozen=True, slots=True)
class EvaluationNamed:
    """In queue mode: the evaluation whose batches are leased from now on; each brings `nbytes` of metric states."""

    name: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class SumsAsked:
    """In queue mode: the user asks for the sums over all batches of the named evaluation. Serials grow."""

    serial: int


@dataclass(frozen=True, slots=True)
class EndAsked:
    """In queue mode: the user asks for the lease of the work to be done once after training. Serials grow."""

    serial: int


@dataclass(frozen=True, slots=True)
class EndSettled:
    """The work after training is `done`, or the user failed at it."""

    serial: int
    done: bool


@dataclass(frozen=True, slots=True)
class ResultsReported:
    """The user reports the results of an epoch or an evaluation: means over a number of rows. Serials grow."""

    serial: int
    epoch: int
    step: int
    rows: int
    values: tuple[tuple[str, float | None], ...]
    #: Why the run ended; empty while it goes on.
    ended: str = ""
    #: The values are something that ranks agree on, and no results.
    aside: bool = False
    #: The evaluation that the values belong to; empty if none.
    evaluation: str = ""
    #: A piece of the metric states of this trainer's batches, and its number.
    part: int = 0
    states: bytes = b""


@dataclass(frozen=True, slots=True)
class QuestionAsked:
    """A question of the user that any worker can answer."""

    question: m.EpochQuery | m.NameQuery


# --- from the network ---


@dataclass(frozen=True, slots=True)
class CoordinatorSent:
    """A message came from the coordinator."""

    message: m.Message


@dataclass(frozen=True, slots=True)
class CoordinatorAway:
    """A message to the coordinator was not sent, because the connection is down or not up yet."""


@dataclass(frozen=True, slots=True)
class ConnectionUp:
    """A connection to a worker takes messages."""

    connection_id: int


@dataclass(frozen=True, slots=True)
class ConnectionDown:
    """A connection to a worker went down, with everything on its way; the worker itself may be alive."""

    connection_id: int


@dataclass(frozen=True, slots=True)
class ConnectionFailed:
    """A connection cannot be made: the endpoint is invalid, or the machine has no sockets left."""

    connection_id: int
    error: StokerError


@dataclass(frozen=True, slots=True)
class GreetingFailed:
    """The connection is up but does not take messages yet."""

    connection_id: int


@dataclass(frozen=True, slots=True)
class WorkerSent:
    """A message came from a worker; `payload` follows a `Pushed` whose batch is not in a slot.

    With a `Welcome`, `payload` says whether the worker holds its lock on our shared memory.
    """

    connection_id: int
    message: m.Message
    payload: Any = None


# --- what came of instructions ---


@dataclass(frozen=True, slots=True)
class Checked:
    """A payload was written or checked, as `Write` or `Check` ordered; `valid` if it matches its header."""

    connection_id: int
    header: m.Pushed
    valid: bool


@dataclass(frozen=True, slots=True)
class LockGone:
    """Proof that this worker cannot write into any slot any more: nobody locks its byte of our memory."""

    #: Of the worker: another incarnation at its endpoint is no such proof.
    incarnation: int


@dataclass(frozen=True, slots=True)
class TakenBack:
    """An offered batch was taken back (`won`), or the consumer was faster."""

    seq: int
    won: bool


ConnectionEvent = ConnectionUp | ConnectionDown | ConnectionFailed | GreetingFailed

Event = (
    AttachAsked
    | Opened
    | Took
    | HandedBack
    | LeaseSettled
    | StateAsked
    | EvaluationNamed
    | SumsAsked
    | Saved
    | EndAsked
    | EndSettled
    | QuestionAsked
    | ResultsReported
    | CoordinatorSent
    | CoordinatorAway
    | ConnectionEvent
    | WorkerSent
    | Checked
    | LockGone
    | TakenBack
)
