"""The trainer's core: one pure object with one door, `handle(events, now_s) -> instructions`.

It owns everything that a trainer decides: which batches come next (`upcoming`), which worker is asked and when again
(`wants`), who holds which ticket (`worker_tickets`), what answers mean (`answers`), what state each slot is in
(`slot_states`), how the connection to each worker stands (`connections`), and what is open with the coordinator
(`attachment`). Each fact has one owner, and nobody else changes it.

Rules: pure. All facts of a turn come in at once and lead to one decision, because deciding after each would double the
cost. Instructions are carried out in order, and what comes of them is reported as events of the same turn. What a
consumer did may reach us late, or never if a signal came in between, so it is inferred from later facts. The core must
not know sockets, threads, memory, TensorFlow, or what time it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from shared.bad_limit import BadLimit
from shared.wire import messages as m
from shared.wire.refusals import error_of
from trainer_client.core import events as e
from trainer_client.core import instructions as i
from trainer_client.core.asking.answers import Answers
from trainer_client.core.asking.bad_rows import BadRows
from trainer_client.core.asking.questions import Questions
from trainer_client.core.asking.wants import Wants
from trainer_client.core.attachment import Attachment
from trainer_client.core.failures import job_ended, nobody_left, other_plan, refused_by_all, world_over
from trainer_client.core.job_end import JobEnd
from trainer_client.core.leasing.end_lease import EndLease
from trainer_client.core.leasing.held_leases import HeldLeases, LeasedUpcoming
from trainer_client.core.leasing.known_book import KnownBook
from trainer_client.core.results import OpenResults
from trainer_client.core.settings import CoreSettings, slots_for
from trainer_client.core.slot_states import SlotStates
from trainer_client.core.stream_spec import StreamSpec
from trainer_client.core.upcoming import Position, Upcoming
from trainer_client.core.workers.connections import Connections
from trainer_client.core.workers.worker_tickets import WorkerTickets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from shared.errors import StokerError
    from trainer_client.core.workers.known_workers import KnownWorker

__all__ = ["AttachedStream", "Core"]

#: How often to check whether a silent writer is dead: a lock that goes gives no event to wait for.
_PROBE_S = 0.02


class AttachedStream:
    """What exists once the trainer is attached to a stream."""

    def __init__(self, settings: CoreSettings, attached: m.Attached, out: list[i.Instruction]) -> None:
        spec = self.spec = StreamSpec.of(attached)
        slots, prefetch = slots_for(settings, spec)
        cursor = attached.cursor
        start = Position(cursor.epoch, cursor.number, cursor.group)
        workers: dict[int, KnownWorker] = {}
        #: In queue mode.
        self.leases: HeldLeases | None = None
        self.book = KnownBook(spec.stream, attached.work or "", out)
        self.end = EndLease(settings, attached, self.book, out)
        self.job_end = JobEnd(settings, attached, out)
        self.upcoming = self._make_upcoming(settings, attached, start, prefetch, out)
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
        out.append(i.MakeSlots(spec, slots + 1))

    def _make_upcoming(
        self, settings: CoreSettings, attached: m.Attached, start: Position, prefetch: int, out: list[i.Instruction]
    ) -> Upcoming:
        if not attached.work:
            return Upcoming(start, settings.ranks, repeats=attached.evaluation)
        upcoming = LeasedUpcoming(start, attached.work, settings)
        self.leases = HeldLeases(settings, attached, prefetch, upcoming, book=self.book, out=out)
        return upcoming


class Core:
    """The state behind the door."""

    def __init__(self, settings: CoreSettings) -> None:
        #: When to call `handle` again at the latest, with events or without.
        self.due_s = float("inf")
        #: How many messages nobody expected.
        self.strays = 0
        self._settings = settings
        self._out: list[i.Instruction] = []
        self.attachment = Attachment(settings, self._out)
        #: None until the coordinator has agreed.
        self.stream: AttachedStream | None = None
        self._seen_s = float("inf")
        self._tick_s = 0.0
        self._opened: e.Opened | None = None
        self._alone_since_s: float | None = None
        self._failed = False
        #: The elastic world that we had a place in is over.
        self._is_out = False
        self._wakes = i.WakeFor(room=True, slots=False)

    def handle(self, events: Iterable[e.Event], now_s: float) -> list[i.Instruction]:
        """Take in what happened; returns what to do about it."""
        if self.stream is not None and now_s - self._seen_s > self.stream.spec.heartbeat_timeout_s / 2:
            self._excuse(self.stream, now_s)
        self._seen_s = now_s
        for event in events:
            self._doors[type(event)](self, event, now_s)
        if self.stream is not None:
            self._decide(self.stream, now_s)
        self.attachment.tick(self.stream.connections.list.version if self.stream is not None else 0, now_s)
        self.due_s = min(self.attachment.due_s, self._tick_s if self.stream is not None else float("inf"))
        if self.stream is not None:
            self.due_s = min(self.due_s, self.stream.connections.due_s(), self.stream.questions.due_s)
            self.due_s = min(self.due_s, self.stream.results.due_s, self.stream.job_end.due_s)
            if self.stream.leases is not None:
                self.due_s = min(self.due_s, self.stream.leases.due_s, self.stream.end.due_s)
        out = self._out[:]
        self._out.clear()
        return out

    def _excuse(self, stream: AttachedStream, now_s: float) -> None:
        stream.tickets.excuse(now_s)
        stream.connections.excuse(now_s)
        if stream.leases is not None:
            stream.leases.excuse(now_s)
            stream.end.excuse(now_s)
        self.attachment.excuse(now_s)

    def _decide(self, stream: AttachedStream, now_s: float) -> None:
        if now_s >= self._tick_s:
            self._tick(stream, now_s)
        stream.connections.greet(now_s)
        if stream.leases is not None:
            stream.leases.decide(now_s)
            stream.end.decide(now_s)
        self._extend(stream, now_s)
        stream.wants.decide(now_s)
        stream.results.tick(now_s)
        stream.job_end.tick(now_s)
        self._watch_head(stream, now_s)
        wakes = i.WakeFor(room=2 * stream.tickets.unanswered < stream.wants.prefetch, slots=stream.wants.short_of_slots)
        if wakes != self._wakes:
            self._wakes = wakes
            self._out.append(wakes)

    def _tick(self, stream: AttachedStream, now_s: float) -> None:
        stream.connections.tick(now_s)
        writers = stream.connections.probe()
        self._tick_s = now_s + (_PROBE_S if writers else stream.spec.heartbeat_timeout_s / 8)

    # --- consumers ---

    def _on_attach_asked(self, event: e.AttachAsked, now_s: float) -> None:
        self.attachment.ask(event.cursor, now_s, waiting=event.serial, done=event.done)

    def _on_opened(self, event: e.Opened, now_s: float) -> None:
        """Serve this reader from now on; what lies ahead is kept if it is what the reader needs next."""
        assert self.stream is not None
        if self.stream.leases is not None:
            if self.stream.leases.serve(event.reader, event.start.epoch, event.taken, now_s):
                self.stream.wants.refocus()
            return
        upcoming = self.stream.upcoming
        over = upcoming.is_over(event.start)
        self._opened = event if over is None else None
        if over is None:
            self._ask_about(event.start.epoch, event.start.group)
        elif over:
            self._out.append(i.Serve(event.reader, upcoming.head, ended=True))
        elif upcoming.leads_on(event.start, event.taken):
            self._out.append(i.Serve(event.reader, upcoming.head))
        else:
            upcoming.redirect(event.start, event.taken)
            self.stream.wants.refocus()
            self._out.append(i.Restart(event.reader, upcoming.head))

    def _on_took(self, event: e.Took, _now_s: float) -> None:
        assert self.stream is not None
        self.stream.slots.take(event.slot)
        self._pass(self.stream.upcoming, event.seq, event.slot)

    def _on_handed_back(self, event: e.HandedBack, _now_s: float) -> None:
        assert self.stream is not None
        self.stream.slots.hand_back(event.slot)
        self._pass(self.stream.upcoming, event.seq, event.slot)

    @staticmethod
    def _pass(upcoming: Upcoming, seq: int, slot: int) -> None:
        """Batch `seq` was consumed, and so were all before it."""
        entry = upcoming.entries.get(seq)
        if entry is not None and entry.slot == slot:
            upcoming.pass_to(seq + 1)

    def _on_taken_back(self, event: e.TakenBack, _now_s: float) -> None:
        assert self.stream is not None
        self.stream.wants.take_back(event.seq, won=event.won)

    def _on_settled(self, event: e.LeaseSettled, _now_s: float) -> None:
        assert self.stream is not None
        assert self.stream.leases is not None
        self.stream.leases.settle(event)

    def _on_state_asked(self, event: e.StateAsked, _now_s: float) -> None:
        assert self.stream is not None
        assert self.stream.leases is not None
        self.stream.leases.ask_state(event.serial)

    def _on_evaluation_named(self, event: e.EvaluationNamed, _now_s: float) -> None:
        assert self.stream is not None
        assert self.stream.leases is not None
        self.stream.leases.begin_evaluation(event.name, event.nbytes)

    def _on_sums_asked(self, event: e.SumsAsked, _now_s: float) -> None:
        assert self.stream is not None
        assert self.stream.leases is not None
        self.stream.leases.ask_sums(event.serial)

    def _on_saved(self, event: e.Saved, _now_s: float) -> None:
        if self.stream is not None:
            self.stream.book.note_saved(event.name)

    def _on_end_asked(self, event: e.EndAsked, now_s: float) -> None:
        assert self.stream is not None
        self.stream.end.ask(event.serial, now_s)

    def _on_end_settled(self, event: e.EndSettled, now_s: float) -> None:
        assert self.stream is not None
        self.stream.end.settle(event.serial, now_s, done=event.done)

    def _on_results_told(self, event: e.ResultsTold, now_s: float) -> None:
        assert self.stream is not None
        self.stream.results.tell(event, now_s)

    def _on_question_asked(self, event: e.QuestionAsked, now_s: float) -> None:
        assert self.stream is not None
        self.stream.questions.ask(event.question, now_s)

    # --- what lies ahead ---

    def _extend(self, stream: AttachedStream, now_s: float) -> None:
        upcoming, wants = stream.upcoming, stream.wants
        room = upcoming.head + wants.prefetch - upcoming.end
        if room > 0:
            wants.extend(upcoming.extend(room))
            missing = upcoming.missing()
            if missing is not None:
                self._ask_about(*missing)
        stream.questions.tick(stream.connections.serving(), now_s)

    def _ask_about(self, epoch: int, group: int) -> None:
        assert self.stream is not None
        spec = self.stream.spec
        query = m.EpochQuery(stream=spec.stream, plan_digest=spec.plan_digest, epoch=epoch, group=group)
        self.stream.questions.ask(query, self._seen_s)

    def _learn(self, epoch: int, group: int, batches: int, now_s: float) -> None:
        assert self.stream is not None
        self.stream.upcoming.learn(epoch, group, batches)
        if self._opened is not None:
            self._on_opened(self._opened, now_s)

    # --- the coordinator ---

    def _on_coordinator_said(self, event: e.CoordinatorSaid, now_s: float) -> None:
        self.attachment.hear(now_s)
        said = event.message
        if isinstance(said, m.Attached):
            self._on_attached(said, now_s)
        elif isinstance(said, m.Wait):
            self.attachment.wait(said, now_s)
        elif isinstance(said, m.NotAttached | m.Refused):
            self._on_refused(said, now_s)
        elif isinstance(said, m.WorldOver):
            self._leave_world(said.version == self._settings.world_version, said.reason)
        elif isinstance(said, m.Members | m.Failing):
            self._on_workers(said, now_s)
        elif isinstance(said, m.Leases | m.Recalled):
            self._on_leases(said, now_s)
        elif isinstance(said, m.Aggregate):
            self.strays += self.stream is None or not self.stream.results.receive(said)
        elif isinstance(said, m.JobEnds):
            self._on_job_ends(said, now_s)
        else:
            self.strays += not isinstance(said, m.Noted)

    def _on_refused(self, said: m.NotAttached | m.Refused, now_s: float) -> None:
        if isinstance(said, m.NotAttached):
            self.attachment.refuse(error_of(said, "coordinator"), serial=said.serial)
            self._leave_world(said.code == "changed", said.got)
        elif said.code == "unknown":
            self.attachment.come_back(now_s)
        else:
            self.attachment.refuse(error_of(said, "coordinator"))

    def _on_workers(self, said: m.Members | m.Failing, now_s: float) -> None:
        if self.stream is None:
            return
        if isinstance(said, m.Members):
            self.stream.connections.update_list(said.version, said.workers, now_s)
        else:
            self.stream.connections.note_failing(said)

    def _leave_world(self, is_over: bool, reason: str) -> None:  # noqa: FBT001 - it is what is asked
        """The elastic world that our ranks are of is over: the feed ends, and the user joins the next one."""
        if is_over and not self._is_out:
            self._is_out = True
            self._out.append(i.Fail(world_over(reason)))

    def _on_leases(self, said: m.Leases | m.Recalled, now_s: float) -> None:
        if self.stream is None or self.stream.leases is None:
            self.strays += 1
        elif isinstance(said, m.Recalled):
            self.stream.leases.call()
            self.stream.end.repeat(now_s)
        else:
            is_awaited = self.stream.leases.receive(said, now_s) or self.stream.end.receive(said, now_s)
            self.strays += not is_awaited

    def _on_job_ends(self, said: m.JobEnds, now_s: float) -> None:
        if self.stream is None:
            self.strays += 1
            return
        if self.stream.leases is not None:
            self.stream.leases.drain()
        self.stream.job_end.hear(said, now_s)

    def _on_coordinator_away(self, event: e.CoordinatorAway, now_s: float) -> None:
        self.attachment.try_soon(now_s)

    def _on_attached(self, said: m.Attached, now_s: float) -> None:
        if not self.attachment.agree(said, now_s):
            return
        if self.stream is None:
            self.stream = AttachedStream(self._settings, said, self._out)
        stream, cursor = self.stream, said.cursor
        if stream.spec.plan_digest != cursor.plan_digest:
            self.attachment.refuse(other_plan(stream.spec.plan_digest, cursor.plan_digest))
            return
        stream.upcoming.regroup(said.next_group)
        stream.connections.update_list(said.members, said.workers, now_s)
        if stream.leases is None:
            self._learn(cursor.epoch, cursor.group, said.batches, now_s)
        else:
            if self.attachment.restores:
                stream.book.begin_anew(said.book)
                stream.leases.rewind(cursor.epoch)
            stream.book.learn(said.book)
            stream.leases.repeat(now_s)
            stream.end.repeat(now_s)
        self.attachment.answer(said)

    # --- workers ---

    def _connection_up(self, event: e.ConnectionUp, now_s: float) -> None:
        assert self.stream is not None
        self.stream.connections.note_up(event.connection_id, now_s)

    def _connection_down(self, event: e.ConnectionDown, now_s: float) -> None:
        assert self.stream is not None
        self.stream.connections.note_down(event.connection_id, now_s)

    def _connection_failed(self, event: e.ConnectionFailed, now_s: float) -> None:
        assert self.stream is not None
        self.stream.connections.note_turned_away(event.connection_id, event.error, now_s)

    def _on_greeting_failed(self, event: e.GreetingFailed, now_s: float) -> None:
        assert self.stream is not None
        self.stream.connections.note_greeting_failed(event.connection_id, now_s)

    def _on_lock_gone(self, event: e.LockGone, now_s: float) -> None:
        assert self.stream is not None
        self.stream.connections.note_lock_gone(event.incarnation, now_s)

    def _on_worker_said(self, event: e.WorkerSaid, now_s: float) -> None:
        assert self.stream is not None
        stream, said, connection_id = self.stream, event.message, event.connection_id
        worker = stream.connections.worker_at(connection_id)
        if isinstance(said, m.Welcome):
            stream.connections.welcome(connection_id, said, now_s, locked=bool(event.payload))
        elif isinstance(said, m.Refused):
            error = error_of(said, f"worker on connection {connection_id}")
            stream.connections.note_turned_away(connection_id, error, now_s)
        elif isinstance(said, m.EpochAnswer | m.NameAnswer):
            self._on_answer(stream, said, now_s)
        elif worker is None:
            self.strays += 1
        elif isinstance(said, m.Pushed):
            stream.answers.receive(worker, said, event.payload, now_s)
        elif isinstance(said, m.Cancelled):
            stream.answers.give_up(worker, said.ticket, now_s)
        elif isinstance(said, m.Unbuilt):
            self._on_unbuilt(stream, worker, said, now_s)
        elif isinstance(said, m.Pong):
            stream.answers.reconcile(worker, said, now_s)
        else:
            self.strays += 1

    def _on_unbuilt(self, stream: AttachedStream, worker: KnownWorker, said: m.Unbuilt, now_s: float) -> None:
        stream.answers.give_up(worker, said.ticket, now_s, said)
        if worker.connection_id is None:
            return
        if said.code == "unknown":  # no more wants until it welcomes us again
            stream.tickets.stop_asking(worker)
            stream.connections.greet_again(worker.connection_id, now_s)
        elif said.code == "draining":
            stream.connections.drain(worker.connection_id, now_s)

    def _on_answer(self, stream: AttachedStream, said: m.EpochAnswer | m.NameAnswer, now_s: float) -> None:
        stream.questions.answer(said)
        if isinstance(said, m.EpochAnswer):
            self._learn(said.epoch, said.group, said.batches, now_s)

    def _on_checked(self, event: e.Checked, now_s: float) -> None:
        assert self.stream is not None
        worker = self.stream.connections.worker_at(event.connection_id)
        if worker is not None:
            self.stream.answers.settle(worker, event.header, now_s, valid=event.valid)

    # --- the end ---

    def _watch_head(self, stream: AttachedStream, now_s: float) -> None:
        """A head that nobody can build ends the feed, and soon if every worker that is there refused it."""
        head = stream.upcoming.entries.get(stream.upcoming.head)
        refused = head.refused if head is not None else {}
        if self._failed or (head is not None and head.ready) or stream.wants.somebody_can(refused):
            self._alone_since_s = None
            stream.connections.need(somebody=False)
            return
        stream.connections.need(somebody=True)
        if self._alone_since_s is None:
            self._alone_since_s = now_s
        alone_s = now_s - self._alone_since_s
        errors = [*refused.values()] or stream.connections.list.refusals()
        quick = stream.wants.all_refuse(refused) or stream.job_end.drains is False
        patience_s = stream.spec.heartbeat_timeout_s if quick else self._settings.lost_timeout_s
        if alone_s > patience_s and stream.connections.is_all_tried(now_s):
            self._fail(stream, errors)

    def _fail(self, stream: AttachedStream, errors: list[StokerError]) -> None:
        self._failed = True
        tried, listed = stream.connections.tried()
        if stream.job_end.drains is not None:
            self._out.append(i.Fail(job_ended()))
        elif errors:
            self._out.append(i.Fail(refused_by_all(errors[-1], len(errors), listed)))
        else:
            failing = stream.connections.list.failing
            self._out.append(i.Fail(nobody_left(tried, listed, self._settings.lost_timeout_s, failing)))

    _doors: ClassVar[dict[type, Callable[..., None]]] = {
        e.AttachAsked: _on_attach_asked,
        e.Opened: _on_opened,
        e.Took: _on_took,
        e.HandedBack: _on_handed_back,
        e.TakenBack: _on_taken_back,
        e.LeaseSettled: _on_settled,
        e.StateAsked: _on_state_asked,
        e.EvaluationNamed: _on_evaluation_named,
        e.SumsAsked: _on_sums_asked,
        e.Saved: _on_saved,
        e.EndAsked: _on_end_asked,
        e.EndSettled: _on_end_settled,
        e.QuestionAsked: _on_question_asked,
        e.ResultsTold: _on_results_told,
        e.CoordinatorSaid: _on_coordinator_said,
        e.CoordinatorAway: _on_coordinator_away,
        e.ConnectionUp: _connection_up,
        e.ConnectionDown: _connection_down,
        e.ConnectionFailed: _connection_failed,
        e.GreetingFailed: _on_greeting_failed,
        e.LockGone: _on_lock_gone,
        e.WorkerSaid: _on_worker_said,
        e.Checked: _on_checked,
    }
