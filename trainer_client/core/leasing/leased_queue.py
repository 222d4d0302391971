"""Sharing a stream's batches as a queue: what this trainer trains on is leased to it by the coordinator.

Members of an elastic job lease like all others; that their world is over is the core's own business.

Rules: pure. What is open about batches (`held_leases`) and about the end of training (`end_lease`) goes by one book, so
that a coordinator that lost its journal is noticed once (`known_book`). Must not know workers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from shared.wire import messages as m
from trainer_client.core import events as e
from trainer_client.core.leasing.end_lease import EndLease
from trainer_client.core.leasing.held_leases import HeldLeases, LeasedUpcoming
from trainer_client.core.leasing.known_book import KnownBook

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainer_client.core import instructions as i
    from trainer_client.core.asking.wants import Wants
    from trainer_client.core.settings import CoreSettings

__all__ = ["LeasedQueue"]


class LeasedQueue:
    """What is leased, and what is open with the coordinator about it."""

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
        """When there will be something to say."""
        return min(self.leases.due_s, self.end.due_s)

    def attach(self, answer: m.Attached, now_s: float, *, restores: bool) -> None:
        """Say again what is open; forget all leases first if a checkpoint is restored.

        The coordinator may have been restarted between a message and its answer, and cannot ask for what it never got.
        """
        if restores:
            self._book.begin_anew(answer.book)
            self.leases.rewind(answer.cursor.epoch)
        self._book.learn(answer.book)
        self.leases.repeat(now_s)
        self.end.repeat(now_s)

    def learn(self, epoch: int, group: int, batches: int, now_s: float) -> None:
        """Do nothing: the coordinator knows how many batches an epoch has."""

    def open(self, event: e.Opened, now_s: float) -> None:
        """Serve this reader from now on; if other batches lie ahead than before, cancel what was asked for."""
        if self.leases.serve(event.reader, event.start.epoch, event.taken, now_s):
            self._wants.refocus()

    def extend(self, most: int, now_s: float) -> range:
        """Add up to this many of the leased batches; return their numbers."""
        return self._upcoming.extend(most)

    def take(self, event: e.Event, now_s: float) -> None:
        """Take in what a consumer did with its leases, or asks about them."""
        self._doors[type(event)](self, event, now_s)

    def receive(self, message: m.Leases | m.Recalled, now_s: float) -> bool:
        """Take in what the coordinator says of leases; return False if it answers nothing that is open."""
        if isinstance(message, m.Leases):
            return self.leases.receive(message, now_s) or self.end.receive(message, now_s)
        self.leases.call()
        self.end.repeat(now_s)
        return True

    def drain(self) -> None:
        """Finish what is held, because the job was ended, and lease no more."""
        self.leases.drain()

    def decide(self, now_s: float) -> None:
        """Say what is due to the coordinator."""
        self.leases.decide(now_s)
        self.end.decide(now_s)

    def excuse(self, now_s: float) -> None:
        """Restart the timers: this trainer stalled, so it could hear no answer."""
        self.leases.excuse(now_s)
        self.end.excuse(now_s)

    def _on_settled(self, event: e.LeaseSettled, _now_s: float) -> None:
        self.leases.settle(event)

    def _on_state_asked(self, event: e.StateAsked, _now_s: float) -> None:
        self.leases.ask_state(event.serial)

    def _on_evaluation_named(self, event: e.EvaluationNamed, _now_s: float) -> None:
        self.leases.begin_evaluation(event.name, event.nbytes)

    def _on_sums_asked(self, event: e.SumsAsked, _now_s: float) -> None:
        self.leases.ask_sums(event.serial)

    def _on_saved(self, event: e.Saved, _now_s: float) -> None:
        self._book.note_saved(event.name)

    def _on_end_asked(self, event: e.EndAsked, now_s: float) -> None:
        self.end.ask(event.serial, now_s)

    def _on_end_settled(self, event: e.EndSettled, now_s: float) -> None:
        self.end.settle(event.serial, now_s, done=event.done)

    _doors: ClassVar[dict[type, Callable[..., None]]] = {
        e.LeaseSettled: _on_settled,
        e.StateAsked: _on_state_asked,
        e.EvaluationNamed: _on_evaluation_named,
        e.SumsAsked: _on_sums_asked,
        e.Saved: _on_saved,
        e.EndAsked: _on_end_asked,
        e.EndSettled: _on_end_settled,
    }
