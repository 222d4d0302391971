"""The coordinator's book of leases as this trainer knows it, and whether it is still the same one.

Rules: pure. A coordinator whose journal was lost has another book (`loader_server/leases/lease_book` has the theory).
Then nobody knows which batches are done, so the trainer ends with an error that names the last checkpoint. All that it
tells of leases goes with the last mark that it heard, for the coordinator to compare.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainer_client.core import instructions as i
from trainer_client.core.failures import book_lost

if TYPE_CHECKING:
    from shared.wire.parts import BookMark, DoneSet

__all__ = ["KnownBook"]


class KnownBook:
    """`mark` is None until something was heard of a book."""

    def __init__(self, stream: str, work: str, out: list[i.Instruction]) -> None:
        self.mark: BookMark | None = None
        self.is_lost = False
        self._stream, self._work = stream, work
        self._out = out
        #: What training would resume at.
        self._saved = ""

    def learn(self, mark: BookMark | None) -> None:
        """Take the mark with which the coordinator attached us; what we know of a book already stays to be compared."""
        self.mark = self.mark or mark

    def begin_anew(self, mark: BookMark | None) -> None:
        """A checkpoint was restored: what was leased before counts no more, in whichever book."""
        self.mark = mark

    def hear(self, mark: BookMark) -> bool:
        """Take in the mark of an answer; False, and the end of the feed, if it is of another book."""
        if self.mark is not None and mark.identity != self.mark.identity:
            self._end()
            return False
        self.mark = mark
        return True

    def _end(self) -> None:
        if not self.is_lost:
            self.is_lost = True
            self._out.append(i.Fail(book_lost(self._stream, self._work, self._saved)))

    def note_saved(self, name: str) -> None:
        """A checkpoint of this name was written or restored."""
        self._saved = name

    def note_state(self, done: DoneSet) -> None:
        """The user has this state, for a checkpoint of their own."""
        epoch = done.epochs[0]
        count = epoch.fresh - len(epoch.missing)
        self._saved = f"the state that feed.state() returned last, epoch {epoch.epoch} with {count} batches done"
