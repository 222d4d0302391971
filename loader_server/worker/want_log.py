"""A worker's log lines about single wants: accepted, pushed, refused, and what went wrong while one was built.

Rules: the first three are written at debug, and cost no more than a question while that is off. Each line names the
trainer as the lines of coordinator and trainer do, and the batch by epoch, number, attempt and slot, by which the
trainer's lines are found.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from loader_server.wants.session import Session
    from shared.logs import Log
    from shared.wire import messages as m

__all__ = ["WantLog"]


class WantLog:
    """The lines about wants, in the log of a worker."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def note_accepted(self, session: Session, want: m.Want) -> None:
        """Write a line on a want that waits to be built now; at debug only."""
        if self._log.is_debugged:
            self._log.debug("want is accepted", **_fields(session, want), urgent=want.urgent)

    def note_pushed(self, session: Session, want: m.Want, header: m.Pushed) -> None:
        """Write a line on a batch that is sent, or lies in its slot, now; at debug only."""
        if self._log.is_debugged:
            how = {"nbytes": header.nbytes, "build_us": header.build_us, "in_slot": header.in_slot}
            self._log.debug("batch is pushed", **_fields(session, want), **how)

    def note_refused(self, session: Session, want: m.Want, refusal: m.Unbuilt) -> None:
        """Write a line on a want that gets no batch here, and why; at debug only."""
        if self._log.is_debugged:
            why = {"code": refusal.code, "expected": refusal.expected, "got": refusal.got, "where": refusal.where}
            self._log.debug("want is refused", **_fields(session, want), **why)

    def note_no_trial(self, session: Session, want: m.Want, error: Exception) -> None:
        """Write a warning: no process could try the samples of this want, so none is to blame."""
        self._log.warning("samples cannot be tried", **_fields(session, want), error=str(error))

    def note_exhausted(self, session: Session, want: m.Want, error: Exception) -> None:
        """Write a warning: memory or descriptors ran out over this want, and this process goes on."""
        self._log.warning("memory or descriptors ran out over one batch", **_fields(session, want), error=str(error))

    def note_defect(self, session: Session, want: m.Want, error: BaseException) -> None:
        """Write an error: building this want raised what no source or transform should."""
        self._log.error("defect while building", **_fields(session, want), error=repr(error))


def _fields(session: Session, want: m.Want) -> dict[str, object]:
    place = {"epoch": want.epoch, "number": want.number, "attempt": want.attempt, "slot": want.ticket.slot}
    return {**session.fields, **place}
