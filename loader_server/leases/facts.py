"""Facts that have to survive a crash in queue mode, so that no number is done twice or forgotten.

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

    `out` is the number of those, so that a fact that went missing is noticed.
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
    #: The trainer that has it; 0: none, because it was given back.
    holder: int
    #: The number of failures.
    failures: int
    #: Whether it was given up, after too many failures.
    dead: bool
    #: The reason of the last failure; empty if there was none.
    reason: str = ""


@dataclass(frozen=True, slots=True)
class NumberDone:
    """A number is done, or forgotten because its table was rewound or dropped: undoes `NumberOut`."""

    stream: str
    work: str
    epoch: int
    number: int


@dataclass(frozen=True, slots=True)
class TableRewound:
    """Another generation began, at the done-set of a trainer's checkpoint."""

    stream: str
    work: str
    generation: int
    incarnation: int
    serial: int


@dataclass(frozen=True, slots=True)
class BookAdvanced:
    """The book's identity and its revision, which grows before a trainer gets an answer that rests on a change."""

    identity: int
    revision: int


@dataclass(frozen=True, slots=True)
class TableForgotten:
    """The table of an evaluation is dropped: undoes `TableRewound`."""

    stream: str
    work: str


@dataclass(frozen=True, slots=True)
class StatesSummed:
    """The sums of the metric states of an evaluation's finished batches."""

    stream: str
    work: str
    #: The number of batches in the sums.
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
