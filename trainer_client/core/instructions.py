"""What the core orders, to be carried out in this order; what comes of it is told as events of the same turn.

Rules: pure; nothing here decides.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shared.wire import messages as m
    from trainer_client.core.stream_spec import StreamSpec
    from trainer_client.core.upcoming import UpcomingBatch

__all__ = [
    "AnswerAttach",
    "AnswerQuestion",
    "Check",
    "Close",
    "Fail",
    "Greet",
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
    "TakeBack",
    "ToCoordinator",
    "ToWorker",
    "WakeFor",
    "Write",
    "WriteLog",
]

# --- the coordinator, and who waits for it ---


@dataclass(frozen=True, slots=True)
class ToCoordinator:
    """Send it, if the connection is up."""

    message: m.Message


@dataclass(frozen=True, slots=True)
class SendProgress:
    """Tell how far training and reading are; `members` is the version of the list of workers that is known."""

    members: int


@dataclass(frozen=True, slots=True)
class RenewCoordinator:
    """Nothing was heard for too long: make the connection anew."""


@dataclass(frozen=True, slots=True)
class AnswerAttach:
    """The request to attach is answered."""

    serial: int
    answer: m.Attached | BaseException


@dataclass(frozen=True, slots=True)
class AnswerQuestion:
    """A worker answered."""

    question: m.EpochQuery | m.NameQuery
    answer: int | str


@dataclass(frozen=True, slots=True)
class MakeSlots:
    """The stream is known now: make so many slots, the reserve included, for batches of this stream."""

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
    """Make the connection anew, under the same identity: one side may not know that it is gone."""

    connection_id: int


@dataclass(frozen=True, slots=True)
class Greet:
    """Say Hello; shared memory is offered under this lock byte."""

    connection_id: int
    lock_byte: int


@dataclass(frozen=True, slots=True)
class ToWorker:
    """Send it; where the connection does not take it, it is down."""

    connection_id: int
    message: m.Message


@dataclass(frozen=True, slots=True)
class Write:
    """Put a payload into its slot, and tell with `Checked` whether it is what its header says."""

    connection_id: int
    header: m.Pushed
    payload: Any


@dataclass(frozen=True, slots=True)
class Check:
    """Look at what a worker wrote into its slot, and tell with `Checked`."""

    connection_id: int
    header: m.Pushed


@dataclass(frozen=True, slots=True)
class Probe:
    """Does this worker still hold its lock? `LockGone` if not."""

    incarnation: int
    lock_byte: int


# --- consumers ---


@dataclass(frozen=True, slots=True)
class Offer:
    """The batch lies whole in its slot: a consumer may take it in its turn."""

    seq: int
    slot: int
    batch: UpcomingBatch
    header: m.Pushed


@dataclass(frozen=True, slots=True)
class TakeBack:
    """Take an offered batch back, if no consumer was faster; tell with `TakenBack`."""

    seq: int


@dataclass(frozen=True, slots=True)
class Serve:
    """What is offered from `head` on is for this reader; `ended`: its epoch has nothing left."""

    reader: int
    head: int
    ended: bool = False


@dataclass(frozen=True, slots=True)
class Restart:
    """Throw away what is offered: the next batch is number `head`, for this reader."""

    reader: int
    head: int


@dataclass(frozen=True, slots=True)
class WakeFor:
    """When consumers should wake the receive thread: room in the line (a batch was taken), a slot that comes back."""

    room: bool
    slots: bool


@dataclass(frozen=True, slots=True)
class Fail:
    """The feed cannot go on."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class WriteLog:
    """A line for people."""

    level: str
    event: str
    fields: dict[str, Any] = field(default_factory=dict)


Instruction = (
    ToCoordinator
    | SendProgress
    | RenewCoordinator
    | AnswerAttach
    | AnswerQuestion
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
    | WriteLog
)
