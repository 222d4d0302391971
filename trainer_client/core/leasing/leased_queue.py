"""Sharing a stream's batches as a queue: the coordinator leases batches to trainers.

Members of an elastic job lease like all others; the end of their world is handled in `core`.

Rules: pure. Leases of batches (`held_leases`) and of the work after training (`EndLease`) share one book, so that a
coordinator that lost its journal is noticed once (`known_book`). Must not know workers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.wire import messages as m
from shared.wire.message_parts import Failure
from trainer_client.core import events as e
from trainer_client.core import instructions as i
from trainer_client.core.leasing.held_leases import HeldLeases, LeasedUpcoming
from trainer_client.core.leasing.known_book import KnownBook, LeaseWait

if TYPE_CHECKING:
    from shared.wire.message_parts import Lease
    from trainer_client.core.asking.prefetch import Prefetch
    from trainer_client.core.asking.wants import Wants
    from trainer_client.core.settings import CoreSettings

__all__ = ["EndLease", "LeasedQueue"]


#: Above all serials of `held_leases`.
_FIRST_SERIAL = 2**47
#: How often the open message about the work after training is repeated.
_PAUSE_S = 0.5


class LeasedQueue:
    """The trainer's leases of batches, and of the work after training, with the messages about them."""

    def __init__(  # noqa: PLR0913, PLR0917 - the parts that it works with
        self,
        settings: CoreSettings,
        attached: m.Attached,
        upcoming: LeasedUpcoming,
        wants: Wants,
        prefetch: Prefetch,
        out: list[i.Instruction],
    ) -> None:
        self._upcoming = upcoming
        self._wants = wants
        self._book = KnownBook(attached.stream, attached.work or "", out)
        self.leases = HeldLeases(settings, attached, prefetch, upcoming, book=self._book, out=out)
        self.end = EndLease(settings, attached, self._book, out)

    @property
    def due_s(self) -> float:
        """Return when a message to the coordinator is due next; infinity if only an event can cause one."""
        return min(self.leases.due_s, self.end.due_s)

    def attach(self, answer: m.Attached, now_s: float, *, restores: bool) -> None:
        """Repeat the open messages; forget all leases first if a checkpoint is restored.

        Take the answer's mark of the lease book if none is known yet, or if a checkpoint is restored.
        """
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
        """Add up to `most` of the leased batches to the sequence; return their numbers, which may be none."""
        return self._upcoming.extend(most)

    def take(self, event: e.Event, now_s: float) -> None:
        """Handle an event about leases, work after training or a saved checkpoint; raise AssertionError for another."""
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
        """Take in a call for a message, or an answer about leases; return False for an answer to no open message."""
        if isinstance(message, m.Leases):
            return self.leases.receive(message, now_s) or self.end.receive(message, now_s)
        self.leases.call()
        self.end.repeat(now_s)
        return True

    def drain(self) -> None:
        """Lease no more, because the job was ended; batches that are held are still read."""
        self.leases.drain()

    def decide(self, now_s: float) -> None:
        """End a reader whose epoch has no batches left, and send the messages that are due to the coordinator.

        An answer that is missing for too long ends the feed.
        """
        self.leases.decide(now_s)
        self.end.decide(now_s)

    def excuse(self, now_s: float) -> None:
        """Restart the timers: this trainer stalled, so it could hear no answer."""
        self.leases.excuse(now_s)
        self.end.excuse(now_s)


class EndLease:
    """The open message to the coordinator about the work that one trainer does once, after training, and its answer.

    When all epochs are settled, the coordinator leases this work to one trainer, and to another if that one is gone
    before the work is done. One message is open at a time and is repeated unchanged until it is answered. A caller that
    asked for the work gets an answer when it has the lease, or when the work is done; a caller that reports the work
    done, when that is on the coordinator's disk. Serials lie above those of the batches' messages, so that an answer
    shows which of the two it is for.
    """

    def __init__(self, settings: CoreSettings, attached: m.Attached, book: KnownBook, out: list[i.Instruction]) -> None:
        #: When a message is due next while the book is not lost.
        self._due_s = float("inf")
        self._settings = settings
        self._stream = attached.stream
        self._timeout_s = attached.heartbeat_timeout_ms / 1000
        self._book = book
        self._out = out
        self._serial = _FIRST_SERIAL
        self._wait = LeaseWait(attached, settings.lost_timeout_s, out)
        self._generation = 0
        self._open: m.Outcomes | None = None
        #: The serial of the waiting caller; None if no caller waits.
        self._asked: int | None = None
        self._lease: Lease | None = None
        self._is_report = False

    @property
    def due_s(self) -> float:
        """Return when a message is due next; infinity if only an event can cause one, or the book is lost."""
        return float("inf") if self._book.is_lost else self._due_s

    def ask(self, serial: int, now_s: float, *, done: bool | None = None) -> None:
        """Ask for the lease of the work, or report it as `done` or failed, for the caller with this serial.

        `done` is None to ask for the lease, True or False to report. A caller that waits already is replaced.
        """
        self._asked, self._is_report = serial, done is not None
        self._say(now_s, done=done)

    def repeat(self, now_s: float) -> None:
        """If a caller waits, repeat the open message or ask again: the coordinator knows us again or has news."""
        # The trainer that had the lease may have died in the work, so that the lease may be ours now.
        if self._asked is not None:
            self._due_s = now_s

    def _say(self, now_s: float, *, done: bool | None = None) -> None:
        lease = () if self._lease is None else (self._lease,)
        failed = tuple(Failure(held, "") for held in lease) if done is False else ()
        self._serial += 1
        self._open = m.Outcomes(
            stream=self._stream, work="train-end", incarnation=self._settings.incarnation, serial=self._serial,
            book=self._book.mark, generation=self._generation, done=lease if done else (), failed=failed, returned=(),
            in_hand=None, wanted=int(done is None), before=self._settings.epochs or 0, snapshot=False,
        )  # fmt: skip
        self._due_s = now_s

    def receive(self, answer: m.Leases, now_s: float) -> bool:
        """Take in an answer; return False if it is not for the open message.

        The caller is answered if we have the lease, if the work is done already, or if the message was its report.
        Otherwise we ask again after half a heartbeat timeout. An answer from another book of leases ends the feed.
        """
        if self._open is None or answer.serial != self._open.serial:
            return False
        self._wait.end()
        if not self._book.hear(answer.book):
            self._open, self._due_s = None, float("inf")
            return True
        self._open, self._generation = None, answer.generation
        self._lease = answer.leases[0] if answer.leases and not self._is_report else None
        if self._is_report or self._lease is not None or answer.unsettled:
            assert self._asked is not None
            self._out.append(i.AnswerEnd(self._asked, self._lease is not None))
            self._asked, self._due_s = None, float("inf")
        else:
            self._due_s = now_s + self._timeout_s / 2
        return True

    def decide(self, now_s: float) -> None:
        """Send the message that is due, and bound the wait for its answer with `LeaseWait`, which may end the feed.

        A message that is not answered is due again 0.5 s later. Do nothing once the coordinator's book is lost.
        """
        if now_s < self.due_s:
            return
        if self._open is None:
            self._say(now_s)
        assert self._open is not None
        self._wait.look(now_s)
        self._due_s = now_s + _PAUSE_S
        self._out.append(i.ToCoordinator(self._open))

    def excuse(self, now_s: float) -> None:
        """Restart the wait for an answer: this trainer stalled, so it could hear none."""
        self._wait.excuse(now_s)
