"""The core's state while the trainer is attached to a stream, and the handler of each event.

Rules: pure. Everything that exists only while attached lives in one object, so that no part of it can be used before
the coordinator has agreed. The object is never dropped again: losing the coordinator does not stop training. What
differs between lockstep and queue mode is decided in `lockstep` and `leasing.leased_queue`, nowhere else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from shared.bad_limit import BadLimit
from shared.wire import messages as m
from shared.wire.refusing import error_of
from trainer_client.core import events as e
from trainer_client.core import instructions as i
from trainer_client.core.asking.answers import Answers
from trainer_client.core.asking.bad_rows import BadRows
from trainer_client.core.asking.questions import Questions
from trainer_client.core.asking.wants import Wants
from trainer_client.core.failures import job_ended, nobody_left, refused_by_all
from trainer_client.core.job_end import JobEnd
from trainer_client.core.leasing.held_leases import HeldLeases, LeasedUpcoming
from trainer_client.core.leasing.leased_queue import LeasedQueue
from trainer_client.core.lockstep import Lockstep
from trainer_client.core.results import OpenResults
from trainer_client.core.settings import CoreSettings, slots_for
from trainer_client.core.slot_states import SlotStates
from trainer_client.core.stream_spec import StreamSpec
from trainer_client.core.upcoming import Position, Upcoming
from trainer_client.core.workers.connections import Connections
from trainer_client.core.workers.worker_tickets import WorkerTickets

if TYPE_CHECKING:
    from collections.abc import Callable

    from shared.errors import StokerError
    from trainer_client.core.workers.known_workers import KnownWorker

__all__ = ["AttachedStream"]

#: How often to check whether a silent writer is dead: a released lock raises no event, so it has to be polled.
_PROBE_S = 0.02


class AttachedStream:
    """Everything that exists once the trainer is attached to a stream."""

    def __init__(self, settings: CoreSettings, attached: m.Attached, out: list[i.Instruction]) -> None:
        spec = self.spec = StreamSpec.of(attached)
        slots, prefetch = slots_for(settings, spec)
        start = Position(attached.cursor.epoch, attached.cursor.number, attached.cursor.group)
        workers: dict[int, KnownWorker] = {}
        self._settings = settings
        self._out = out
        self.job_end = JobEnd(settings, attached, out)
        self.upcoming = (
            LeasedUpcoming(start, attached.work, settings)
            if attached.work
            else Upcoming(start, settings.ranks, repeats=attached.evaluation)
        )
        self.slots = SlotStates(slots)
        self.tickets = WorkerTickets(self.upcoming, self.slots, workers, out)
        bad_rows = BadRows(BadLimit(attached.max_bad, attached.max_bad_samples))
        self.answers = Answers(settings, spec, self.upcoming, self.slots, self.tickets, bad_rows, out)
        self.wants = Wants(
            settings, spec, prefetch, self.upcoming, self.slots, workers, self.tickets, self.answers, out
        )
        timeout_s = spec.heartbeat_timeout_s
        self.connections = Connections(settings, timeout_s, self.upcoming, workers, self.tickets, out)
        self.questions = Questions(spec, out)
        self.results = OpenResults(settings, out)
        #: How trainers share the stream's batches: in lockstep or as a queue of leases.
        self.sharing: Lockstep | LeasedQueue = (
            LeasedQueue(settings, attached, self.upcoming, self.wants, out)
            if isinstance(self.upcoming, LeasedUpcoming)
            else Lockstep(spec, self.upcoming, self.wants, self.questions, out)
        )
        #: When to look for silent workers and dead writers again.
        self._tick_s = 0.0
        #: Since when no worker could build the head; None while one can.
        self._alone_since_s: float | None = None
        self._failed = False
        self._wakes = i.WakeFor(room=True, slots=False)
        out.append(i.MakeSlots(spec, slots + 1))

    @property
    def leases(self) -> HeldLeases:
        """Return the leases that this trainer holds; only queue mode has any."""
        assert isinstance(self.sharing, LeasedQueue)
        return self.sharing.leases

    @property
    def due_s(self) -> float:
        """Return the latest time at which `decide` has to be called again."""
        parts = (self.connections.due_s(), self.questions.due_s, self.results.due_s, self.job_end.due_s)
        return min(self._tick_s, self.sharing.due_s, *parts)

    def excuse(self, now_s: float) -> None:
        """Restart all timers: we stalled.

        Everyone seems silent to a trainer that was stopped itself, and it would give up all workers at once.
        """
        self.tickets.excuse(now_s)
        self.connections.excuse(now_s)
        self.sharing.excuse(now_s)

    def attach(self, answer: m.Attached, now_s: float, *, restores: bool) -> None:
        """Take in an Attached message, the first one or one after the coordinator was away."""
        self.upcoming.regroup(answer.next_group)
        self.connections.update_list(answer.members, answer.workers, now_s)
        self.sharing.attach(answer, now_s, restores=restores)

    def decide(self, now_s: float) -> None:
        """Append the instructions that follow from everything that happened in this turn."""
        if now_s >= self._tick_s:
            self._tick(now_s)
        self.connections.greet(now_s)
        self.sharing.decide(now_s)
        # The sequence grows before wants are decided, so that newly known batches are asked for in the same turn.
        self._extend(now_s)
        self.wants.decide(now_s)
        self.results.tick(now_s)
        self.job_end.tick(now_s)
        self._watch_head(now_s)
        # While workers owe at least half of the prefetch, their answers wake this thread anyway; a wake-up for every
        # batch that is taken would only cost the consumer.
        wakes = i.WakeFor(room=2 * self.tickets.unanswered < self.wants.prefetch, slots=self.wants.short_of_slots)
        if wakes != self._wakes:
            self._wakes = wakes
            self._out.append(wakes)

    def _tick(self, now_s: float) -> None:
        self.connections.tick(now_s)
        writers = self.connections.probe()
        self._tick_s = now_s + (_PROBE_S if writers else self.spec.heartbeat_timeout_s / 8)

    def _extend(self, now_s: float) -> None:
        room = self.upcoming.head + self.wants.prefetch - self.upcoming.end
        if room > 0:
            self.wants.extend(self.sharing.extend(room, now_s))
        self.questions.tick(self.connections.serving(), now_s)

    def take(self, event: e.Event, now_s: float) -> None:
        """Handle an event that concerns the stream or its workers."""
        self._doors[type(event)](self, event, now_s)

    # --- consumers ---

    def _on_opened(self, event: e.Opened, now_s: float) -> None:
        self.sharing.open(event, now_s)

    def _on_took(self, event: e.Took, _now_s: float) -> None:
        self.slots.take(event.slot)
        self._pass(event.seq, event.slot)

    def _on_handed_back(self, event: e.HandedBack, _now_s: float) -> None:
        self.slots.hand_back(event.slot)
        self._pass(event.seq, event.slot)

    def _pass(self, seq: int, slot: int) -> None:
        """Advance the head behind batch `seq`, which was consumed, as were all before it.

        A batch that is handed back was taken, even if a signal kept the consumer from reporting it. After a redirection
        the entry is gone, or its batch is in another slot; then nothing moves.
        """
        entry = self.upcoming.entries.get(seq)
        if entry is not None and entry.slot == slot:
            self.upcoming.pass_to(seq + 1)

    def _on_taken_back(self, event: e.TakenBack, _now_s: float) -> None:
        self.wants.take_back(event.seq, won=event.won)

    def _on_lease_event(self, event: e.Event, now_s: float) -> None:
        self.sharing.take(event, now_s)

    def _on_results_told(self, event: e.ResultsTold, now_s: float) -> None:
        self.results.tell(event, now_s)

    def _on_question_asked(self, event: e.QuestionAsked, now_s: float) -> None:
        self.questions.ask(event.question, now_s)

    # --- the coordinator ---

    def hear_coordinator(self, message: m.Message, now_s: float) -> bool:
        """Handle a message about the stream; return False if it was not expected."""
        if isinstance(message, m.Members):
            self.connections.update_list(message.version, message.workers, now_s)
        elif isinstance(message, m.Failing):
            self.connections.note_failing(message)
        elif isinstance(message, m.Leases | m.Recalled):
            return self.sharing.receive(message, now_s)
        elif isinstance(message, m.Aggregate):
            return self.results.receive(message)
        elif isinstance(message, m.JobEnds):
            self.sharing.drain()
            self.job_end.hear(message, now_s)
        else:
            return isinstance(message, m.Noted)
        return True

    # --- workers ---

    def _on_connection_up(self, event: e.ConnectionUp, now_s: float) -> None:
        self.connections.note_up(event.connection_id, now_s)

    def _on_connection_down(self, event: e.ConnectionDown, now_s: float) -> None:
        self.connections.note_down(event.connection_id, now_s)

    def _on_connection_failed(self, event: e.ConnectionFailed, now_s: float) -> None:
        self.connections.note_turned_away(event.connection_id, event.error, now_s)

    def _on_greeting_failed(self, event: e.GreetingFailed, now_s: float) -> None:
        self.connections.note_greeting_failed(event.connection_id, now_s)

    def _on_lock_gone(self, event: e.LockGone, now_s: float) -> None:
        self.connections.note_lock_gone(event.incarnation, now_s)

    def hear_worker(self, event: e.WorkerSaid, now_s: float) -> bool:
        """Handle a worker's message; return False if it was not expected, or the connection serves no worker."""
        message, connection_id = event.message, event.connection_id
        worker = self.connections.worker_at(connection_id)
        if isinstance(message, m.Welcome):
            self.connections.welcome(connection_id, message, now_s, locked=bool(event.payload))
        elif isinstance(message, m.Refused):
            error = error_of(message, f"worker on connection {connection_id}")
            self.connections.note_turned_away(connection_id, error, now_s)
        elif isinstance(message, m.EpochAnswer | m.NameAnswer):
            self._on_answer(message, now_s)
        elif worker is None:
            return False
        elif isinstance(message, m.Pushed):
            self.answers.receive(worker, message, event.payload, now_s)
        elif isinstance(message, m.Cancelled):
            self.answers.give_up(worker, message.ticket, now_s)
        elif isinstance(message, m.Unbuilt):
            self._on_unbuilt(worker, message, now_s)
        elif isinstance(message, m.Pong):
            self.answers.reconcile(worker, message, now_s)
        else:
            return False
        return True

    def _on_unbuilt(self, worker: KnownWorker, unbuilt: m.Unbuilt, now_s: float) -> None:
        self.answers.give_up(worker, unbuilt.ticket, now_s, unbuilt)
        if worker.connection_id is None:
            return
        if unbuilt.code == "unknown":  # no more wants until it welcomes us again
            self.tickets.stop_asking(worker)
            self.connections.greet_again(worker.connection_id, now_s)
        elif unbuilt.code == "draining":
            self.connections.drain(worker.connection_id, now_s)

    def _on_answer(self, answer: m.EpochAnswer | m.NameAnswer, now_s: float) -> None:
        self.questions.answer(answer)
        if isinstance(answer, m.EpochAnswer):
            self.sharing.learn(answer.epoch, answer.group, answer.batches, now_s)

    def _on_checked(self, event: e.Checked, now_s: float) -> None:
        worker = self.connections.worker_at(event.connection_id)
        if worker is not None:
            self.answers.settle(worker, event.header, now_s, valid=event.valid)

    # --- the end ---

    def _watch_head(self, now_s: float) -> None:
        """End the feed once no worker has been able to build the head for `lost_timeout_s`.

        If all known workers refused it, or the job ends without draining, one heartbeat timeout is enough. A worker
        that could build the head may be listed and not connected yet, so every listed worker is tried first.
        """
        head = self.upcoming.entries.get(self.upcoming.head)
        refused = head.refused if head is not None else {}
        if self._failed or (head is not None and head.ready) or self.wants.somebody_can(refused):
            self._alone_since_s = None
            self.connections.need(somebody=False)
            return
        self.connections.need(somebody=True)
        if self._alone_since_s is None:
            self._alone_since_s = now_s
        alone_s = now_s - self._alone_since_s
        errors = [*refused.values()] or self.connections.list.refusals()
        quick = self.wants.all_refuse(refused) or self.job_end.drains is False
        patience_s = self.spec.heartbeat_timeout_s if quick else self._settings.lost_timeout_s
        if alone_s > patience_s and self.connections.is_all_tried(now_s):
            self._fail(errors)

    def _fail(self, errors: list[StokerError]) -> None:
        self._failed = True
        tried, listed = self.connections.tried()
        if self.job_end.drains is not None:
            self._out.append(i.Fail(job_ended()))
        elif errors:
            self._out.append(i.Fail(refused_by_all(errors[-1], len(errors), listed)))
        else:
            failing = self.connections.list.failing
            self._out.append(i.Fail(nobody_left(tried, listed, self._settings.lost_timeout_s, failing)))

    _doors: ClassVar[dict[type, Callable[..., None]]] = {
        e.Opened: _on_opened,
        e.Took: _on_took,
        e.HandedBack: _on_handed_back,
        e.TakenBack: _on_taken_back,
        e.LeaseSettled: _on_lease_event,
        e.StateAsked: _on_lease_event,
        e.EvaluationNamed: _on_lease_event,
        e.SumsAsked: _on_lease_event,
        e.Saved: _on_lease_event,
        e.EndAsked: _on_lease_event,
        e.EndSettled: _on_lease_event,
        e.QuestionAsked: _on_question_asked,
        e.ResultsTold: _on_results_told,
        e.ConnectionUp: _on_connection_up,
        e.ConnectionDown: _on_connection_down,
        e.ConnectionFailed: _on_connection_failed,
        e.GreetingFailed: _on_greeting_failed,
        e.LockGone: _on_lock_gone,
        e.Checked: _on_checked,
    }
