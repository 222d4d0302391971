"""The core's output: instructions, to be carried out in order; their outcomes are events of the same turn.

Rules: pure; nothing here decides.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shared.errors import EndedError
    from shared.wire import messages as m
    from shared.wire.message_parts import DoneSet
    from trainer_client.core.stream_spec import StreamSpec
    from trainer_client.core.upcoming import UpcomingBatch

__all__ = [
    "AnswerAttach",
    "AnswerEnd",
    "AnswerQuestion",
    "AnswerResults",
    "AnswerState",
    "AnswerSums",
    "Check",
    "Close",
    "DropSlots",
    "EndReading",
    "Fail",
    "Greet",
    "HangUp",
    "Instruction",
    "MakeSlots",
    "Offer",
    "Open",
    "Probe",
    "Renew",
    "RenewCoordinator",
    "Restart",
    "SendProgress",
    "Serve",
    "StandStill",
    "TakeBack",
    "ToCoordinator",
    "ToWorker",
    "WakeFor",
    "Write",
    "WriteLog",
]

# --- the coordinator, and callers that wait for it ---


@dataclass(frozen=True, slots=True)
class ToCoordinator:
    """Send this message to the coordinator; report `CoordinatorAway` if the connection is not up."""

    message: m.Message


@dataclass(frozen=True, slots=True)
class SendProgress:
    """Report how far training and reading are; `members` is the version of our list of workers."""

    members: int


@dataclass(frozen=True, slots=True)
class RenewCoordinator:
    """Replace the connection to the coordinator, which has been silent for too long."""


@dataclass(frozen=True, slots=True)
class AnswerAttach:
    """Give the coordinator's answer, or an error, to the caller that asked to attach."""

    serial: int
    answer: m.Attached | BaseException


@dataclass(frozen=True, slots=True)
class AnswerEnd:
    """In queue mode: tell the caller whether the work after training `is_ours`; if not, it is done already.

    For a caller that reported this work as done or failed, it only says that the report is on the coordinator's disk.
    """

    serial: int
    is_ours: bool


@dataclass(frozen=True, slots=True)
class StandStill:
    """Hand out no more batches, because the job is ending; tell the coordinator how far readers have come."""


@dataclass(frozen=True, slots=True)
class EndReading:
    """Raise this error in readers, because the job is ending: `at_once`, or where their batches end.

    In lockstep they end before the round `last` (its epoch and number). With `waits`, callers that wait for all ranks
    go on waiting, because the ranks still train up to that round; without it they get the error as well.
    """

    error: EndedError
    at_once: bool
    last: tuple[int, int] | None = None
    waits: bool = False


@dataclass(frozen=True, slots=True)
class AnswerState:
    """In queue mode: give the caller the done-set, which includes all that this trainer had settled when asked."""

    serial: int
    done: DoneSet


@dataclass(frozen=True, slots=True)
class AnswerSums:
    """Give the caller the sums over all batches of an evaluation; None if some are not settled yet, so it reads on."""

    serial: int
    sums: bytes | None
    #: How many batches were given up, and so are missing from the sums.
    given_up: int


@dataclass(frozen=True, slots=True)
class AnswerResults:
    """Give the coordinator's answer to the caller that reported results."""

    answer: m.Aggregate


@dataclass(frozen=True, slots=True)
class AnswerQuestion:
    """Give a worker's answer to the callers that asked this question."""

    question: m.EpochQuery | m.NameQuery
    answer: int | str | None


@dataclass(frozen=True, slots=True)
class MakeSlots:
    """Make this many slots, the reserve included, for the batches of the stream, which is known now."""

    spec: StreamSpec
    slots: int


@dataclass(frozen=True, slots=True)
class DropSlots:
    """Give the memory of these free slots back to the system; they may be lent again all the same."""

    slots: tuple[int, ...]


# --- workers ---


@dataclass(frozen=True, slots=True)
class Open:
    """Connect to a worker."""

    connection_id: int
    endpoint: str


@dataclass(frozen=True, slots=True)
class Close:
    """Hang up and forget the connection."""

    connection_id: int


@dataclass(frozen=True, slots=True)
class Renew:
    """Replace the connection under the same identity, in case one side has not noticed that it is gone."""

    connection_id: int


@dataclass(frozen=True, slots=True)
class Greet:
    """Send Hello, with an offer of shared memory under this lock byte."""

    connection_id: int
    lock_byte: int


@dataclass(frozen=True, slots=True)
class ToWorker:
    """Send this message to a worker; a connection that does not take it counts as down."""

    connection_id: int
    message: m.Message


@dataclass(frozen=True, slots=True)
class Write:
    """Write a payload into its slot, and report with `Checked` whether it matches its header."""

    connection_id: int
    header: m.Pushed
    payload: Any


@dataclass(frozen=True, slots=True)
class Check:
    """Compare the bytes that a worker wrote into a slot with their digest, and report with `Checked`."""

    connection_id: int
    header: m.Pushed


@dataclass(frozen=True, slots=True)
class Probe:
    """Check whether this worker still holds its lock; report `LockGone` if not."""

    incarnation: int
    lock_byte: int


# --- consumers ---


@dataclass(frozen=True, slots=True)
class Offer:
    """Offer a batch, complete in its slot, to consumers, who take batches in the order of `seq`."""

    seq: int
    slot: int
    batch: UpcomingBatch
    header: m.Pushed
    #: The name of the worker that built it.
    worker: str = ""


@dataclass(frozen=True, slots=True)
class TakeBack:
    """Take an offered batch back, unless a consumer was faster; report with `TakenBack`."""

    seq: int


@dataclass(frozen=True, slots=True)
class Serve:
    """Give the offered batches from `head` on to this reader; `ended` if its epoch has none left."""

    reader: int
    head: int
    ended: bool = False


@dataclass(frozen=True, slots=True)
class Restart:
    """Drop all offered batches; the next one is number `head`, for this reader."""

    reader: int
    head: int


@dataclass(frozen=True, slots=True)
class WakeFor:
    """Set when consumers wake the receive thread: for room (a batch was taken), or for slots that come back."""

    room: bool
    slots: bool


@dataclass(frozen=True, slots=True)
class Fail:
    """End the feed with this error."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class HangUp:
    """Leave the job and close all connections: the feed is over for good."""


@dataclass(frozen=True, slots=True)
class WriteLog:
    """Write a log line."""

    level: str
    event: str
    fields: dict[str, Any] = field(default_factory=dict)


Instruction = (
    ToCoordinator
    | SendProgress
    | RenewCoordinator
    | AnswerAttach
    | AnswerEnd
    | StandStill
    | EndReading
    | AnswerState
    | AnswerSums
    | AnswerQuestion
    | AnswerResults
    | MakeSlots
    | DropSlots
    | Open
    | Close
    | Renew
    | Greet
    | ToWorker
    | Write
    | Check
    | Probe
    | Offer
    | TakeBack
    | Serve
    | Restart
    | WakeFor
    | Fail
    | HangUp
    | WriteLog
)
