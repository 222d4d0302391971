"""Messages that cross a socket, as frozen dataclasses whose fields carry their bounds.

Rules: pure; a field's check stands where it is declared, in `wire(check)`; nothing is allocated from a number that was
not bounded first (see bounds); each class is described in PROTOCOL.md, under the same name. The sections below say who
sends what.
"""

from __future__ import annotations

from dataclasses import dataclass

from shared.stations.limit import LIMITS
from shared.wire.bounds import Choice, FixedList, Integer, Many, Maybe, Share, Text, record
from shared.wire.message_parts import (
    COUNT,
    EPOCH,
    FLAG,
    ID,
    KINDS,
    MS,
    NAME,
    PROSE,
    RANK,
    ROLES,
    SHARE,
    SIZE,
    UID,
    WORLD,
    BookMark,
    Cursor,
    DoneSet,
    Message,
    Seal,
    SharedSlots,
    Ticket,
    WireField,
    WireShape,
    WorkerAddress,
    message,
    wire,
)
from shared.wire.payload import COMPRESSIONS, FLOAT32_FORMS
from shared.wire.topics import server_messages  # noqa: F401 - registers its messages: every process knows all
from shared.wire.topics.piece_messages import BundlePiece, BundleWanted, GraphKept, GraphOffer, GraphPiece, GraphWanted
from shared.wire.topics.trace_messages import TracePage, TraceProcesses, TraceQuery, TraceWanted
from shared.wire.topics.work_messages import MEASURE, VERIFY, WORK, Aggregate, Leases, Outcomes, Recalled, Results
from shared.wire.topics.worker_messages import BuilderParts, Culprit, Culprits, Failing, Forgive, Forgiven
from shared.wire.topics.world_messages import Gathering, JobEnds, Join, Placed, StandsStill, WorldOver

__all__ = [
    "KINDS",
    "Aggregate",
    "Attach",
    "Attached",
    "Beat",
    "BuilderParts",
    "BundlePiece",
    "BundleWanted",
    "Cancel",
    "Cancelled",
    "Culprit",
    "Culprits",
    "Detach",
    "EpochAnswer",
    "EpochQuery",
    "Failing",
    "Forgive",
    "Forgiven",
    "Gathering",
    "GraphKept",
    "GraphOffer",
    "GraphPiece",
    "GraphWanted",
    "Hello",
    "JobEnds",
    "Join",
    "Leases",
    "Leave",
    "Limited",
    "Members",
    "Message",
    "NameAnswer",
    "NameQuery",
    "NotAttached",
    "Noted",
    "Outcomes",
    "Ping",
    "Placed",
    "Pong",
    "Progress",
    "Pushed",
    "Recalled",
    "Refused",
    "Register",
    "Registered",
    "Results",
    "StandsStill",
    "Status",
    "StatusQuery",
    "TracePage",
    "TraceProcesses",
    "TraceQuery",
    "TraceWanted",
    "Unbuilt",
    "Wait",
    "Want",
    "Welcome",
    "WorldOver",
]


# --- a trainer and the coordinator ---


@message("Attach", to="coordinator", by=("trainer",))
@dataclass(frozen=True, slots=True, kw_only=True)
class Attach(Message):
    """Claim of a trainer on ranks `rank` to `rank + replicas` of a stream's world."""

    serial: int = wire(COUNT)
    job: str = wire(NAME)
    stream: str = wire(NAME)
    rank: int = wire(RANK)
    replicas: int = wire(WORLD)
    world: int = wire(WORLD)
    incarnation: int = wire(ID)
    name: str = wire(NAME)
    cursor: Cursor | None = wire(Maybe(record(Cursor)))
    work: str | None = wire(Maybe(Choice((*WORK, MEASURE, VERIFY))))
    done: DoneSet | None = wire(Maybe(record(DoneSet)))
    world_version: int | None = wire(Maybe(COUNT))
    tenure: int | None = wire(Maybe(COUNT))


