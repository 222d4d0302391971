"""What messages are made of: their declaration and registry, the records inside them, and checks that fields share.

Rules: pure; a message registers itself where it is declared, with its name on the wire and the roles that may send it
to which server; its checks stand at its fields.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

from shared.wire.batch_layout import BucketShape, Field
from shared.wire.bounds import (
    Blob,
    Boolean,
    Check,
    Choice,
    Dtype,
    FixedList,
    Integer,
    Many,
    Maybe,
    Number,
    Rate,
    Text,
    record,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = [
    "COUNT",
    "EPOCH",
    "FLAG",
    "ID",
    "KINDS",
    "MS",
    "NAME",
    "PROSE",
    "RANK",
    "ROLES",
    "SHARE",
    "SIZE",
    "SLOT",
    "SPEAKERS",
    "UID",
    "WORLD",
    "BookMark",
    "Cursor",
    "DoneSet",
    "EpochDone",
    "Failure",
    "Lease",
    "Message",
    "MetricStates",
    "MetricSums",
    "Part",
    "PartGradient",
    "Role",
    "RoundPlace",
    "Seal",
    "Server",
    "SharedSlots",
    "TableForm",
    "TableGradient",
    "Ticket",
    "TraceProcess",
    "VariablePart",
    "WireField",
    "WireShape",
    "WorkerAddress",
    "clipped",
    "escaped",
    "message",
    "wire",
]


#: Roles that a key can give its holder.
Role = Literal["coordinator", "worker", "trainer"]

ROLES: tuple[Role, ...] = ("coordinator", "worker", "trainer")

#: Kinds of servers; parameter servers have trainers' keys.
Server = Literal["coordinator", "worker", "parameter server"]


class Message:
    """Base of all messages; `kind` is the name on the wire."""

    __slots__ = ()
    kind: ClassVar[str]
    checks: ClassVar[dict[str, Check]]


_M = TypeVar("_M", bound=Message)

#: Message classes by name on the wire.
KINDS: dict[str, type[Message]] = {}

#: Messages that each server understands, and the roles that may send them; messages that no server takes are answers.
SPEAKERS: dict[Server, dict[type[Message], frozenset[Role]]] = {"coordinator": {}, "worker": {}, "parameter server": {}}


def message(name: str, *, to: Server | None = None, by: Iterable[Role] = ()) -> Callable[[type[_M]], type[_M]]:
    """Return a decorator that registers a dataclass as the message `name`, which roles `by` may send to server `to`.

    Raise AssertionError if the name is taken.
    """

    def register(kind: type[_M]) -> type[_M]:
        if name in KINDS:
            raise AssertionError(f"two messages are called {name}: {KINDS[name].__module__} and {kind.__module__}")
        kind.kind = name
        kind.checks = {field.name: field.metadata["check"] for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
        KINDS[name] = kind
        if to is not None:
            SPEAKERS[to][kind] = frozenset(by)
        return kind

    return register


def wire(check: Check, default: Any = dataclasses.MISSING) -> Any:
    """Declare a field of a message with the check that bounds it.

    A default is for the code that makes a message; on the wire the field is never left out.
    """
    return dataclasses.field(default=default, metadata={"check": check})


NAME = Text(200)
PROSE = Text(4000)
FLAG = Boolean()
COUNT = Integer(0, 2**48)
EPOCH = Integer(0, 2**31)
ID = Integer(0, 2**64 - 1)
SIZE = Integer(0, 2**40)
SLOT = Integer(0, 2**16)
#: Size of a data set that trainers send, and of the pieces that it is sent in.
GRAPH_BYTES = Integer(0, 2**30)
PIECE_BYTES = 2**15
PIECE = Blob(PIECE_BYTES)
#: Sizes of the bundle that a joining host fetches, of its manifest and of a piece. A server sends these pieces, so they
#: may be larger than a request.
BUNDLE_BYTES = Integer(0, 2**40)
MOST_MANIFEST_BYTES = 2**24
MANIFEST_BYTES = Integer(0, MOST_MANIFEST_BYTES)
BUNDLE_PIECE_BYTES = 2**19
BUNDLE_PIECE = Blob(BUNDLE_PIECE_BYTES)
#: Size of the metric states of one batch, or of their sum over an evaluation.
MOST_STATE_BYTES = 2**20
STATE_BYTES = Integer(0, MOST_STATE_BYTES)
RANK = Integer(0, 4095)
WORLD = Integer(1, 4096)
MS = Integer(0, 10**9)
UID = Integer(0, 2**32)
SHARE = Integer(0, 1000)


def clipped(prose: str) -> str:
    """Return as much of a text as a message can carry, 4000 characters, escaped as `escaped` does."""
    # Cut after escaping, which makes a text longer.
    return escaped(prose)[: PROSE.longest]


def escaped(text: str) -> str:
    """Return the text as it crosses: what UTF-8 cannot encode (in a file's name, say) becomes backslash escapes."""
    return text.encode(errors="backslashreplace").decode()


class Part:
    """Base of records inside messages."""

    __slots__ = ()
    #: Names of the fields, in order.
    __match_args__: ClassVar[tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Ticket(Part):
    """One lending of a slot: the slot, and how often it has been lent."""

    slot: int = wire(SLOT)
    generation: int = wire(COUNT)


@dataclass(frozen=True, slots=True)
class Cursor(Part):
    """First batch number not yet trained on, with the epoch, group and plan that it counts in."""

    epoch: int = wire(EPOCH)
    number: int = wire(COUNT)
    group: int = wire(WORLD)
    plan_digest: str = wire(NAME)


@dataclass(frozen=True, slots=True)
class RoundPlace(Part):
    """Place between two rounds of a world: rounds before it start at a smaller number, or in an earlier epoch."""

    epoch: int = wire(EPOCH)
    number: int = wire(COUNT)


@dataclass(frozen=True, slots=True)
class Lease(Part):
    """Batch number that a trainer holds in queue mode; `nth` counts how often the number was leased."""

    epoch: int = wire(EPOCH)
    number: int = wire(COUNT)
    nth: int = wire(COUNT)


@dataclass(frozen=True, slots=True)
class MetricStates(Part):
    """Extra of `Outcomes` in an evaluation in queue mode: its name, and metric states of the batches that are done."""

    evaluation: str = wire(NAME)
    nbytes: int = wire(STATE_BYTES)
    start: int = wire(STATE_BYTES)
    content: bytes = wire(PIECE)
    sums_from: int | None = wire(Maybe(STATE_BYTES))


@dataclass(frozen=True, slots=True)
class MetricSums(Part):
    """Extra of `Leases` in an evaluation in queue mode: its progress, and a piece of the sums over its batches."""

    lost: bool = wire(FLAG)
    settled: bool = wire(FLAG)
    batches: int = wire(COUNT)
    given_up: int = wire(COUNT)
    content: bytes = wire(PIECE)


@dataclass(frozen=True, slots=True)
class Failure(Part):
    """Leased batch that a trainer failed at, with the user's reason, if one was given."""

    lease: Lease = wire(record(Lease))
    reason: str = wire(NAME)


@dataclass(frozen=True, slots=True)
class BookMark(Part):
    """Identity of a coordinator's book of lease tables, and the revision that its reader has seen."""

    identity: int = wire(ID)
    revision: int = wire(COUNT)


@dataclass(frozen=True, slots=True)
class EpochDone(Part):
    """Done numbers of an epoch: all below `fresh` except `missing`, each given as the distance to the previous one."""

    epoch: int = wire(EPOCH)
    fresh: int = wire(COUNT)
    missing: tuple[int, ...] = wire(Many(COUNT, 2**14))


@dataclass(frozen=True, slots=True)
class DoneSet(Part):
    """Done batches in queue mode: all epochs before the first of these, and the listed numbers of these."""

    epochs: tuple[EpochDone, ...] = wire(Many(record(EpochDone), 16))


@dataclass(frozen=True, slots=True)
class VariablePart(Part):
    """Rows of a variable, from `start` on; a variable without rows is whole."""

    variable: int = wire(Integer(0, 2**16))
    start: int = wire(SIZE)
    shape: tuple[int, ...] = wire(Many(SIZE, 8))
    dtype: str = wire(Dtype())


@dataclass(frozen=True, slots=True)
class PartGradient(Part):
    """Gradient of the part at this place of a share: of `rows` named rows, or of all rows if null."""

    place: int = wire(Integer(0, 2**16))
    rows: int | None = wire(Maybe(SIZE))


@dataclass(frozen=True, slots=True)
class TableForm(Part):
    """Form of an embedding table whose rows servers make on demand; what the two numbers are depends on `initializer`.

    They are the bounds of `uniform`, mean and deviation of `normal`, and the value of `constant`, which has one.
    """

    name: str = wire(NAME)
    dim: int = wire(Integer(1, 2**16))
    rows: int | None = wire(Maybe(SIZE))
    seed: int = wire(ID)
    initializer: str = wire(Choice(("uniform", "normal", "constant")))
    first: float = wire(Number())
    second: float = wire(Number())


@dataclass(frozen=True, slots=True)
class TableGradient(Part):
    """Gradient of so many rows of the table at this place."""

    table: int = wire(Integer(0, 2**8))
    rows: int = wire(SIZE)


@dataclass(frozen=True, slots=True)
class WireField(Part):
    """Form of `shared.wire.batch_layout.Field` on the wire."""

    key: str = wire(NAME)
    dtype: str = wire(Dtype(strings=True))
    shape: tuple[int | None, ...] = wire(Many(Maybe(SIZE), 8))
    per_second: float | None = wire(Maybe(Rate()))

    @classmethod
    def of(cls, field: Field) -> WireField:
        """Return the field as messages carry it: key, dtype, shape and rate; `decode` gives it back."""
        return cls(field.key, field.dtype, field.shape, field.per_second)

    def field(self) -> Field:
        """Return the field that these parts of a message describe."""
        return Field(key=self.key, dtype=self.dtype, shape=self.shape, per_second=self.per_second)


@dataclass(frozen=True, slots=True)
class WireShape(Part):
    """Form of `shared.wire.batch_layout.BucketShape` on the wire."""

    rows: int = wire(Integer(1, 2**24))
    lengths: tuple[tuple[str, int], ...] = wire(Many(FixedList((NAME, COUNT)), 64))

    @classmethod
    def of(cls, shape: BucketShape) -> WireShape:
        """Return the wire form of a shape; equal shapes give equal bytes."""
        return cls(shape.rows, tuple(sorted(shape.lengths.items())))

    def bucket(self) -> BucketShape:
        """Return the shape that these parts of a message describe, with its lengths by key."""
        return BucketShape(rows=self.rows, lengths=dict(self.lengths))


@dataclass(frozen=True, slots=True)
class WorkerAddress(Part):
    """Address where a worker listens for wants."""

    worker: str = wire(NAME)
    incarnation: int = wire(ID)
    endpoint: str = wire(NAME)
    boot_id: str = wire(NAME)
    uid: int = wire(UID)


@dataclass(frozen=True, slots=True)
class TraceProcess(Part):
    """Process of a job that can be asked for stamps; a worker has no stream and rank 0 of a world of 0."""

    name: str = wire(NAME)
    incarnation: int = wire(ID)
    stream: str = wire(NAME)
    rank: int = wire(RANK)
    replicas: int = wire(Integer(0, 4096))
    world: int = wire(Integer(0, 4096))


@dataclass(frozen=True, slots=True)
class SharedSlots(Part):
    """Offer of the trainer's slots: a memfd that a worker on the same host may open."""

    boot_id: str = wire(NAME)
    uid: int = wire(UID)
    pid: int = wire(Integer(1, 2**31))
    fd: int = wire(Integer(0, 2**20))
    nonce: bytes = wire(Blob(16))
    slots: int = wire(SLOT)
    slot_bytes: int = wire(SIZE)
    lock_byte: int = wire(Integer(0, 2**20))


@dataclass(frozen=True, slots=True)
class Seal(Part):
    """Key that seals payloads, and the identity that they are sent to."""

    key: bytes = wire(Blob(32))
    identity: bytes = wire(Blob(16))

    def __repr__(self) -> str:
        return "Seal(…)"
