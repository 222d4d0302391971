"""What `Wants` is told, and what it orders: the words between the decisions and the thread that carries them out.

Rules: pure; events are facts, instructions are orders; nothing here decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shared.errors import StokerError
    from shared.messages import Ticket
    from trainer_client.course import Target

__all__ = [
    "Arrived",
    "Consumed",
    "Deliver",
    "Event",
    "Extended",
    "Fail",
    "GaveUp",
    "Heard",
    "Held",
    "Instruction",
    "Refocused",
    "Retract",
    "Retracted",
    "SendCancel",
    "SendPing",
    "SendWant",
    "SlotReturned",
    "Ticked",
    "WorkerCut",
    "WorkerDead",
    "WorkerLeft",
    "WorkerUp",
]

# --- events: facts ---


@dataclass(frozen=True, slots=True)
class WorkerUp:
    """A worker welcomed us; `in_slot`: it writes into our slots in place."""

    worker: int
    name: str
    in_slot: bool


@dataclass(frozen=True, slots=True)
class Heard:
    """Something came from the worker."""

    worker: int


@dataclass(frozen=True, slots=True)
class WorkerDead:
    """Proved: it can write nowhere any more. `crashed` is false where it ended in good order."""

    worker: int
    crashed: bool = True


@dataclass(frozen=True, slots=True)
class WorkerCut:
    """The connection is gone and what was on it is lost; whether the worker lives is not known."""

    worker: int


@dataclass(frozen=True, slots=True)
class WorkerLeft:
    """It drains: what it has it may still answer, but it takes nothing new."""

    worker: int


@dataclass(frozen=True, slots=True)
class Arrived:
    """An answer with a batch, checked (`valid`) against ticket, digest and layout."""

    worker: int
    ticket: Ticket
    valid: bool


@dataclass(frozen=True, slots=True)
class GaveUp:
    """An answer without a batch: cancelled (`error` is None), `passing` (a reason that will pass), or an error."""

    worker: int
    ticket: Ticket
    error: StokerError | None
    passing: bool = False


@dataclass(frozen=True, slots=True)
class Held:
    """The answer to ping `number`: the tickets of ours that the worker holds."""

    worker: int
    number: int
    tickets: frozenset[Ticket]


@dataclass(frozen=True, slots=True)
class Extended:
    """The course goes on with these."""

    targets: tuple[Target, ...]


@dataclass(frozen=True, slots=True)
class Refocused:
    """Another course is read from now on; what was asked for the last one is void. Its first number is `head`."""

    head: int


@dataclass(frozen=True, slots=True)
class Consumed:
    """The consumer took the batches before `head`."""

    head: int


@dataclass(frozen=True, slots=True)
class Retracted:
    """The batch `seq` was taken back from the inbox; its slot is empty again (None: the consumer was faster)."""

    seq: int
    slot: int | None


@dataclass(frozen=True, slots=True)
class SlotReturned:
    """The ledger has a free slot more."""


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time went by."""


Event = (
    WorkerUp
    | Heard
    | WorkerDead
    | WorkerCut
    | WorkerLeft
    | Arrived
    | GaveUp
    | Held
    | Extended
    | Refocused
    | Consumed
    | Retracted
    | SlotReturned
    | Ticked
)


# --- instructions: orders ---


@dataclass(frozen=True, slots=True)
class SendWant:
    """Ask this worker for it."""

    worker: int
    target: Target
    ticket: Ticket
    attempt: int
    in_slot: bool
    urgent: bool


@dataclass(frozen=True, slots=True)
class SendCancel:
    """Ask this worker for the credit back."""

    worker: int
    ticket: Ticket


@dataclass(frozen=True, slots=True)
class SendPing:
    """Ask this worker for a sign of life."""

    worker: int
    number: int


@dataclass(frozen=True, slots=True)
class Deliver:
    """Number `seq` lies whole in `slot`: put it into the inbox."""

    seq: int
    slot: int
    target: Target


@dataclass(frozen=True, slots=True)
class Retract:
    """Take number `seq` back from the inbox, and tell with `Retracted`."""

    seq: int


@dataclass(frozen=True, slots=True)
class Fail:
    """The feed cannot go on."""

    error: StokerError


Instruction = SendWant | SendCancel | SendPing | Deliver | Retract | Fail