@message("Attached")
@dataclass(frozen=True, slots=True, kw_only=True)
class Attached(Message):
    """Acceptance of `Attach`: everything that a trainer has to know about the stream, and where it starts."""

    serial: int = wire(COUNT)
    job: str = wire(NAME)
    stream: str = wire(NAME)
    evaluation: bool = wire(FLAG)
    work: str | None = wire(Maybe(Choice(WORK)))
    book: BookMark | None = wire(Maybe(record(BookMark)))
    cursor: Cursor = wire(record(Cursor))
    next_group: int = wire(WORLD)
    tenure: int | None = wire(Maybe(COUNT))
    batches: int = wire(COUNT)
    most_batches: int = wire(COUNT)
    fields: tuple[WireField, ...] = wire(Many(record(WireField), 64))
    shapes: tuple[WireShape, ...] = wire(Many(record(WireShape), 4096))
    producers: int = wire(Integer(0, 4096))
    base_fields: tuple[WireField, ...] = wire(Many(record(WireField), 64))
    heartbeat_timeout_ms: int = wire(MS)
    max_bad: float = wire(Share())
    max_bad_samples: int | None = wire(Maybe(COUNT))
    members: int = wire(ID)
    workers: tuple[WorkerAddress, ...] = wire(Many(record(WorkerAddress), 4096))


@message("Wait")
@dataclass(frozen=True, slots=True, kw_only=True)
class Wait(Message):
    """Not ready yet: ask again after `retry_ms`."""

    serial: int = wire(COUNT)
    reason: str = wire(PROSE)
    retry_ms: int = wire(MS)


@message("NotAttached")
@dataclass(frozen=True, slots=True, kw_only=True)
class NotAttached(Message):
    """Refusal of a request to attach or to join, in full."""

    serial: int = wire(COUNT)
    code: str = wire(NAME)
    expected: str = wire(PROSE)
    got: str = wire(PROSE)
    remedy: str = wire(PROSE)


@message("Refused")
@dataclass(frozen=True, slots=True, kw_only=True)
class Refused(Message):
    """Refusal of a message. The one message whose form is the same in every version."""

    code: str = wire(NAME)
    expected: str = wire(PROSE)
    got: str = wire(PROSE)
    remedy: str = wire(PROSE)


@message("Progress", to="coordinator", by=("trainer",))
@dataclass(frozen=True, slots=True, kw_only=True)
class Progress(Message):
    """Heartbeat of a trainer: how far it has trained and read, and which share of its time it waited."""

    stream: str = wire(NAME)
    rank: int = wire(RANK)
    incarnation: int = wire(ID)
    epoch: int = wire(EPOCH)
    number: int = wire(COUNT)
    read_epoch: int = wire(EPOCH)
    read_number: int = wire(COUNT)
    waited_permille: int = wire(SHARE)
    batches_read: int = wire(COUNT)
    prefetch: int = wire(COUNT)
    wire_us: int = wire(COUNT)
    computed_us: int = wire(COUNT)
    metrics: str = wire(NAME)
    members: int = wire(ID)


@message("Noted")
@dataclass(frozen=True, slots=True, kw_only=True)
class Noted(Message):
    """Acknowledgement of a heartbeat whose sender is up to date."""


@message("Limited")
@dataclass(frozen=True, slots=True, kw_only=True)
class Limited(Message):
    """Acknowledgement of a trainer's heartbeat that tells what limits its stream, and gains in thousandths."""

    limit: str = wire(Choice(LIMITS))
    who: str = wire(NAME)
    loaders_gain: int | None = wire(Maybe(COUNT))
    worker_gain: int | None = wire(Maybe(COUNT))
    window_gain: int | None = wire(Maybe(COUNT))


@message("Members")
@dataclass(frozen=True, slots=True, kw_only=True)
class Members(Message):
    """Current workers: sent when they change, and to trainers that have an older list."""

    version: int = wire(ID)
    workers: tuple[WorkerAddress, ...] = wire(Many(record(WorkerAddress), 4096))


