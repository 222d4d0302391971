"""The trainer's core: one pure object with one door, `handle(events, now_s) -> instructions`.

It owns every decision of a trainer: which batches come next (`upcoming`), which worker is asked and when again
(`wants`), who holds which ticket (`worker_tickets`), what answers mean (`answers`), the state of each slot
(`slot_states`), the connection to each worker (`connections`), and the open request to the coordinator (`attachment`).
Each fact has one owner, and nobody else changes it. Until the coordinator has agreed there is only the attachment;
everything else is in `attached_stream`.

Rules: pure. All events of a turn come in at once and lead to one decision, because deciding after each would double the
cost. Instructions are carried out in order, and their outcomes come back as events of the same turn. A consumer's
action may be reported late, or never if a signal came in between, so it is inferred from later events. The core must
not know sockets, threads, memory, TensorFlow, or what time it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.wire import messages as m
from shared.wire.refusing import error_of
from trainer_client.core import events as e
from trainer_client.core import instructions as i
from trainer_client.core.attached_stream import AttachedStream
from trainer_client.core.attachment import Attachment
from trainer_client.core.feed_errors import other_plan, world_over

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trainer_client.core.settings import CoreSettings

__all__ = ["Core"]


class Core:
    """A trainer's decisions, from the events of each turn."""

    def __init__(self, settings: CoreSettings) -> None:
        #: When to call `handle` again at the latest, with events or without.
        self.due_s = float("inf")
        #: How many messages were not expected.
        self.strays = 0
        self._settings = settings
        self._out: list[i.Instruction] = []
        self.attachment = Attachment(settings, self._out)
        #: None until the coordinator has agreed.
        self.stream: AttachedStream | None = None
        #: When the last turn was, to notice that this process stalled.
        self._seen_s = float("inf")
        #: Whether the end of our elastic world was reported already.
        self._is_out = False

    def handle(self, events: Iterable[e.Event], now_s: float) -> list[i.Instruction]:
        """Take in the events of a turn; return the instructions that follow, in the order to carry them out.

        If the last turn was more than half a heartbeat timeout ago, this process stalled, and the timers of others'
        silence start again first. Errors of the feed are instructions; only a world beyond the group raises ValueError.
        """
        # A process that was stopped finds everyone silent when it goes on, and would give up all workers at once.
        if self.stream is not None and now_s - self._seen_s > self.stream.spec.heartbeat_timeout_s / 2:
            self.stream.excuse(now_s)
            self.attachment.excuse(now_s)
        self._seen_s = now_s
        for event in events:
            self._take(event, now_s)
        # One decision for all events of the turn: deciding after each would double the cost.
        members, due_s = self._decide(now_s)
        self.attachment.tick(members, now_s)
        self.due_s = min(self.attachment.due_s, due_s)
        out = self._out[:]
        self._out.clear()
        return out

    def _decide(self, now_s: float) -> tuple[int, float]:
        """Let the stream decide; return the version of its worker list, and when it has to decide again.

        Return 0 and infinity before the coordinator has agreed.
        """
        if self.stream is None:
            return 0, float("inf")
        self.stream.decide(now_s)
        return self.stream.connections.list.version, self.stream.due_s

    @property
    def _attached(self) -> AttachedStream:
        """Return the attached stream; no event about it may come before the coordinator has agreed."""
        assert self.stream is not None
        return self.stream

    def _take(self, event: e.Event, now_s: float) -> None:
        match event:
            case e.WorkerSent():
                self.strays += not self._attached.hear_worker(event, now_s)
            case e.CoordinatorSent():
                self.attachment.hear(now_s)
                self._hear_coordinator(event.message, now_s)
            case e.CoordinatorAway():
                self.attachment.try_soon(now_s)
            case e.AttachAsked():
                self.attachment.ask(event.cursor, now_s, waiting=event.serial, done=event.done)
            case e.Saved() if self.stream is None:
                pass  # a user may restore a checkpoint before the coordinator has agreed
            case _:
                self._attached.take(event, now_s)

    # --- the coordinator ---

    def _hear_coordinator(self, message: m.Message, now_s: float) -> None:
        match message:
            case m.Attached():
                self._on_attached(message, now_s)
            case m.Wait():
                self.attachment.wait(message, now_s)
            case m.NotAttached():
                self.attachment.refuse(error_of(message, "coordinator"), serial=message.serial)
                self._leave_world(message.code == "changed", message.got)
            case m.Refused() if message.code == "unknown":
                self.attachment.come_back(now_s)
            case m.Refused():
                self.attachment.refuse(error_of(message, "coordinator"))
            case m.WorldOver():
                self._leave_world(message.version == self._settings.world_version, message.reason)
            case _ if self.stream is not None:
                self.strays += not self.stream.hear_coordinator(message, now_s)
            case _:  # messages to a former trainer of these ranks may still arrive
                self.strays += not isinstance(message, m.Noted | m.Limited | m.Members | m.Failing)

    def _leave_world(self, is_over: bool, reason: str) -> None:  # noqa: FBT001 - it is what is asked
        """End the feed, once, by a WorldChangedError if our elastic world is over; the user then joins the next one."""
        # The news may come twice: as the answer to a request, and by itself.
        if is_over and not self._is_out:
            self._is_out = True
            self._out.append(i.Fail(world_over(reason)))

    def _on_attached(self, answer: m.Attached, now_s: float) -> None:
        """Become attached, or take in what changed while the coordinator was away; refuse an answer of another plan.

        Do nothing more with an answer that `Attachment.agree` does not accept. A refusal for another plan goes to the
        waiting caller, or ends the feed if no caller waits. Raise ValueError if the world exceeds the group.
        """
        if not self.attachment.agree(answer, now_s):
            return
        if self.stream is None:
            self.stream = AttachedStream(self._settings, answer, self._out)
        # A coordinator that was restarted on other data has another plan: its batch 7 is not our batch 7. So this comes
        # before any batch is asked for.
        ours, theirs = self.stream.spec.plan_digest, answer.cursor.plan_digest
        if ours != theirs:
            self.attachment.refuse(other_plan(ours, theirs))
            return
        self.stream.attach(answer, now_s, restores=self.attachment.restores)
        self.attachment.answer(answer)
