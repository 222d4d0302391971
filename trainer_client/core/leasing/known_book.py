"""What a trainer goes by while the coordinator's journal is in doubt: the book of leases, and the wait for an answer.

Rules: pure. A coordinator whose journal was lost has another book (`loader_server/leases/lease_book` has the theory).
Then nobody knows which batches are done, so the feed ends with an error that names the last checkpoint. Every report
about leases carries the last mark that was received, for the coordinator to compare.

The coordinator withholds answers that promise a lease while it cannot write its journal, and gives none if it is gone.
Both may last, so the wait is logged once and ends the feed at last. An answer without a lease counts as an answer:
other trainers hold the batches, and the deadlines of their leases bound that wait. Time in which the trainer itself
stalled does not count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainer_client.core import instructions as i
from trainer_client.core.feed_errors import book_lost, leases_withheld

if TYPE_CHECKING:
    from shared.wire import messages as m
    from shared.wire.message_parts import BookMark, DoneSet

__all__ = ["KnownBook", "LeaseWait"]

#: How long to wait before the log mentions it: a coordinator that restarts takes a second or two.
_WARN_AFTER_S = 5.0


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
        """Take in the mark of an answer; if it belongs to another book, end the feed and return False.

        Any mark is taken while none is known. The feed is ended only once, with a RefusedError of code "lost".
        """
        # A journal that was deleted or replaced makes a new book, in which batches that are in our model are still to
        # be done. Nobody could tell which, and to go on would train on them twice.
        if self.mark is not None and mark.identity != self.mark.identity:
            if not self.is_lost:  # the answers to two open messages may both tell it
                self.is_lost = True
                self._out.append(i.Fail(book_lost(self._stream, self._work, self._saved)))
            return False
        self.mark = mark
        return True

    def note_saved(self, name: str) -> None:
        """Remember the name of the checkpoint that was written or restored, for the error about a lost book."""
        self._saved = name

    def note_state(self, done: DoneSet) -> None:
        """Remember the done-set that the user got, and may have saved, for the error about a lost book."""
        epoch = done.epochs[0]
        count = epoch.fresh - len(epoch.missing)
        self._saved = f"the state that feed.state() returned last, epoch {epoch.epoch} with {count} batches done"


class LeaseWait:
    """One trainer's wait for the answer to its open message, at most `patience_s`."""

    def __init__(self, attached: m.Attached, patience_s: float, out: list[i.Instruction]) -> None:
        self._stream, self._job = attached.stream, attached.job
        self._patience_s = patience_s
        self._out = out
        #: Since when an answer has been missing; None while no answer is waited for.
        self._since_s: float | None = None
        self._has_warned = self._has_failed = False

    def end(self) -> None:
        """End the wait, because an answer came or is not needed."""
        self._since_s, self._has_warned = None, False

    def excuse(self, now_s: float) -> None:
        """Restart the wait, if there is one: the trainer stalled, so it could not have heard an answer."""
        if self._since_s is not None:
            self._since_s = now_s

    def look(self, now_s: float) -> None:
        """Begin or go on with the wait: log a warning after 5 s, and end the feed after `patience_s`.

        Each wait is logged once, and the feed is ended once, with a LostError.
        """
        if self._since_s is None:
            self._since_s = now_s
        waited_s = now_s - self._since_s
        if waited_s > self._patience_s and not self._has_failed:
            self._has_failed = True
            self._out.append(i.Fail(leases_withheld(self._stream, self._job, self._patience_s)))
        elif waited_s > _WARN_AFTER_S and not self._has_warned:
            self._has_warned = True
            fields = {
                "ends_in_s": round(self._patience_s - waited_s, 1),
                "look_at": "`loader-server status`, the alerts StokerJournalLost and StokerJournalNotWritten, and the "
                f"state folder of job {self._job}",
            }
            self._out.append(i.WriteLog("warning", "waiting for leases that the coordinator withholds", fields))