@message("Detach", to="coordinator", by=("trainer",))
@dataclass(frozen=True, slots=True, kw_only=True)
class Detach(Message):
    """Departure of a trainer in good order."""

    stream: str = wire(NAME)
    rank: int = wire(RANK)
    incarnation: int = wire(ID)


@message("StatusQuery", to="coordinator", by=ROLES)
@dataclass(frozen=True, slots=True, kw_only=True)
class StatusQuery(Message):
    """Question for the job's status, which anyone may ask."""


@message("Status")
@dataclass(frozen=True, slots=True, kw_only=True)
class Status(Message):
    """Status of the job, as JSON for people and scripts."""

    report: str = wire(Text(2**19))


# --- a worker and the coordinator ---


@message("Register", to="coordinator", by=("worker",))
@dataclass(frozen=True, slots=True, kw_only=True)
class Register(Message):
    """Registration of a worker that is ready to build; its digests must be the job's."""

    worker: str = wire(NAME)
    incarnation: int = wire(ID)
    endpoint: str = wire(NAME)
    boot_id: str = wire(NAME)
    uid: int = wire(UID)
    builder: str = wire(NAME)
    metrics: str = wire(NAME)


@message("Registered")
@dataclass(frozen=True, slots=True, kw_only=True)
class Registered(Message):
    """Acceptance of a worker into the job."""

    heartbeat_timeout_ms: int = wire(MS)


@message("Beat", to="coordinator", by=("worker",))
@dataclass(frozen=True, slots=True, kw_only=True)
class Beat(Message):
    """Heartbeat of a worker."""

    worker: str = wire(NAME)
    incarnation: int = wire(ID)
    waiting: int = wire(COUNT)
    building: int = wire(COUNT)
    built: int = wire(COUNT)
    masked: int = wire(COUNT)
    kept: int = wire(COUNT)
    decoded: int = wire(COUNT)
    taken: int = wire(COUNT)
    remote_bytes: int = wire(COUNT)
    remote_found: int = wire(COUNT)
    remote_waited: int = wire(COUNT)
    busy_us: int = wire(COUNT)
    awaited_us: int = wire(COUNT)
    read_us: int = wire(COUNT)
    held_up_us: int = wire(COUNT)
    throttled_us: int = wire(COUNT)
    queued_us: int = wire(COUNT)
    culprits: int = wire(ID)


@message("Leave", to="coordinator", by=("worker",))
@dataclass(frozen=True, slots=True, kw_only=True)
class Leave(Message):
    """Notice that a worker drains: send it no new wants."""

    worker: str = wire(NAME)
    incarnation: int = wire(ID)


# --- a trainer and a worker ---


@message("Hello", to="worker", by=("trainer",))
@dataclass(frozen=True, slots=True, kw_only=True)
class Hello(Message):
    """Start of a trainer's session with a worker, which may offer its slots."""

    job: str = wire(NAME)
    stream: str = wire(NAME)
    incarnation: int = wire(ID)
    name: str = wire(NAME, "")
    rank: int | None = wire(Maybe(RANK), None)
    shared: SharedSlots | None = wire(Maybe(record(SharedSlots)))
    verify: bool = wire(FLAG)
    yields: bool = wire(FLAG, default=False)
    seal: Seal | None = wire(Maybe(record(Seal)))


@message("Welcome")
@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome(Message):
    """Acceptance of `Hello`: whether batches come through shared memory, and if not, why."""

    worker: str = wire(NAME)
    incarnation: int = wire(ID)
    shared: bool = wire(FLAG)
    reason: str = wire(PROSE)
    float32: str = wire(Choice(FLOAT32_FORMS))
    compression: str = wire(Choice(COMPRESSIONS))
    sealed_port: int = wire(Integer(0, 65535))


@message("Want", to="worker", by=("trainer",))
@dataclass(frozen=True, slots=True, kw_only=True)
class Want(Message):
    """Request to build batch `number`, and to push it for this ticket when it is ready."""

    job: str = wire(NAME)
    stream: str = wire(NAME)
    epoch: int = wire(EPOCH)
    number: int = wire(COUNT)
    empty: bool = wire(FLAG)
    group: int = wire(WORLD)
    plan_digest: str = wire(NAME)
    attempt: int = wire(Integer(0, 1000))
    trainer: int = wire(ID)
    worker: int = wire(ID)
    ticket: Ticket = wire(record(Ticket))
    in_slot: bool = wire(FLAG)
    urgent: bool = wire(FLAG)


