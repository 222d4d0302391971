"""A trainer's wait for an answer about leases that the coordinator withholds.

The coordinator withholds answers that promise a lease while it cannot write its journal, and gives none if it is gone.
Both may last, so the wait is logged once and ends the feed at last. An answer without a lease counts as an answer:
other trainers hold the batches, and the deadlines of their leases bound that wait.

Rules: pure. Time in which the trainer itself stalled does not count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainer_client.core import instructions as i
from trainer_client.core.feed_errors import leases_withheld

if TYPE_CHECKING:
    from shared.wire import messages as m

__all__ = ["LeaseWait"]

#: How long to wait before the log mentions it: a coordinator that restarts takes a second or two.
_WARN_AFTER_S = 5.0


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
        """Restart the wait: the trainer stalled, so it could not have heard an answer."""
        if self._since_s is not None:
            self._since_s = now_s

    def look(self, now_s: float) -> None:
        """Begin or go on with the wait: log a warning after 5 s, and end the feed after `patience_s`."""
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
