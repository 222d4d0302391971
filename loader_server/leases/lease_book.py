"""The book of a coordinator's lease tables: all facts go through it, and it notices if the journal lost some.

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

Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from loader_server.leases.facts import BookAdvanced
from shared.wire.message_parts import BookMark

if TYPE_CHECKING:
    from collections.abc import Callable

    from loader_server.leases.facts import LeaseFact

__all__ = ["LeaseBook"]

_NOT_BEGUN = BookMark(0, 0)


class LeaseBook:
    """The identity and revision of the lease tables; `draw` gives a new identity, `keep` writes to the journal."""

    def __init__(self, draw: Callable[[], int], keep: Callable[[LeaseFact | BookAdvanced], None]) -> None:
        self._mark = _NOT_BEGUN
        self._draw = draw
        self._keep_fact = keep
        self._is_changed = False

    def recover(self, fact: BookAdvanced) -> None:
        """Apply the identity and revision that the journal has."""
        self._mark = BookMark(fact.identity, fact.revision)

    def keep(self, fact: LeaseFact) -> None:
        """Write a fact to the journal; the next answer gets a new revision."""
        self._is_changed = True
        self._keep_fact(fact)

    def advance(self) -> BookMark:
        """Return the mark for an answer, with a new revision in the journal if a fact was kept since the last one."""
        if self._mark == _NOT_BEGUN:
            self._move_to(BookMark(self._draw(), 0))
        if self._is_changed:
            self._move_to(BookMark(self._mark.identity, self._mark.revision + 1))
        return self._mark

    def renew(self) -> None:
        """Draw another identity, because the journal has lost some of this book."""
        self._move_to(BookMark(self._draw(), self._mark.revision))

    def _move_to(self, mark: BookMark) -> None:
        # The mark is in the journal before the answer that carries it is sent.
        self._mark, self._is_changed = mark, False
        self._keep_fact(BookAdvanced(mark.identity, mark.revision))

    def is_another(self, heard: BookMark | None) -> bool:
        """Return whether a trainer heard of another book; False if it has heard of none."""
        return heard is not None and heard.identity != self._mark.identity

    def is_behind(self, heard: BookMark | None) -> bool:
        """Return whether a trainer heard of a later revision than the journal had."""
        return heard is not None and not self.is_another(heard) and heard.revision > self._mark.revision
