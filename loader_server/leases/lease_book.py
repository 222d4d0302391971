"""The book of a coordinator's lease tables: the facts that have to survive a crash, and how a loss of some is noticed.

The journal that holds the leases is a file, and files can be deleted, cut, or replaced by an older copy. A coordinator
that starts from what is left would lease again what trainers are done with. It cannot see that by itself, because an
older state of the journal is as whole as the newest. But trainers remember what they were told. So:

- A book has a random identity, drawn when there is none in the journal. A trainer that heard of another identity has
  leases of a book that is lost.
- Its revision grows with each answer that rests on a change, and is in the journal before that answer is sent. A
  trainer that heard of a later revision than the journal has proves that the journal went back in time. Then another
  identity is drawn, so that every trainer of the lost book learns of it, whatever it heard of last.
- All tables share one book, because they share one journal: a trainer that heard something of any of them may be the
  only one that knows.

Facts say what happened. A number has a fact of its own only while it is neither fresh nor done, so what is kept grows
with what is out and not with the epoch. The `work` of a fact is the kind of work that its lease table is for.

Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shared.wire.message_parts import BookMark

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "BookAdvanced",
    "EpochClosed",
    "EpochOpened",
    "LeaseBook",
    "LeaseFact",
    "NumberDone",
    "NumberOut",
    "StatesForgotten",
    "StatesSummed",
    "TableForgotten",
    "TableRewound",
]


@dataclass(frozen=True, slots=True)
class LeaseFact:
    """A fact about the lease table for one kind of work on a stream."""

    stream: str
    work: str


@dataclass(frozen=True, slots=True)
class EpochOpened(LeaseFact):
    """An epoch is under way: numbers from `fresh` on were never leased, those before are settled unless they are out.

    `out` is the number of those, so that a fact that went missing is noticed.
    """

    epoch: int
    batches: int
    fresh: int
    out: int


@dataclass(frozen=True, slots=True)
class EpochClosed(LeaseFact):
    """All of an epoch is settled, and a later one is under way: undoes `EpochOpened`."""

    epoch: int


@dataclass(frozen=True, slots=True)
class NumberOut(LeaseFact):
    """A number that was leased, `nth` times so far, and is not done."""

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
class NumberDone(LeaseFact):
    """A number is done, or forgotten because its table was rewound or dropped: undoes `NumberOut`."""

    epoch: int
    number: int


@dataclass(frozen=True, slots=True)
class TableRewound(LeaseFact):
    """Another generation began, at the done-set of a trainer's checkpoint."""

    generation: int
    incarnation: int
    serial: int


@dataclass(frozen=True, slots=True)
class BookAdvanced:
    """The book's identity and its revision, which grows before a trainer gets an answer that rests on a change."""

    identity: int
    revision: int


@dataclass(frozen=True, slots=True)
class TableForgotten(LeaseFact):
    """The table of an evaluation is dropped: undoes `TableRewound`."""


@dataclass(frozen=True, slots=True)
class StatesSummed(LeaseFact):
    """The sums of the metric states of an evaluation's finished batches."""

    #: The number of batches in the sums.
    batches: int
    #: Little-endian float64, in base64.
    sums: str


@dataclass(frozen=True, slots=True)
class StatesForgotten(LeaseFact):
    """The evaluation is dropped: undoes `StatesSummed`."""


_NOT_BEGUN = BookMark(0, 0)


class LeaseBook:
    """The identity and revision of the lease tables; `draw` gives a new identity, `keep` writes to the journal."""

    def __init__(self, draw: Callable[[], int], keep: Callable[[LeaseFact | BookAdvanced], None]) -> None:
        self._mark = _NOT_BEGUN
        self._draw = draw
        self._keep_fact = keep
        #: Whether a fact was kept since the last mark.
        self._is_changed = False

    def recover(self, fact: BookAdvanced) -> None:
        """Apply the identity and revision that the journal has."""
        self._mark = BookMark(fact.identity, fact.revision)

    def keep(self, fact: LeaseFact) -> None:
        """Write a fact to the journal, so that the next `advance` returns a new revision."""
        self._is_changed = True
        self._keep_fact(fact)

    def advance(self) -> BookMark:
        """Return the mark for an answer, with a new revision in the journal if a fact was kept since the last one.

        A book that has no identity yet draws one.
        """
        if self._mark == _NOT_BEGUN:
            self._move_to(BookMark(self._draw(), 0))
        # One revision for all facts of a turn: they are in the same transaction as the answer's mark.
        if self._is_changed:
            self._move_to(BookMark(self._mark.identity, self._mark.revision + 1))
        return self._mark

    def renew(self) -> None:
        """Draw another identity and write it to the journal, which has lost some of this book; the revision stays."""
        # A trainer whose last mark is older than the loss cannot notice it by the revision; by the identity it can.
        self._move_to(BookMark(self._draw(), self._mark.revision))

    def _move_to(self, mark: BookMark) -> None:
        # In the journal before the answer that carries it is sent: otherwise a crash in between would make a trainer
        # prove a loss that never was.
        self._mark, self._is_changed = mark, False
        self._keep_fact(BookAdvanced(mark.identity, mark.revision))

    def is_another(self, heard: BookMark | None) -> bool:
        """Return whether a trainer heard of another book; False if it has heard of none."""
        return heard is not None and heard.identity != self._mark.identity

    def is_behind(self, heard: BookMark | None) -> bool:
        """Return whether a trainer heard of a later revision of this book than the journal had.

        Return False if it heard of no book, or of another one.
        """
        return heard is not None and not self.is_another(heard) and heard.revision > self._mark.revision
