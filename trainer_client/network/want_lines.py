"""A trainer's debug lines about single wants: asked for, answered with a batch, refused, cancelled.

Rules: while debug is off a message costs one question. A line names worker, epoch, number, attempt and slot, as
those of the worker do; of an answer that lacks some of these it has the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.wire import messages as m

if TYPE_CHECKING:
    from shared.logs import Log

__all__ = ["WantLines"]


class WantLines:
    """The lines about wants, in the log of a trainer."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def note_sent(self, worker: str, message: m.Message) -> None:
        """Write a line on a want that goes to the worker at this endpoint, at debug; none on any other message."""
        if self._log.is_debugged and isinstance(message, m.Want):
            about = {"epoch": message.epoch, "number": message.number, "attempt": message.attempt}
            self._log.debug(
                "batch is asked for", worker=worker, **about, slot=message.ticket.slot, urgent=message.urgent
            )

    def note_heard(self, worker: str, message: m.Message) -> None:
        """Write a line on the answer to a want, from the worker at this endpoint, at debug; none on other messages."""
        if not self._log.is_debugged:
            return
        match message:
            case m.Pushed():
                about = {"epoch": message.epoch, "number": message.number, "slot": message.ticket.slot}
                size = {"nbytes": message.nbytes, "build_us": message.build_us, "in_slot": message.in_slot}
                self._log.debug("batch came", worker=worker, **about, **size)
            case m.Unbuilt():
                why = {"code": message.code, "expected": message.expected, "got": message.got, "where": message.where}
                self._log.debug("want was refused", worker=worker, slot=message.ticket.slot, **why)
            case m.Cancelled():
                self._log.debug("want was cancelled", worker=worker, slot=message.ticket.slot)
