"""Messages between trainers and parameter servers, and from the first server to the others.

Rules: pure; as for all messages. Values and gradients are no part of a message: they follow it, in a frame of `nbytes`.
"""

from __future__ import annotations

from dataclasses import dataclass

from shared.wire.bounds import Blob, Boolean, Choice, Integer, Many, Maybe, Number, record
from shared.wire.message_parts import (
    COUNT,
    EPOCH,
    ID,
    NAME,
    SIZE,
    DoneSet,
    Lease,
    Message,
    PartGradient,
    TableForm,
    TableGradient,
    VariablePart,
    message,
    wire,
)

__all__ = [
    "MOST_IDS",
    "AskEvaluation",
    "Finish",
    "GiveRows",
    "Look",
    "OfferEvaluation",
    "OfferedEvaluation",
    "Order",
    "Pull",
    "PullCut",
    "PullRows",
    "Push",
    "Quit",
    "Save",
    "SaveRows",
    "ServeShare",
    "SetRate",
    "Shown",
    "TableRows",
    "Taken",
    "Values",
    "Withdraw",
]

_MOST_PARTS, _MOST_TABLES = 2**13, 2**8
_TABLE = Integer(0, _MOST_TABLES)
#: How many ids one `PullRows` may ask for: a message is at most 1 MiB long, and an id has eight bytes.
MOST_IDS = 2**16
#: How many evaluation streams an evaluation may be on.
_MOST_STREAMS = 64


@message("Look", to="parameter server", by=("trainer",))
@dataclass(frozen=True, slots=True, kw_only=True)
class Look(Message):
    """Question of a trainer for a server's state; the server knows the trainer from then on."""

    serial: int = wire(COUNT)
    trainer: int = wire(ID)


@message("Shown")
@dataclass(frozen=True, slots=True, kw_only=True)
class Shown(Message):
    """Answer to `Look`."""

    serial: int = wire(COUNT)
    generation: int = wire(ID)
    version: int = wire(COUNT)
    over: str = wire(NAME)
    parts: tuple[VariablePart, ...] = wire(Many(record(VariablePart), _MOST_PARTS))
    tables: tuple[TableForm, ...] = wire(Many(record(TableForm), _MOST_TABLES))


@message("ServeShare", to="parameter server", by=("trainer",))
@dataclass(frozen=True, slots=True, kw_only=True)
class ServeShare(Message):
    """Share that the chief gives a server in place of any earlier one; all values follow."""

    serial: int = wire(COUNT)
    generation: int = wire(ID)
    version: int = wire(COUNT)
    staleness: int = wire(COUNT)
    most: int = wire(COUNT)
    parts: tuple[VariablePart, ...] = wire(Many(record(VariablePart), _MOST_PARTS))
    tables: tuple[TableForm, ...] = wire(Many(record(TableForm), _MOST_TABLES))
    given: tuple[int, ...] = wire(Many(SIZE, _MOST_TABLES))
    done: DoneSet = wire(record(DoneSet))
    nbytes: int = wire(SIZE)


@message("GiveRows", to="parameter server", by=("trainer",))
@dataclass(frozen=True, slots=True, kw_only=True)
class GiveRows(Message):
    """Rows of a table that the chief gives a server before the share they belong to; they follow."""

    serial: int = wire(COUNT)
    generation: int = wire(ID)
    table: int = wire(_TABLE)
    form: TableForm = wire(record(TableForm))
    rows: int = wire(SIZE)
    nbytes: int = wire(SIZE)


@message("Withdraw", to="parameter server", by=("trainer",))
@dataclass(frozen=True, slots=True, kw_only=True)
class Withdraw(Message):
    """Notice that the chief is about to restore the queue: values are frozen and not given until new shares come."""

    serial: int = wire(COUNT)


@message("Pull", to="parameter server", by=("trainer",))
@dataclass(frozen=True, slots=True, kw_only=True)
class Pull(Message):
    """Request of a trainer for the values of a server's share."""

    serial: int = wire(COUNT)
    trainer: int = wire(ID)
    generation: int = wire(ID)
    at_least: int = wire(COUNT)


@message("PullRows", to="parameter server", by=("trainer",))
@dataclass(frozen=True, slots=True, kw_only=True)
class PullRows(Message):
    """Request of a trainer for rows of a table, as they are or as they were at a cut."""

    serial: int = wire(COUNT)
    trainer: int = wire(ID)
    generation: int = wire(ID)
    at_least: int = wire(COUNT)
    table: int = wire(_TABLE)
    cut: int = wire(ID)
    ids: bytes = wire(Blob(8 * MOST_IDS))


@message("Push", to="parameter server", by=("trainer",))
@dataclass(frozen=True, slots=True, kw_only=True)
class Push(Message):
    """Gradients of one batch, as far as they are a server's; they follow."""

    serial: int = wire(COUNT)
    trainer: int = wire(ID)
    generation: int = wire(ID)
    lease: Lease = wire(record(Lease))
    based_on: int = wire(COUNT)
    refused: Lease | None = wire(Maybe(record(Lease)))
    is_step: bool = wire(Boolean())
    parts: tuple[PartGradient, ...] = wire(Many(record(PartGradient), _MOST_PARTS))
    tables: tuple[TableGradient, ...] = wire(Many(record(TableGradient), _MOST_TABLES))
    nbytes: int = wire(SIZE)


