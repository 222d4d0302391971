"""In queue mode: the lease of the work that one trainer does once, after training.

Rules: pure. When all epochs are settled, the coordinator leases this work to one trainer, and to another if that one is
gone before the work is done. One message is open at a time and is repeated unchanged until it is answered. A caller
that asked for the work gets an answer when it has the lease, or when the work is done; a caller that reports the work
done, when that is on the coordinator's disk. Serials lie above those of the batches' messages, so that an answer shows
which of the two it is for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.wire import messages as m
from shared.wire.message_parts import Failure
from trainer_client.core import instructions as i
from trainer_client.core.leasing.known_book import LeaseWait

if TYPE_CHECKING:
    from shared.wire.message_parts import Lease
    from trainer_client.core.leasing.known_book import KnownBook
    from trainer_client.core.settings import CoreSettings

__all__ = ["EndLease"]

#: Above all serials of `held_leases`.
_FIRST_SERIAL = 2**47
#: How often the open message is repeated.
_PAUSE_S = 0.5


class EndLease:
    """The open message to the coordinator about the work after training, and its answer."""

    def __init__(self, settings: CoreSettings, attached: m.Attached, book: KnownBook, out: list[i.Instruction]) -> None:
        #: When a message is due next.
        self.due_s = float("inf")
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

    def ask(self, serial: int, now_s: float, *, done: bool | None = None) -> None:
        """Ask for the lease of the work, or report it as `done` or failed, for the caller with this serial."""
        self._asked, self._is_report = serial, done is not None
        self._say(now_s, done=done)

    def repeat(self, now_s: float) -> None:
        """Repeat the open message or ask again at once, because the coordinator knows us again or has news."""
        # The trainer that had the lease may have died in the work, so that the lease may be ours now.
        if self._asked is not None:
            self.due_s = now_s

    def _say(self, now_s: float, *, done: bool | None = None) -> None:
        lease = () if self._lease is None else (self._lease,)
        failed = tuple(Failure(held, "") for held in lease) if done is False else ()
        self._serial += 1
        self._open = m.Outcomes(
            stream=self._stream, work="train-end", incarnation=self._settings.incarnation, serial=self._serial,
            book=self._book.mark, generation=self._generation, done=lease if done else (), failed=failed, returned=(),
            in_hand=None, wanted=int(done is None), before=self._settings.epochs or 0, snapshot=False,
        )  # fmt: skip
        self.due_s = now_s

    def receive(self, answer: m.Leases, now_s: float) -> bool:
        """Take in an answer; return False if it is not for the open message.

        The caller is answered if we have the lease, if the work is done already, or if the message was its report.
        Otherwise we ask again after half a heartbeat timeout.
        """
        if self._open is None or answer.serial != self._open.serial:
            return False
        self._wait.end()
        if not self._book.hear(answer.book):
            self._open, self.due_s = None, float("inf")
            return True
        self._open, self._generation = None, answer.generation
        self._lease = answer.leases[0] if answer.leases and not self._is_report else None
        if self._is_report or self._lease is not None or answer.unsettled:
            assert self._asked is not None
            self._out.append(i.AnswerEnd(self._asked, self._lease is not None))
            self._asked, self.due_s = None, float("inf")
        else:
            self.due_s = now_s + self._timeout_s / 2
        return True

    def decide(self, now_s: float) -> None:
        """Send the message that is due."""
        if now_s < self.due_s or self._book.is_lost:
            return
        if self._open is None:
            self._say(now_s)
        assert self._open is not None
        self._wait.look(now_s)
        self.due_s = now_s + _PAUSE_S
        self._out.append(i.ToCoordinator(self._open))

    def excuse(self, now_s: float) -> None:
        """Restart the wait for an answer: this trainer stalled, so it could hear none."""
        self._wait.excuse(now_s)
