"""What has to survive a crash in queue mode, so that no number is done twice or forgotten.

Rules: pure; facts say what happened. A number has a fact of its own only while it is neither fresh nor done, so what is
kept grows with what is out and not with the epoch. `work` is the kind of work that the lease table is for.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "BookAdvanced",
    "EpochClosed",
    "EpochOpened",
    "LeaseFact",
    "NumberDone",
    "NumberOut",
    "StatesForgotten",
    "StatesSummed",
    "TableForgotten",
    "TableRewound",
]


@dataclass(frozen=True, slots=True)
class EpochOpened:
    """An epoch is under way: numbers from `fresh` on were never leased, those before are settled unless they are out.

    `out` says how many are, so that a fact that went missing is noticed.
    """

    stream: str
    work: str
    epoch: int
    batches: int
    fresh: int
    out: int


@dataclass(frozen=True, slots=True)
class EpochClosed:
    """All of an epoch is settled, and a later one is under way: undoes `EpochOpened`."""

    stream: str
    work: str
    epoch: int


@dataclass(frozen=True, slots=True)
class NumberOut:
    """A number that was leased, `nth` times so far, and is not done."""

    stream: str
    work: str
    epoch: int
    number: int
    nth: int
    #: The trainer that has it; 0: it was given back.
    holder: int
    #: How often somebody failed at it.
    failures: int
    #: Given up, after too many failures.
    dead: bool
    #: Why somebody failed at it last; empty: nobody did, or gave no reason.
    reason: str = ""


@dataclass(frozen=True, slots=True)
class NumberDone:
    """It is done: undoes `NumberOut`."""

    stream: str
    work: str
    epoch: int
    number: int


@dataclass(frozen=True, slots=True)
class TableRewound:
    """Another generation began, at what a trainer's checkpoint says is done."""

    stream: str
    work: str
    generation: int
    incarnation: int
    serial: int


@dataclass(frozen=True, slots=True)
class BookAdvanced:
    """The book's identity, and how often it has changed before somebody was told of it."""

    identity: int
    revision: int


@dataclass(frozen=True, slots=True)
class TableForgotten:
    """The table of an evaluation is dropped: undoes `TableRewound`."""

    stream: str
    work: str


@dataclass(frozen=True, slots=True)
class StatesSummed:
    """What the metric states of an evaluation's batches come to."""

    stream: str
    work: str
    #: How many batches are in the sums.
    batches: int
    #: Little-endian float64, in base64.
    sums: str


@dataclass(frozen=True, slots=True)
class StatesForgotten:
    """The evaluation is dropped: undoes `StatesSummed`."""

    stream: str
    work: str


LeaseFact = (
    EpochOpened | EpochClosed | NumberOut | NumberDone | TableRewound | TableForgotten | StatesSummed | StatesForgotten
)
