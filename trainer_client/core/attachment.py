"""The open request to attach, and how long the coordinator has been silent.

Rules: pure. Every answer names its request: an answer to any but the open one is dropped and counted, and a position
other than the requested one is an error. A request is repeated under the same number until it is answered. Losing the
coordinator after that is no error: training in lockstep goes on. When the coordinator is back, the trainer attaches
again with the cursor at which it attached first: every rank sends that one, because by now each may be at a different
step. A trainer that was attached and is refused is over: it sends nothing more, because a newer one may have its rank.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from shared.errors import ProtocolError, RefusedError, StokerError, WorldChangedError
from shared.silence import Silence
from shared.wire import messages as m
from trainer_client.core import instructions as i

if TYPE_CHECKING:
    from shared.wire.message_parts import Cursor, DoneSet
    from trainer_client.core.settings import CoreSettings

__all__ = ["Attachment", "attach_request"]

#: Back-off between repetitions of a request, and the pause if the connection was not up yet.
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 1.0
_NOT_YET_S = 0.01

#: The heartbeat timeout until the coordinator sends the job's.
_USUAL_TIMEOUT_S = 2.0


class Attachment:
    """The trainer's attachment to the coordinator; `attached` is true once the coordinator has agreed."""

    def __init__(self, settings: CoreSettings, out: list[i.Instruction]) -> None:
        self.attached = False
        #: How many answers named a request other than the open one.
        self.late_answers = 0
        #: When the last message of the coordinator came.
        self.heard_s = 0.0
        #: The last reason that the coordinator gave for not being ready.
        self.last_reason = "no answer"
        self._settings = settings
        self._out = out
        self._serial = 0
        #: The cursor of the open request.
        self._asked: Cursor | None = None
        #: In queue mode: the done-set of the open request, if it restores a checkpoint.
        self._asked_done: DoneSet | None = None
        self._open = False
        #: The serial of the caller that waits for the answer.
        self._answer_to: int | None = None
        #: The cursor at which a caller attached last, for attaching again after the coordinator was away.
        self._attached_at: Cursor | None = None
        #: The tenure of our ranks that the coordinator granted last.
        self._tenure: int | None = None
        self._is_over = False
        self._again_s = float("inf")
        self._pause_s = _FIRST_PAUSE_S
        self._beat_s = float("inf")
        self._timeout_s = _USUAL_TIMEOUT_S
        self._silence = Silence()

    @property
    def due_s(self) -> float:
        """Return when a message is due next, or the connection is to be replaced; infinity once the feed is over.

        Before the first request, when nothing is due, it is infinity as well.
        """
        if self._is_over:
            return float("inf")
        if self._open:
            return min(self._again_s, self._silence.due_s(self._timeout_s))
        return self._beat_s

    @property
    def restores(self) -> bool:
        """Return whether the latest request rewinds to a checkpoint's done-set."""
        return self._asked_done is not None

    def ask(self, cursor: Cursor | None, now_s: float, *, waiting: int | None, done: DoneSet | None = None) -> None:
        """Request to attach at this cursor, or in queue mode with this done-set, at the next `tick`.

        `waiting` is the serial of the waiting caller, None if no caller waits. The request replaces an open one, whose
        answer is dropped from now on.
        """
        self._serial += 1
        # The coordinator had nothing to answer until now, so its silence so far is no reason to replace the connection.
        self._silence.excuse(now_s)
        self._asked, self._asked_done, self._open, self._answer_to = cursor, done, True, waiting
        self._again_s, self._pause_s = now_s, _FIRST_PAUSE_S

    def _say(self, now_s: float) -> None:
        request = attach_request(self._settings, self._asked, self._asked_done)
        self._out.append(i.ToCoordinator(replace(request, serial=self._serial, tenure=self._tenure)))
        self._again_s = now_s + self._pause_s
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)

    def try_soon(self, now_s: float) -> None:
        """Try an unsent request again after 10 ms: the connection is being made, and back-off would delay attaching."""
        self._again_s, self._pause_s = now_s + _NOT_YET_S, _FIRST_PAUSE_S

    def tick(self, members: int, now_s: float) -> None:
        """Send the request or heartbeat that is due; replace the connection if the coordinator is silent.

        On a replaced connection an open request is repeated at once. Do nothing once the feed is over. `members` is the
        version of the worker list.
        """
        if self._is_over:
            return
        self._renew(now_s)
        if self._open and now_s >= self._again_s:
            self._say(now_s)
        if not self._open and now_s >= self._beat_s:
            self._beat_s = now_s + self._timeout_s / 4
            self._out.append(i.SendProgress(members))

    def _renew(self, now_s: float) -> None:
        """Replace the connection if nothing has been heard on it for the heartbeat timeout.

        One side may have lost the connection without noticing, and would wait for ever. Do nothing if we are not
        attached and no request is open.
        """
        if (self.attached or self._open) and self._silence.lose_patience(now_s, self._timeout_s):
            self._again_s, self._pause_s = now_s, _FIRST_PAUSE_S
            if self._silence.begins():
                self._out.append(i.WriteLog("warning", "the coordinator is silent"))
            self._out.append(i.RenewCoordinator())

    def hear(self, now_s: float) -> None:
        """Note that the coordinator sent something now, which resets the back-off and ends a silence in the log."""
        self.heard_s = now_s
        silent_s = self._silence.hear(now_s)
        if silent_s is not None:
            self._out.append(i.WriteLog("info", "the coordinator answers again", {"seconds": round(silent_s, 1)}))

    def wait(self, wait: m.Wait, now_s: float) -> None:
        """Put the open request off for as long as the coordinator asks, because it is not ready yet.

        Drop and count an answer to any other request.
        """
        if self._take_answer(wait.serial):
            self.last_reason = wait.reason
            self._again_s = now_s + wait.retry_ms / 1000
            # The coordinator says nothing before we ask again, so that pause must not count as silence.
            self._silence.excuse(self._again_s)

    def _take_answer(self, serial: int) -> bool:
        # An answer from before a restore must not be taken for the one after it: both would name a position, and the
        # ranks would stand at different ones.
        answers = self._open and serial == self._serial
        self.late_answers += not answers
        return answers

    def agree(self, attached: m.Attached, now_s: float) -> bool:
        """Become attached; return False if this answers another request, or another position than the requested one.

        An answer to another request is only counted. In lockstep, another epoch or number, or another group in
        mid-epoch, is passed on by `refuse` as a ProtocolError. In queue mode any position is right.
        """
        if not self._take_answer(attached.serial):
            return False
        requested, cursor = self._asked, attached.cursor
        expected = (0, 0) if requested is None else (requested.epoch, requested.number)
        # At the beginning of an epoch the coordinator may give another group; in mid-epoch batches would differ.
        same_group = requested is None or not requested.number or requested.group == cursor.group
        if not attached.work and ((cursor.epoch, cursor.number) != expected or not same_group):
            self.refuse(_elsewhere(expected, cursor))
            return False
        self._timeout_s = attached.heartbeat_timeout_ms / 1000
        self.attached, self._tenure = True, attached.tenure
        self._beat_s = now_s + self._timeout_s / 4
        # Only a caller's request sets where to attach again: by the time that the coordinator comes back each rank may
        # be at a different step, and all have to name the same position. In queue mode the coordinator knows it.
        if self._answer_to is not None and not attached.work:
            self._attached_at = cursor
        return True

    def answer(self, answer: m.Attached | BaseException) -> bool:
        """Close the request and pass its answer to the waiting caller; return False if no caller waits."""
        waiting, self._answer_to = self._answer_to, None
        self._open = False
        if waiting is not None:
            self._out.append(i.AnswerAttach(waiting, answer))
        return waiting is not None

    def refuse(self, error: StokerError, *, serial: int | None = None) -> None:
        """Pass a refusal to the waiting caller; end the feed if no caller waits, or a newer trainer has our rank.

        A newer trainer counts only if we were attached. Unless our elastic world is over, the end of the feed also
        hangs up, and nothing is sent any more. Drop a refusal with the `serial` of another than the open request, and
        any that comes after the end.
        """
        if self._is_over or (serial is not None and not self._take_answer(serial)):
            return
        # A superseded trainer is over even if a caller gets the refusal, because a newer one has its rank.
        has_caller = self.answer(error)
        is_superseded = isinstance(error, RefusedError) and error.code == "superseded"
        if not has_caller or (self.attached and is_superseded):
            self._out.append(i.Fail(error))
            # A member of a world that is over stays until its user leaves. The next world begins once all members have
            # left, and must not restore a checkpoint while this one may still be committing another.
            if not isinstance(error, WorldChangedError):
                self._is_over = True
                self._out.append(i.HangUp())

    def come_back(self, now_s: float) -> None:
        """Attach again where a caller attached last: the coordinator was restarted or lost us, and does not know us.

        In queue mode the coordinator knows the position. Do nothing if a request is open already, or the feed is over.
        """
        if not self._open and not self._is_over:
            self.ask(self._attached_at, now_s, waiting=None)

    def excuse(self, now_s: float) -> None:
        """Restart the silence timer: we stalled, so we could not have heard the coordinator."""
        self._silence.excuse(now_s)


def attach_request(settings: CoreSettings, cursor: Cursor | None, done: DoneSet | None) -> m.Attach:
    """Return the request to attach at this cursor, or in queue mode with this done-set.

    Its serial is 1 and its tenure None, for the caller to replace.
    """
    ranks = settings.ranks
    return m.Attach(
        serial=1,
        job=settings.job,
        stream=settings.stream,
        rank=ranks.rank,
        replicas=ranks.replicas,
        world=ranks.world,
        incarnation=settings.incarnation,
        name=settings.name,
        cursor=cursor,
        work=settings.work or None,
        done=done,
        world_version=settings.world_version,
        tenure=None,
    )


def _elsewhere(expected: tuple[int, int], got: Cursor) -> StokerError:
    return ProtocolError(
        expected=f"to attach at epoch {expected[0]}, batch {expected[1]}, as was asked",
        got=f"epoch {got.epoch}, batch {got.number}",
        where="coordinator",
        remedy="Trainer and coordinator disagree: install the same release on both, and report this.",
    )
