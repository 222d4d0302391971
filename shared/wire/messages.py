"""Every message that crosses a socket, as a frozen dataclass whose fields carry their bounds.

Rules: pure; a field's check stands where it is declared, in `wire(check)`; nothing is allocated from a number that was
not bounded first (see bounds); each class is described in PROTOCOL.md, under the same name. Who sends what: see the
sections below.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

from shared.wire.bounds import Blob, Boolean, Check, Dtype, Integer, Many, Maybe, OneOf, Rate, Row, Share, Text, record
from shared.wire.payload import COMPRESSIONS, FLOAT32_FORMS

__all__ = [
    "KINDS",
    "Attach",
    "Attached",
    "Beat",
    "Cancel",
    "Cancelled",
    "Culprit",
    "Culprits",
    "Cursor",
    "Detach",
    "EpochAnswer",
    "EpochQuery",
    "Forgive",
    "Forgiven",
    "Hello",
    "Leave",
    "Members",
    "Message",
    "NameAnswer",
    "NameQuery",
    "NotAttached",
    "Noted",
    "Part",
    "Ping",
    "Pong",
    "Progress",
    "Pushed",
    "Refused",
    "Register",
    "Registered",
    "Seal",
    "SharedSlots",
    "Status",
    "StatusQuery",
    "Ticket",
    "Unbuilt",
    "Wait",
    "Want",
    "Welcome",
    "WireField",
    "WireShape",
    "WorkerAddress",
]


def wire(check: Check) -> Any:  # noqa: ANN401 - a dataclass field
    """A field of a message, with the check that bounds it."""
    return dataclasses.field(metadata={"check": check})


_name = Text(200)
_prose = Text(4000)
_flag = Boolean()
_count = Integer(0, 2**48)
_epoch = Integer(0, 2**31)
_id = Integer(0, 2**64 - 1)
_size = Integer(0, 2**40)
_slot = Integer(0, 2**16)
_rank = Integer(0, 4095)
_world = Integer(1, 4096)
_ms = Integer(0, 10**9)
_uid = Integer(0, 2**32)
_share = Integer(0, 1000)


class Part:
    """A record inside a message."""

    __slots__ = ()
    #: Names of the fields, in order.
    __match_args__: ClassVar[tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Ticket(Part):
    """A slot, and how often it has been lent: names one credit."""

    slot: int = wire(_slot)
    generation: int = wire(_count)


@dataclass(frozen=True, slots=True)
class Cursor(Part):
    """The first batch number not yet trained on, and what it counts in."""

    epoch: int = wire(_epoch)
    number: int = wire(_count)
    group: int = wire(_world)
    plan_digest: str = wire(_name)


@dataclass(frozen=True, slots=True)
class WireField(Part):
    """`shared.wire.layout.Field` on the wire."""

    key: str = wire(_name)
    dtype: str = wire(Dtype())
    shape: tuple[int | None, ...] = wire(Many(Maybe(_size), 8))
    per_second: float | None = wire(Maybe(Rate()))


@dataclass(frozen=True, slots=True)
class WireShape(Part):
    """`shared.wire.layout.BucketShape` on the wire."""

    rows: int = wire(Integer(1, 2**24))
    lengths: tuple[tuple[str, int], ...] = wire(Many(Row((_name, _count)), 64))


@dataclass(frozen=True, slots=True)
class WorkerAddress(Part):
    """Where a worker listens for wants."""

    worker: str = wire(_name)
    incarnation: int = wire(_id)
    endpoint: str = wire(_name)
    boot_id: str = wire(_name)
    uid: int = wire(_uid)


@dataclass(frozen=True, slots=True)
class SharedSlots(Part):
    """The trainer's slots as a memfd that a worker on the same host may open."""

    boot_id: str = wire(_name)
    uid: int = wire(_uid)
    pid: int = wire(Integer(1, 2**31))
    fd: int = wire(Integer(0, 2**20))
    nonce: bytes = wire(Blob(16))
    slots: int = wire(_slot)
    slot_bytes: int = wire(_size)
    lock_byte: int = wire(Integer(0, 2**20))


@dataclass(frozen=True, slots=True)
class Seal(Part):
    """Under which key payloads are to be sealed, and where they are to be sent."""

    key: bytes = wire(Blob(32))
    identity: bytes = wire(Blob(16))

    def __repr__(self) -> str:
        return "Seal(…)"


class Message:
    """A whole message; `kind` is its name on the wire."""

    __slots__ = ()
    kind: ClassVar[str]
    checks: ClassVar[dict[str, Check]]


