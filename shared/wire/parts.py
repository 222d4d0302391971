"""What messages are made of: the records inside them, and the checks that their fields share.

Rules: pure; otherwise as for messages.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

from shared.wire.bounds import Blob, Boolean, Check, Dtype, FixedList, Integer, Many, Maybe, Rate, Text, record
from shared.wire.layout import BucketShape, Field

__all__ = [
    "COUNT",
    "EPOCH",
    "FLAG",
    "ID",
    "MS",
    "NAME",
    "PROSE",
    "RANK",
    "SHARE",
    "SIZE",
    "SLOT",
    "UID",
    "WORLD",
    "BookMark",
    "Cursor",
    "DoneSet",
    "EpochDone",
    "Failure",
    "Lease",
    "MetricStates",
    "MetricSums",
    "Part",
    "PartGradient",
    "RoundPlace",
    "Seal",
    "SharedSlots",
    "Ticket",
    "VariablePart",
    "WireField",
    "WireShape",
    "WorkerAddress",
    "clipped",
    "escaped",
    "wire",
]


def wire(check: Check, default: Any = dataclasses.MISSING) -> Any:
    """A field of a message, with the check that bounds it; a default is for whoever makes one, and never left out."""
    return dataclasses.field(default=default, metadata={"check": check})


NAME = Text(200)
PROSE = Text(4000)
FLAG = Boolean()
COUNT = Integer(0, 2**48)
EPOCH = Integer(0, 2**31)
ID = Integer(0, 2**64 - 1)
SIZE = Integer(0, 2**40)
SLOT = Integer(0, 2**16)
#: What trainers send as a data set, and what workers fetch of it, with what was counted in its first epoch.
GRAPH_BYTES = Integer(0, 2**30)
PIECE_BYTES = 2**15
PIECE = Blob(PIECE_BYTES)
#: What a joining host fetches: all of it, its manifest, and a piece, which goes from a server and so may be larger.
BUNDLE_BYTES = Integer(0, 2**40)
MOST_MANIFEST_BYTES = 2**24
MANIFEST_BYTES = Integer(0, MOST_MANIFEST_BYTES)
BUNDLE_PIECE_BYTES = 2**19
BUNDLE_PIECE = Blob(BUNDLE_PIECE_BYTES)
#: The metric states of one batch, or their sum over an evaluation.
MOST_STATE_BYTES = 2**20
STATE_BYTES = Integer(0, MOST_STATE_BYTES)
RANK = Integer(0, 4095)
WORLD = Integer(1, 4096)
MS = Integer(0, 10**9)
UID = Integer(0, 2**32)
SHARE = Integer(0, 1000)


def clipped(prose: str) -> str:
    """Return as much of a text as a message can carry."""
    return escaped(prose)[: PROSE.longest]


def escaped(text: str) -> str:
    """Return the text as it crosses: what is not UTF-8 in it (of a file's name, say) is escaped with backslashes."""
    return text.encode(errors="backslashreplace").decode()


class Part:
    """A record inside a message."""

    __slots__ = ()
    #: Names of the fields, in order.
    __match_args__: ClassVar[tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Ticket(Part):
    """A slot, and how often it has been lent: together they name one lending."""

    slot: int = wire(SLOT)
    generation: int = wire(COUNT)


@dataclass(frozen=True, slots=True)
class Cursor(Part):
    """The first batch number not yet trained on, with the epoch, group and plan that it counts in."""

    epoch: int = wire(EPOCH)
    number: int = wire(COUNT)
    group: int = wire(WORLD)
    plan_digest: str = wire(NAME)


@dataclass(frozen=True, slots=True)
class RoundPlace(Part):
    """A place between two rounds of a world: those before it start at a smaller number, or in an earlier epoch."""

    epoch: int = wire(EPOCH)
    number: int = wire(COUNT)


@dataclass(frozen=True, slots=True)
class Lease(Part):
    """A batch number that a trainer has in queue mode; `nth` counts how often the number was leased."""

    epoch: int = wire(EPOCH)
    number: int = wire(COUNT)
    nth: int = wire(COUNT)


@dataclass(frozen=True, slots=True)
class MetricStates(Part):
    """What an evaluation in queue mode adds to `Outcomes`: its name, and metric states of the batches that are done."""

    evaluation: str = wire(NAME)
    nbytes: int = wire(STATE_BYTES)
    start: int = wire(STATE_BYTES)
    content: bytes = wire(PIECE)
    sums_from: int | None = wire(Maybe(STATE_BYTES))


@dataclass(frozen=True, slots=True)
class MetricSums(Part):
    """What an evaluation in queue mode adds to `Leases`: how far it is, and a piece of the sums over its batches."""

    lost: bool = wire(FLAG)
    settled: bool = wire(FLAG)
    batches: int = wire(COUNT)
    given_up: int = wire(COUNT)
    content: bytes = wire(PIECE)


@dataclass(frozen=True, slots=True)
class Failure(Part):
    """A leased batch that a trainer failed at, and why, in the user's words; empty: they gave no reason."""

    lease: Lease = wire(record(Lease))
    reason: str = wire(NAME)


@dataclass(frozen=True, slots=True)
class BookMark(Part):
    """The book of all lease tables of a coordinator, and how far it had come when somebody heard of it."""

    identity: int = wire(ID)
    revision: int = wire(COUNT)


@dataclass(frozen=True, slots=True)
class EpochDone(Part):
    """The numbers of an epoch that are done: all below `fresh` but those missing, each as the distance to the last."""

    epoch: int = wire(EPOCH)
    fresh: int = wire(COUNT)
    missing: tuple[int, ...] = wire(Many(COUNT, 2**14))


@dataclass(frozen=True, slots=True)
class DoneSet(Part):
    """What is done in queue mode: every epoch before the first of these, and of these what each says."""

    epochs: tuple[EpochDone, ...] = wire(Many(record(EpochDone), 16))


@dataclass(frozen=True, slots=True)
class VariablePart(Part):
    """Some rows of a variable, from `start` on; one without rows is whole."""

    variable: int = wire(Integer(0, 2**16))
    start: int = wire(SIZE)
    shape: tuple[int, ...] = wire(Many(SIZE, 8))
    dtype: str = wire(Dtype())


@dataclass(frozen=True, slots=True)
class PartGradient(Part):
    """A gradient of the part at this place of a share: of `rows` rows, each named, or null if of all."""

    place: int = wire(Integer(0, 2**16))
    rows: int | None = wire(Maybe(SIZE))


@dataclass(frozen=True, slots=True)
class WireField(Part):
    """`shared.wire.layout.Field` on the wire."""

    key: str = wire(NAME)
    dtype: str = wire(Dtype())
    shape: tuple[int | None, ...] = wire(Many(Maybe(SIZE), 8))
    per_second: float | None = wire(Maybe(Rate()))

    @classmethod
    def of(cls, field: Field) -> WireField:
        """A field to be sent."""
        return cls(field.key, field.dtype, field.shape, field.per_second)

    def field(self) -> Field:
        """The field that was received."""
        return Field(key=self.key, dtype=self.dtype, shape=self.shape, per_second=self.per_second)


@dataclass(frozen=True, slots=True)
class WireShape(Part):
    """`shared.wire.layout.BucketShape` on the wire."""

    rows: int = wire(Integer(1, 2**24))
    lengths: tuple[tuple[str, int], ...] = wire(Many(FixedList((NAME, COUNT)), 64))

    @classmethod
    def of(cls, shape: BucketShape) -> WireShape:
        """A shape to be sent: equal shapes are equal bytes."""
        return cls(shape.rows, tuple(sorted(shape.lengths.items())))

    def bucket(self) -> BucketShape:
        """The shape that was received."""
        return BucketShape(rows=self.rows, lengths=dict(self.lengths))


@dataclass(frozen=True, slots=True)
class WorkerAddress(Part):
    """Where a worker listens for wants."""

    worker: str = wire(NAME)
    incarnation: int = wire(ID)
    endpoint: str = wire(NAME)
    boot_id: str = wire(NAME)
    uid: int = wire(UID)


@dataclass(frozen=True, slots=True)
class SharedSlots(Part):
    """The trainer's slots as a memfd that a worker on the same host may open."""

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
    """The key that payloads are to be sealed with, and where to send them."""

    key: bytes = wire(Blob(32))
    identity: bytes = wire(Blob(16))

    def __repr__(self) -> str:
        return "Seal(…)"
