"""What the core is told: facts, in the order in which they happened.

Rules: pure; nothing here decides. `connection_id` is the core's own number for a connection to a worker. `seq` numbers
the batches that lie ahead of a trainer, and only grows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shared.errors import StokerError
    from shared.wire import messages as m
    from shared.wire.parts import Cursor, DoneSet, Lease
    from trainer_client.core.upcoming import Position

__all__ = [
    "AttachAsked",
    "Checked",
    "ConnectionDown",
    "ConnectionFailed",
    "ConnectionUp",
    "CoordinatorAway",
    "CoordinatorSaid",
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
    "ResultsTold",
    "Saved",
    "StateAsked",
    "SumsAsked",
    "TakenBack",
    "Took",
    "WorkerSaid",
]

# --- from consumers ---


@dataclass(frozen=True, slots=True)
class AttachAsked:
    """The user wants to attach, perhaps again, at this cursor; None: at the beginning. Serials grow.

    In queue mode there is no cursor, but a set of what is `done`; None: whatever the coordinator knows to be.
    """

    serial: int
    cursor: Cursor | None
    done: DoneSet | None = None


@dataclass(frozen=True, slots=True)
class Opened:
    """A reader wants to be served from now on: it began at `start`, and has taken this many batches since."""

    reader: int
    start: Position
    taken: int


@dataclass(frozen=True, slots=True)
class Took:
    """The consumer has the batch. If a signal came in between, this is never reported and has to be inferred."""

    seq: int
    slot: int


@dataclass(frozen=True, slots=True)
class HandedBack:
    """Nobody references the batch any more."""

    seq: int
    slot: int


@dataclass(frozen=True, slots=True)
class LeaseSettled:
    """In queue mode: a batch is `done`, or the user failed at it; if not even that, it `costs_try` nothing."""

    lease: Lease
    generation: int
    done: bool
    costs_try: bool = True
    #: Of a named evaluation: what the batch adds to the metrics' variables.
    states: bytes = b""
    #: Why the user failed at it, in their words.
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint of this name was written or restored."""

    name: str


@dataclass(frozen=True, slots=True)
class StateAsked:
    """In queue mode: the user wants to know what is done. Serials grow."""

    serial: int


@dataclass(frozen=True, slots=True)
class EvaluationNamed:
    """In queue mode: the batches of this evaluation are leased from now on, and bring so many bytes of states each."""

    name: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class SumsAsked:
    """The user wants the sums over all batches of that evaluation. Serials grow."""

    serial: int


@dataclass(frozen=True, slots=True)
class EndAsked:
    """In queue mode: the user asks whether the work to be done once after training is ours. Serials grow."""

    serial: int


@dataclass(frozen=True, slots=True)
class EndSettled:
    """That work is `done`, or the user failed at it."""

    serial: int
    done: bool


@dataclass(frozen=True, slots=True)
class ResultsTold:
    """The user reports the results of an epoch or an evaluation: means over a number of rows. Serials grow."""

    serial: int
    epoch: int
    step: int
    rows: int
    values: tuple[tuple[str, float | None], ...]
    #: Why the run ended; empty while it goes on.
    ended: str = ""
    #: These are no results, but what ranks agree on.
    aside: bool = False
    #: The evaluation that the values are of; empty: of none.
    evaluation: str = ""
    #: A piece of the metric states of this trainer's batches, and which.
    part: int = 0
    states: bytes = b""


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
    """A message to the coordinator was not sent, because the connection is down or not up yet."""


@dataclass(frozen=True, slots=True)
class ConnectionUp:
    """A connection to a worker takes messages."""

    connection_id: int


@dataclass(frozen=True, slots=True)
class ConnectionDown:
    """It is down, and what was on its way is lost; whether the worker is alive is unknown."""

    connection_id: int


@dataclass(frozen=True, slots=True)
class ConnectionFailed:
    """It cannot be made: the endpoint is invalid, or the machine has no sockets left."""

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
    """A payload was written or checked, as `Write` or `Check` ordered; `valid`: it is what its header says."""

    connection_id: int
    header: m.Pushed
    valid: bool


@dataclass(frozen=True, slots=True)
class LockGone:
    """Proof that this worker cannot write into any slot any more."""

    incarnation: int


@dataclass(frozen=True, slots=True)
class TakenBack:
    """An offered batch was taken back (`won`), or the consumer was faster."""

    seq: int
    won: bool


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
    | ResultsTold
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
