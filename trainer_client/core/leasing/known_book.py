"""The coordinator's book of leases as this trainer knows it, and whether it is still the same one.

Rules: pure. A coordinator whose journal was lost has another book (`loader_server/leases/lease_book` has the theory).
Then nobody knows which batches are done, so the feed ends with an error that names the last checkpoint. Every report
about leases carries the last mark that was received, for the coordinator to compare.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainer_client.core import instructions as i
from trainer_client.core.failures import book_lost

if TYPE_CHECKING:
    from shared.wire.message_parts import BookMark, DoneSet

__all__ = ["KnownBook"]


class KnownBook:
    """The mark of the coordinator's book that was received last; None before the first."""

    def __init__(self, stream: str, work: str, out: list[i.Instruction]) -> None:
        self.mark: BookMark | None = None
        self.is_lost = False
        self._stream, self._work = stream, work
        self._out = out
        #: The checkpoint that training would resume from, in words; empty if there is none.
        self._saved = ""

    def learn(self, mark: BookMark | None) -> None:
        """Take the mark from Attached if none is known; a known one stays, to be compared with later answers."""
        self.mark = self.mark or mark

    def begin_anew(self, mark: BookMark | None) -> None:
        """Replace the known mark, because a checkpoint was restored: earlier leases do not count in any book."""
        self.mark = mark

    def hear(self, mark: BookMark) -> bool:
        """Take in the mark of an answer; if it belongs to another book, end the feed and return False."""
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
        """Remember the name of the checkpoint that was written or restored, for the error about a lost book."""
        self._saved = name

    def note_state(self, done: DoneSet) -> None:
        """Remember the done-set that the user got, which may be in a checkpoint of their own."""
        epoch = done.epochs[0]
        count = epoch.fresh - len(epoch.missing)
        self._saved = f"the state that feed.state() returned last, epoch {epoch.epoch} with {count} batches done"
