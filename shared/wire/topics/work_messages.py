"""Messages about work on batches: leases and their outcomes, in queue mode, and the results of training and evaluation.

Rules: pure; as for all messages.
"""

from __future__ import annotations

from dataclasses import dataclass

from shared.wire.bounds import Choice, FixedList, Integer, Many, Maybe, Number, record
from shared.wire.message_parts import (
    COUNT,
    EPOCH,
    FLAG,
    ID,
    NAME,
    PIECE,
    PROSE,
    BookMark,
    DoneSet,
    Failure,
    Lease,
    Message,
    MetricStates,
    MetricSums,
    message,
    wire,
)

__all__ = [
    "LONGEST_NAME",
    "MEASURE",
    "MOST_LEASES",
    "MOST_MEANS",
    "VERIFY",
    "VERIFY_WANTS",
    "WORK",
    "Aggregate",
    "Leases",
    "Outcomes",
    "Recalled",
    "Results",
    "plan_epoch",
]

#: Most means in one message of a trainer, and the longest name of one.
MOST_MEANS = 64
LONGEST_NAME = NAME.longest

#: The name of a mean, and the mean; null: not a number.
_MEAN = FixedList((NAME, Maybe(Number())))

#: Kinds of work. The last has no batches: its one lease elects the trainer that acts once when training is over.
WORK = ("train", "evaluate", "predict", "train-end")

#: Work of a load test, in lockstep only: it reads as a trainer does, but takes no rank from trainers.
MEASURE = "measure"

#: Work of `trainer-client verify`, on any stream: it reads batches by their numbers, and is no trainer.
VERIFY = "verify"

#: Most open wants of a verifier.
VERIFY_WANTS = 2

#: Most leases that a trainer holds, or reports in one message.
MOST_LEASES = 64


def plan_epoch(work: str, epoch: int) -> int:
    """Return the plan's epoch for a kind of work: training orders each epoch anew, other work always uses epoch 0."""
    return epoch if work == "train" else 0


@message("Outcomes", to="coordinator", by=("trainer",))
@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes(Message):
    """Report of a trainer in queue mode: the outcomes of its leases, and the number of leases it wants to hold."""

    stream: str = wire(NAME)
    work: str = wire(Choice(WORK))
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


@message("Results", to="coordinator", by=("trainer",))
@dataclass(frozen=True, slots=True, kw_only=True)
class Results(Message):
    """Result of a trainer's part of an epoch, or of an evaluation: means over its rows."""

    stream: str = wire(NAME)
    incarnation: int = wire(ID)
    serial: int = wire(COUNT)
    epoch: int = wire(EPOCH)
    step: int = wire(COUNT)
    rows: int = wire(COUNT)
    values: tuple[tuple[str, float | None], ...] = wire(Many(_MEAN, MOST_MEANS))
    ended: str = wire(PROSE)
    aside: bool = wire(FLAG)
    evaluation: str = wire(NAME, "")
    part: int = wire(COUNT, 0)
    states: bytes = wire(PIECE, b"")


@message("Aggregate")
@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregate(Message):
    """Answer to `Results`: the means over all ranks, once each has sent its own."""

    serial: int = wire(COUNT)
    whole: bool = wire(FLAG)
    rows: int = wire(COUNT)
    values: tuple[tuple[str, float | None], ...] = wire(Many(_MEAN, 256))
    parts: int = wire(COUNT, 0)
    trainers: int = wire(COUNT, 0)
    states: bytes = wire(PIECE, b"")