@message("Taken")
@dataclass(frozen=True, slots=True, kw_only=True)
class Taken(Message):
    """Answer to `Push`, `ServeShare`, `GiveRows`, `Withdraw`, `SetRate`, `OfferEvaluation` and `Finish`.

    It also answers `Pull`, `PullRows`, `PullCut`, `Save`, `SaveRows` and `AskEvaluation` if there is nothing to give.
    """

    serial: int = wire(COUNT)
    code: str = wire(
        Choice(("applied", "held", "repeated", "stale", "moved", "over", "serving", "withdrawn", "set", "given"))
    )
    version: int = wire(COUNT)
    why: str = wire(NAME)


@message("SetRate", to="parameter server", by=("trainer",))
@dataclass(frozen=True, slots=True, kw_only=True)
class SetRate(Message):
    """Learning rate that the chief's callbacks have set, for all gradients pushed from now on."""

    serial: int = wire(COUNT)
    trainer: int = wire(ID)
    generation: int = wire(ID)
    rate: float = wire(Number())


@message("Save", to="parameter server", by=("trainer",))
@dataclass(frozen=True, slots=True, kw_only=True)
class Save(Message):
    """Request of the chief for all that a server has, at a cut that is the same in all servers."""

    serial: int = wire(COUNT)
    generation: int = wire(ID)
    cut: int = wire(ID)
    settled: int = wire(EPOCH)


@message("SaveRows", to="parameter server", by=("trainer",))
@dataclass(frozen=True, slots=True, kw_only=True)
class SaveRows(Message):
    """Request of the chief for a piece of one array of a table, as it was at a cut."""

    serial: int = wire(COUNT)
    generation: int = wire(ID)
    cut: int = wire(ID)
    table: int = wire(_TABLE)
    array: int = wire(Integer(0, 2**6))
    start: int = wire(SIZE)


@message("TableRows")
@dataclass(frozen=True, slots=True, kw_only=True)
class TableRows(Message):
    """Answer to `SaveRows`; the piece follows."""

    serial: int = wire(COUNT)
    rows: int = wire(SIZE)
    arrays: int = wire(Integer(0, 2**6))
    nbytes: int = wire(SIZE)


@message("Values")
@dataclass(frozen=True, slots=True, kw_only=True)
class Values(Message):
    """Answer to `Pull`, `PullRows`, `PullCut` and `Save`; the values follow."""

    serial: int = wire(COUNT)
    version: int = wire(COUNT)
    done: DoneSet | None = wire(Maybe(record(DoneSet)))
    nbytes: int = wire(SIZE)


@message("OfferEvaluation", to="parameter server", by=("trainer",))
@dataclass(frozen=True, slots=True, kw_only=True)
class OfferEvaluation(Message):
    """Offer of the chief to evaluate its last cut together; variables that servers do not hold follow."""

    serial: int = wire(COUNT)
    trainer: int = wire(ID)
    generation: int = wire(ID)
    cut: int = wire(ID)
    epoch: int = wire(EPOCH)
    step: int = wire(COUNT)
    label: str = wire(NAME)
    streams: tuple[str, ...] = wire(Many(NAME, _MOST_STREAMS))
    nbytes: int = wire(SIZE)


@message("AskEvaluation", to="parameter server", by=("trainer",))
@dataclass(frozen=True, slots=True, kw_only=True)
class AskEvaluation(Message):
    """Question of a worker whether there is an evaluation to take part in, other than the one that it knows."""

    serial: int = wire(COUNT)
    trainer: int = wire(ID)
    generation: int = wire(ID)
    known: int = wire(ID)


@message("OfferedEvaluation")
@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedEvaluation(Message):
    """Answer to `AskEvaluation`; what came with the offer follows, unless the worker knows it."""

    serial: int = wire(COUNT)
    cut: int = wire(ID)
    epoch: int = wire(EPOCH)
    step: int = wire(COUNT)
    label: str = wire(NAME)
    streams: tuple[str, ...] = wire(Many(NAME, _MOST_STREAMS))
    over: str = wire(NAME)
    nbytes: int = wire(SIZE)


@message("PullCut", to="parameter server", by=("trainer",))
@dataclass(frozen=True, slots=True, kw_only=True)
class PullCut(Message):
    """Request of a worker for the values of a cut."""

    serial: int = wire(COUNT)
    trainer: int = wire(ID)
    generation: int = wire(ID)
    cut: int = wire(ID)


@message("Finish", to="parameter server", by=("trainer",))
@dataclass(frozen=True, slots=True, kw_only=True)
class Finish(Message):
    """Notice that the chief ends the run."""

    serial: int = wire(COUNT)
    generation: int = wire(ID)
    why: str = wire(NAME)


@message("Quit", to="parameter server", by=("trainer",))
@dataclass(frozen=True, slots=True, kw_only=True)
class Quit(Message):
    """Notice that a trainer pushes nothing more."""

    trainer: int = wire(ID)


@message("Order", to="parameter server", by=("trainer",))
@dataclass(frozen=True, slots=True, kw_only=True)
class Order(Message):
    """Order of the first server to the others; orders are followed in sequence."""

    generation: int = wire(ID)
    what: str = wire(Choice(("apply", "cut", "forget", "agree", "end")))
    version: int = wire(COUNT)
    trainer: int = wire(ID)
    lease: Lease | None = wire(Maybe(record(Lease)))
    cut: int = wire(ID)
    rate: float | None = wire(Maybe(Number()))
