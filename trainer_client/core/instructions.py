"""What the core orders, to be carried out in order; what comes of it is reported as events of the same turn.

Rules: pure; nothing here decides.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shared.errors import EndedError
    from shared.wire import messages as m
    from shared.wire.parts import DoneSet
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

# --- the coordinator, and those who wait for it ---


@dataclass(frozen=True, slots=True)
class ToCoordinator:
    """Send this to the coordinator, if the connection is up."""

    message: m.Message


@dataclass(frozen=True, slots=True)
class SendProgress:
    """Report how far training and reading are; `members` is the version of our list of workers."""

    members: int


@dataclass(frozen=True, slots=True)
class RenewCoordinator:
    """Replace the connection, because nothing was heard for too long."""


@dataclass(frozen=True, slots=True)
class AnswerAttach:
    """Give the answer to the request to attach to whoever waits for it."""

    serial: int
    answer: m.Attached | BaseException


@dataclass(frozen=True, slots=True)
class AnswerEnd:
    """In queue mode: tell the caller whether the work that comes once after training `is_ours`; if not, it is done."""

    serial: int
    is_ours: bool


@dataclass(frozen=True, slots=True)
class StandStill:
    """The job comes to its end: hand out nothing more for now, and tell the coordinator how far that is."""


@dataclass(frozen=True, slots=True)
class EndReading:
    """The job comes to its end: whoever reads gets this error, `at_once` or where its batches end. In lockstep that is
    before the round `last` (its epoch and number); with `waits`, what all ranks do together is waited for until then.
    """

    error: EndedError
    at_once: bool
    last: tuple[int, int] | None = None
    waits: bool = False


@dataclass(frozen=True, slots=True)
class AnswerState:
    """In queue mode: tell the caller what is done, including all that this trainer settled."""

    serial: int
    done: DoneSet


@dataclass(frozen=True, slots=True)
class AnswerSums:
    """Give the caller the sums over all batches of an evaluation; None: some are not settled yet, so read on."""

    serial: int
    sums: bytes | None
    #: How many batches were given up, and are not in the sums.
    given_up: int


@dataclass(frozen=True, slots=True)
class AnswerResults:
    """Give the coordinator's answer to the caller that reported results."""

    answer: m.Aggregate


@dataclass(frozen=True, slots=True)
class AnswerQuestion:
    """Give a worker's answer to whoever asked."""

    question: m.EpochQuery | m.NameQuery
    answer: int | str | None


@dataclass(frozen=True, slots=True)
class MakeSlots:
    """The stream is known now: make this many slots, the reserve included, for its batches."""

    spec: StreamSpec
    slots: int


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
    """Replace the connection, under the same identity: one side may not know that it is gone."""

    connection_id: int


@dataclass(frozen=True, slots=True)
class Greet:
    """Say Hello, and offer shared memory under this lock byte."""

    connection_id: int
    lock_byte: int


@dataclass(frozen=True, slots=True)
class ToWorker:
    """Send this; a connection that does not take it counts as down."""

    connection_id: int
    message: m.Message


@dataclass(frozen=True, slots=True)
class Write:
    """Write a payload into its slot, and report with `Checked` whether it is what its header says."""

    connection_id: int
    header: m.Pushed
    payload: Any


@dataclass(frozen=True, slots=True)
class Check:
    """Check what a worker wrote into its slot, and report with `Checked`."""

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
    """The batch is complete in its slot: a consumer may take it in its turn."""

    seq: int
    slot: int
    batch: UpcomingBatch
    header: m.Pushed


@dataclass(frozen=True, slots=True)
class TakeBack:
    """Take an offered batch back, unless a consumer was faster; report with `TakenBack`."""

    seq: int


@dataclass(frozen=True, slots=True)
class Serve:
    """Give what is offered from `head` on to this reader; `ended`: its epoch has nothing left."""

    reader: int
    head: int
    ended: bool = False


@dataclass(frozen=True, slots=True)
class Restart:
    """Drop what is offered: the next batch is number `head`, for this reader."""

    reader: int
    head: int


@dataclass(frozen=True, slots=True)
class WakeFor:
    """What consumers should wake the receive thread for: room (a batch was taken), or a slot that came back."""

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