@message("Cancel", to="worker", by=("trainer",))
@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel(Message):
    """Request to free a ticket's slot; the answer says when it is free."""

    ticket: Ticket = wire(record(Ticket))


@message("Ping", to="worker", by=("trainer",))
@dataclass(frozen=True, slots=True, kw_only=True)
class Ping(Message):
    """Heartbeat of a trainer to a worker."""

    number: int = wire(COUNT)


@message("Pong")
@dataclass(frozen=True, slots=True, kw_only=True)
class Pong(Message):
    """Answer to `Ping`: the worker is alive, and holds these tickets of the trainer."""

    number: int = wire(COUNT)
    tickets: tuple[Ticket, ...] = wire(Many(record(Ticket), 2**16))
    sealed: int = wire(COUNT)
    waiting: int = wire(COUNT)


@message("EpochQuery", to="worker", by=("trainer",))
@dataclass(frozen=True, slots=True, kw_only=True)
class EpochQuery(Message):
    """Question for the number of batches of an epoch, which any worker can answer."""

    stream: str = wire(NAME)
    plan_digest: str = wire(NAME)
    epoch: int = wire(EPOCH)
    group: int = wire(WORLD)


@message("EpochAnswer")
@dataclass(frozen=True, slots=True, kw_only=True)
class EpochAnswer(Message):
    """Answer to `EpochQuery`."""

    stream: str = wire(NAME)
    epoch: int = wire(EPOCH)
    group: int = wire(WORLD)
    batches: int = wire(COUNT)


@message("NameQuery", to="worker", by=("trainer",))
@dataclass(frozen=True, slots=True, kw_only=True)
class NameQuery(Message):
    """Question for a sample's name as people know it, which any worker can answer."""

    stream: str = wire(NAME)
    plan_digest: str = wire(NAME)
    sample: int = wire(COUNT)


@message("NameAnswer")
@dataclass(frozen=True, slots=True, kw_only=True)
class NameAnswer(Message):
    """Answer to `NameQuery`."""

    stream: str = wire(NAME)
    sample: int = wire(COUNT)
    name: str | None = wire(Maybe(PROSE))


@message("Pushed")
@dataclass(frozen=True, slots=True, kw_only=True)
class Pushed(Message):
    """Built batch: in the slot, or in the payload frame that follows."""

    ticket: Ticket = wire(record(Ticket))
    epoch: int = wire(EPOCH)
    number: int = wire(COUNT)
    empty: bool = wire(FLAG)
    in_slot: bool = wire(FLAG)
    shape: WireShape = wire(record(WireShape))
    nbytes: int = wire(SIZE)
    digest: int = wire(ID)
    rows: int = wire(COUNT)
    masked: int = wire(COUNT)
    reason: str = wire(NAME)
    reasons: tuple[tuple[str, int], ...] = wire(Many(FixedList((NAME, COUNT)), 16))
    build_us: int = wire(COUNT)
    read_us: int = wire(COUNT)
    held_us: int = wire(COUNT)
    waiting: int = wire(COUNT)


@message("Unbuilt")
@dataclass(frozen=True, slots=True, kw_only=True)
class Unbuilt(Message):
    """Answer to a `Want` that cannot or will not be built; no thread of the worker can write into the slot any more."""

    ticket: Ticket = wire(record(Ticket))
    code: str = wire(NAME)
    expected: str = wire(PROSE)
    got: str = wire(PROSE)
    where: str = wire(PROSE)
    remedy: str = wire(PROSE)


@message("Cancelled")
@dataclass(frozen=True, slots=True, kw_only=True)
class Cancelled(Message):
    """Answer to `Cancel`: the slot is free; no thread of the worker can write into it any more."""

    ticket: Ticket = wire(record(Ticket))
