"""Sharing a stream's batches as a queue: the coordinator leases batches to trainers.

Members of an elastic job lease like all others; the end of their world is handled in `core`.

Rules: pure. Leases of batches (`held_leases`) and of the work after training (`end_lease`) share one book, so that a
coordinator that lost its journal is noticed once (`known_book`). Must not know workers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.wire import messages as m
from trainer_client.core import events as e
from trainer_client.core.leasing.end_lease import EndLease
from trainer_client.core.leasing.held_leases import HeldLeases, LeasedUpcoming
from trainer_client.core.leasing.known_book import KnownBook

if TYPE_CHECKING:
    from trainer_client.core import instructions as i
    from trainer_client.core.asking.wants import Wants
    from trainer_client.core.settings import CoreSettings

__all__ = ["LeasedQueue"]


class LeasedQueue:
    """The trainer's leases of batches, and of the work after training, with the messages about them."""

    def __init__(
        self,
        settings: CoreSettings,
        attached: m.Attached,
        upcoming: LeasedUpcoming,
        wants: Wants,
        out: list[i.Instruction],
    ) -> None:
        self._upcoming = upcoming
        self._wants = wants
        self._book = KnownBook(attached.stream, attached.work or "", out)
        self.leases = HeldLeases(settings, attached, wants.prefetch, upcoming, book=self._book, out=out)
        self.end = EndLease(settings, attached, self._book, out)

    @property
    def due_s(self) -> float:
        """Return when a message to the coordinator is due next."""
        return min(self.leases.due_s, self.end.due_s)

    def attach(self, answer: m.Attached, now_s: float, *, restores: bool) -> None:
        """Repeat the open messages; forget all leases first if a checkpoint is restored."""
        # The coordinator may have been restarted between a message and its answer, and cannot ask for what it never
        # got.
        if restores:
            self._book.begin_anew(answer.book)
            self.leases.rewind(answer.cursor.epoch)
        self._book.learn(answer.book)
        self.leases.repeat(now_s)
        self.end.repeat(now_s)

    def learn(self, epoch: int, group: int, batches: int, now_s: float) -> None:
        """Do nothing: the coordinator knows how many batches an epoch has."""

    def open(self, event: e.Opened, now_s: float) -> None:
        """Serve this reader from now on; if its upcoming batches replace the present ones, cancel all open wants."""
        if self.leases.serve(event.reader, event.start.epoch, event.taken, now_s):
            self._wants.refocus()

    def extend(self, most: int, now_s: float) -> range:
        """Add up to `most` of the leased batches to the sequence; return their numbers."""
        return self._upcoming.extend(most)

    def take(self, event: e.Event, now_s: float) -> None:
        """Handle an event about leases, a consumer's report or question; raise AssertionError for any other event."""
        match event:
            case e.LeaseSettled():
                self.leases.settle(event)
            case e.StateAsked():
                self.leases.ask_state(event.serial)
            case e.EvaluationNamed():
                self.leases.begin_evaluation(event.name, event.nbytes)
            case e.SumsAsked():
                self.leases.ask_sums(event.serial)
            case e.Saved():
                self._book.note_saved(event.name)
            case e.EndAsked():
                self.end.ask(event.serial, now_s)
            case e.EndSettled():
                self.end.ask(event.serial, now_s, done=event.done)
            case _:
                raise AssertionError(f"{event} in queue mode")

    def receive(self, message: m.Leases | m.Recalled, now_s: float) -> bool:
        """Take in an answer about leases, or a call to send a message; return False if no open message expects it."""
        if isinstance(message, m.Leases):
            return self.leases.receive(message, now_s) or self.end.receive(message, now_s)
        self.leases.call()
        self.end.repeat(now_s)
        return True

    def drain(self) -> None:
        """Lease no more, because the job was ended; batches that are held are still read."""
        self.leases.drain()

    def decide(self, now_s: float) -> None:
        """Send the messages that are due to the coordinator."""
        self.leases.decide(now_s)
        self.end.decide(now_s)

    def excuse(self, now_s: float) -> None:
        """Restart the timers: this trainer stalled, so it could hear no answer."""
        self.leases.excuse(now_s)
        self.end.excuse(now_s)
