"""Messages about leases: how trainers in queue mode get batches, and report their outcomes.

Rules: pure; as for all messages.
"""

from __future__ import annotations

from dataclasses import dataclass

from shared.wire.bounds import Integer, Many, Maybe, OneOf, record
from shared.wire.declared import Message, message
from shared.wire.lease_work import MOST_LEASES, WORK
from shared.wire.parts import (
    COUNT,
    EPOCH,
    FLAG,
    ID,
    NAME,
    BookMark,
    DoneSet,
    Failure,
    Lease,
    MetricStates,
    MetricSums,
    wire,
)

__all__ = ["Leases", "Outcomes", "Recalled"]


@message("Outcomes", to="coordinator", by=("trainer",))
@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes(Message):
    """Report of a trainer in queue mode: the outcomes of its leases, and the number of leases it wants to hold."""

    stream: str = wire(NAME)
    work: str = wire(OneOf(WORK))
    incarnation: int = wire(ID)
    serial: int = wire(COUNT)
    book: BookMark | None = wire(Maybe(record(BookMark)))
    generation: int = wire(COUNT)
    done: tuple[Lease, ...] = wire(Many(record(Lease), MOST_LEASES))
    failed: tuple[Failure, ...] = wire(Many(record(Failure), MOST_LEASES))
    returned: tuple[Lease, ...] = wire(Many(record(Lease), MOST_LEASES))
    in_hand: Lease | None = wire(Maybe(record(Lease)))
    wanted: int = wire(Integer(0, MOST_LEASES))
    before: int = wire(EPOCH)
    snapshot: bool = wire(FLAG)
    states: MetricStates | None = wire(Maybe(record(MetricStates)), None)


@message("Leases")
@dataclass(frozen=True, slots=True, kw_only=True)
class Leases(Message):
    """Answer to `Outcomes`: all current leases of the trainer, in the order in which it got them."""

    serial: int = wire(COUNT)
    book: BookMark = wire(record(BookMark))
    generation: int = wire(COUNT)
    leases: tuple[Lease, ...] = wire(Many(record(Lease), MOST_LEASES))
    unsettled: int = wire(EPOCH)
    done: DoneSet | None = wire(Maybe(record(DoneSet)))
    sums: MetricSums | None = wire(Maybe(record(MetricSums)), None)


@message("Recalled")
@dataclass(frozen=True, slots=True, kw_only=True)
class Recalled(Message):
    """Notice that the trainer's leases have changed, or that there are some again: it should send `Outcomes`."""