#: Every message class by its name on the wire.
KINDS: dict[str, type[Message]] = {}


def _message(kind: type[Message]) -> type[Message]:
    kind.kind = kind.__name__
    kind.checks = {field.name: field.metadata["check"] for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    KINDS[kind.kind] = kind
    return kind


# --- a trainer and the coordinator ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Attach(Message):
    """A trainer claims ranks `rank` to `rank + replicas` of a stream's world."""

    serial: int = wire(_count)
    job: str = wire(_name)
    stream: str = wire(_name)
    rank: int = wire(_rank)
    replicas: int = wire(_world)
    world: int = wire(_world)
    incarnation: int = wire(_id)
    name: str = wire(_name)
    cursor: Cursor | None = wire(Maybe(record(Cursor)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Attached(Message):
    """All that a trainer has to know of the stream, and where it starts."""

    serial: int = wire(_count)
    job: str = wire(_name)
    stream: str = wire(_name)
    evaluation: bool = wire(_flag)
    cursor: Cursor = wire(record(Cursor))
    next_group: int = wire(_world)
    batches: int = wire(_count)
    most_batches: int = wire(_count)
    fields: tuple[WireField, ...] = wire(Many(record(WireField), 64))
    shapes: tuple[WireShape, ...] = wire(Many(record(WireShape), 4096))
    heartbeat_timeout_ms: int = wire(_ms)
    max_bad: float = wire(Share())
    members: int = wire(_id)
    workers: tuple[WorkerAddress, ...] = wire(Many(record(WorkerAddress), 4096))


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait(Message):
    """Not ready yet: ask again after `retry_ms`."""

    serial: int = wire(_count)
    reason: str = wire(_prose)
    retry_ms: int = wire(_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class NotAttached(Message):
    """The request to attach was understood, and the answer is no."""

    serial: int = wire(_count)
    code: str = wire(_name)
    expected: str = wire(_prose)
    got: str = wire(_prose)
    remedy: str = wire(_prose)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused(Message):
    """Understood, and no. The one message whose form is the same in every version."""

    code: str = wire(_name)
    expected: str = wire(_prose)
    got: str = wire(_prose)
    remedy: str = wire(_prose)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress(Message):
    """A trainer's heartbeat: how far it has trained, how far it has read, and how much of its time it waited."""

    stream: str = wire(_name)
    rank: int = wire(_rank)
    incarnation: int = wire(_id)
    epoch: int = wire(_epoch)
    number: int = wire(_count)
    read_epoch: int = wire(_epoch)
    read_number: int = wire(_count)
    waited_permille: int = wire(_share)
    members: int = wire(_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Noted(Message):
    """The heartbeat came, and the trainer's list of members is the latest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Members(Message):
    """The workers that are there now: sent when they change, and to whoever knows an older list."""

    version: int = wire(_id)
    workers: tuple[WorkerAddress, ...] = wire(Many(record(WorkerAddress), 4096))


@dataclass(frozen=True, slots=True, kw_only=True)
class Detach(Message):
    """A trainer leaves in good order."""

    stream: str = wire(_name)
    rank: int = wire(_rank)
    incarnation: int = wire(_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusQuery(Message):
    """Anyone asks how things stand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Status(Message):
    """How things stand, as JSON for people and scripts."""

    report: str = wire(Text(2**19))


# --- a worker and the coordinator ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Register(Message):
    """A worker is ready to build; its digests must be the job's."""

    worker: str = wire(_name)
    incarnation: int = wire(_id)
    endpoint: str = wire(_name)
    boot_id: str = wire(_name)
    uid: int = wire(_uid)
    builder: str = wire(_name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered(Message):
    """The worker belongs to the job."""

    heartbeat_timeout_ms: int = wire(_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat(Message):
    """A worker's heartbeat."""

    worker: str = wire(_name)
    incarnation: int = wire(_id)
    waiting: int = wire(_count)
    building: int = wire(_count)
    built: int = wire(_count)
    masked: int = wire(_count)
    culprits: int = wire(_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Culprit(Message):
    """A worker saw that a sample kills the process that decodes it; `ends` says how."""

    worker: str = wire(_name)
    stream: str = wire(_name)
    identity: str = wire(_prose)
    ends: str = wire(_name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Culprits(Message):
    """The samples that are known to kill decoders, by the digest of stream and identity: mask them unread."""

    version: int = wire(_id)
    keys: tuple[int, ...] = wire(Many(_id, 2**15))


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgive(Message):
    """Somebody mended a culprit, or all of them: use it again."""

    stream: str = wire(_name)
    identity: str = wire(_prose)


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgiven(Message):
    """So many convictions were forgotten."""

    count: int = wire(_count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave(Message):
    """A worker drains: no new wants for it."""

    worker: str = wire(_name)
    incarnation: int = wire(_id)


# --- a trainer and a worker ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello(Message):
    """A trainer opens its session with a worker, and may offer its slots."""

    job: str = wire(_name)
    stream: str = wire(_name)
    incarnation: int = wire(_id)
    shared: SharedSlots | None = wire(Maybe(record(SharedSlots)))
    verify: bool = wire(_flag)
    seal: Seal | None = wire(Maybe(record(Seal)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome(Message):
    """The worker serves this trainer, through shared memory or (and why) not."""

    worker: str = wire(_name)
    incarnation: int = wire(_id)
    shared: bool = wire(_flag)
    reason: str = wire(_prose)
    float32: str = wire(OneOf(FLOAT32_FORMS))
    compression: str = wire(OneOf(COMPRESSIONS))
    sealed_port: int = wire(Integer(0, 65535))


@dataclass(frozen=True, slots=True, kw_only=True)
class Want(Message):
    """Build batch `number`, push it when it is ready, here is the credit."""

    job: str = wire(_name)
    stream: str = wire(_name)
    epoch: int = wire(_epoch)
    number: int = wire(_count)
    empty: bool = wire(_flag)
    group: int = wire(_world)
    plan_digest: str = wire(_name)
    attempt: int = wire(Integer(0, 1000))
    trainer: int = wire(_id)
    worker: int = wire(_id)
    ticket: Ticket = wire(record(Ticket))
    in_slot: bool = wire(_flag)
    urgent: bool = wire(_flag)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel(Message):
    """The credit is wanted back; the answer says when it is."""

    ticket: Ticket = wire(record(Ticket))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ping(Message):
    """A trainer's heartbeat to a worker."""

    number: int = wire(_count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pong(Message):
    """The worker lives, and holds these tickets of the asker."""

    number: int = wire(_count)
    tickets: tuple[Ticket, ...] = wire(Many(record(Ticket), 2**16))
    sealed: int = wire(_count)
    waiting: int = wire(_count)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochQuery(Message):
    """How many batches has this epoch? Any worker can say."""

    stream: str = wire(_name)
    plan_digest: str = wire(_name)
    epoch: int = wire(_epoch)
    group: int = wire(_world)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochAnswer(Message):
    """That many."""

    stream: str = wire(_name)
    epoch: int = wire(_epoch)
    group: int = wire(_world)
    batches: int = wire(_count)


@dataclass(frozen=True, slots=True, kw_only=True)
class NameQuery(Message):
    """What do people call this sample? Any worker can say."""

    stream: str = wire(_name)
    plan_digest: str = wire(_name)
    sample: int = wire(_count)


@dataclass(frozen=True, slots=True, kw_only=True)
class NameAnswer(Message):
    """That."""

    stream: str = wire(_name)
    sample: int = wire(_count)
    name: str = wire(_prose)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pushed(Message):
    """The batch: in the slot, or in the payload frame that follows."""

    ticket: Ticket = wire(record(Ticket))
    epoch: int = wire(_epoch)
    number: int = wire(_count)
    empty: bool = wire(_flag)
    in_slot: bool = wire(_flag)
    shape: WireShape = wire(record(WireShape))
    nbytes: int = wire(_size)
    digest: int = wire(_id)
    rows: int = wire(_count)
    masked: int = wire(_count)
    reason: str = wire(_name)
    build_us: int = wire(_count)
    waiting: int = wire(_count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unbuilt(Message):
    """The worker cannot or will not build it; no thread of it can write into the slot any more."""

    ticket: Ticket = wire(record(Ticket))
    code: str = wire(_name)
    expected: str = wire(_prose)
    got: str = wire(_prose)
    where: str = wire(_prose)
    remedy: str = wire(_prose)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancelled(Message):
    """The credit is back; no thread of the worker can write into the slot any more."""

    ticket: Ticket = wire(record(Ticket))


for _kind in (
    Attach, Attached, Wait, NotAttached, Refused, Progress, Noted, Members, Detach, StatusQuery, Status,
    Register, Registered, Beat, Culprit, Culprits, Forgive, Forgiven, Leave,
    Hello, Welcome, Want, Cancel, Ping, Pong, EpochQuery, EpochAnswer, NameQuery,
    NameAnswer, Pushed, Unbuilt, Cancelled,
):  # fmt: skip
    _message(_kind)
