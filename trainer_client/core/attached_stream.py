"""The core's state while the trainer is attached to a stream, and the handler of each event.

Rules: pure. Everything that exists only while attached lives in one object, so that no part of it can be used before
the coordinator has agreed. The object is never dropped again: losing the coordinator does not stop training. What
differs between lockstep and queue mode is decided in `lockstep` and `leasing.leased_queue`, nowhere else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.bad_limit import BadLimit
from shared.silence import GONE_AFTER
from shared.wire import messages as m
from trainer_client.core import events as e
from trainer_client.core import instructions as i
from trainer_client.core.asking.answers import Answers, BadRowLimit
from trainer_client.core.asking.prefetch import Prefetch
from trainer_client.core.asking.questions import Questions
from trainer_client.core.asking.wants import Wants
from trainer_client.core.feed_errors import job_ended, nobody_left, refused_by_all
from trainer_client.core.heard_limits import HeardLimits
from trainer_client.core.leasing.held_leases import HeldLeases, LeasedUpcoming
from trainer_client.core.leasing.leased_queue import LeasedQueue
from trainer_client.core.lockstep import Lockstep
from trainer_client.core.open_results import OpenResults
from trainer_client.core.settings import CoreSettings, slots_for
from trainer_client.core.slot_states import SlotStates
from trainer_client.core.stream_spec import StreamSpec
from trainer_client.core.upcoming import Position, Upcoming
from trainer_client.core.workers.open_connections import Connections
from trainer_client.core.workers.worker_tickets import WorkerTickets

if TYPE_CHECKING:
    from shared.errors import StokerError
    from trainer_client.core.workers.known_workers import KnownWorker

__all__ = ["AttachedStream", "JobEnd"]

#: How often to check whether a silent writer is dead: a released lock raises no event, so it has to be polled.
_PROBE_S = 0.02

#: How long after less is asked for ahead memory is given back: until then consumers have taken what lay ready.
_DROP_S = 10.0

#: How long a rank waits for the last round, in heartbeat timeouts; the coordinator may itself wait for a lost rank.
_PATIENCE = GONE_AFTER + 3


class AttachedStream:
    """Everything that exists once the trainer is attached to a stream."""

    def __init__(self, settings: CoreSettings, attached: m.Attached, out: list[i.Instruction]) -> None:
        spec = self.spec = StreamSpec.of(attached)
        numbers = slots_for(settings, spec)
        slots, self.prefetch = numbers.slots, Prefetch(numbers.start, numbers.most)
        self._hands = numbers.hands
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
        limit = BadRowLimit(BadLimit(attached.max_bad, attached.max_bad_samples))
        self.answers = Answers(settings, spec, self.upcoming, self.slots, self.tickets, limit, out)
        self.wants = Wants(
            settings, spec, self.prefetch, self.upcoming, self.slots, workers, self.tickets, self.answers, out
        )
        timeout_s = spec.heartbeat_timeout_s
        self.connections = Connections(settings, timeout_s, self.upcoming, workers, self.tickets, out)
        self.questions = Questions(spec, out)
        self.results = OpenResults(settings, out)
        #: What limits the job, as the coordinator says.
        self.limits = HeardLimits(timeout_s)
        #: How trainers share the stream's batches: in lockstep or as a queue of leases.
        self.sharing: Lockstep | LeasedQueue = (
            LeasedQueue(settings, attached, self.upcoming, self.wants, self.prefetch, out)
            if isinstance(self.upcoming, LeasedUpcoming)
            else Lockstep(spec, self.upcoming, self.wants, self.questions, out)
        )
        #: When to look for silent workers and dead writers again.
        self._tick_s = 0.0
        #: Since when no worker could build the head; None while one can.
        self._alone_since_s: float | None = None
        self._failed = False
        #: Up to which batch consumers could take all at the end of the last turn.
        self._ready_to = 0
        #: When to give memory back, because less is asked for ahead than before.
        self._drop_s = float("inf")
        self._wakes = i.WakeFor(room=True, slots=False)
        out.append(i.MakeSlots(spec, slots + 1))

    @property
    def leases(self) -> HeldLeases:
        """Return the leases that this trainer holds; only queue mode has any."""
        assert isinstance(self.sharing, LeasedQueue)
        return self.sharing.leases

    @property
    def due_s(self) -> float:
        """Return the latest time at which `decide` has to be called again, as the earliest of all parts' timers."""
        parts = (self.connections.due_s(), self.questions.due_s, self.results.due_s, self.job_end.due_s)
        return min(self._tick_s, self.sharing.due_s, *parts)

    def excuse(self, now_s: float) -> None:
        """Restart the timers of workers, connections and leases: we stalled, and could hear nobody."""
        # To a trainer that was stopped itself everyone seems silent: it would suspect all workers at once, and ask for
        # every batch again.
        self.tickets.excuse(now_s)
        self.connections.excuse(now_s)
        self.prefetch.excuse()
        self.sharing.excuse(now_s)

    def attach(self, answer: m.Attached, now_s: float, *, restores: bool) -> None:
        """Take in an Attached message, the first one or one after the coordinator was away.

        Learn the group size of later epochs, connect to the listed workers, and have the sharing of batches go on, or
        begin anew if a checkpoint is restored (`restores`). Raise ValueError if the world exceeds the group.
        """
        # The answer's list of workers may be short: a coordinator that was just restarted knows only a few. So the list
        # opens connections here, and closes none.
        self.upcoming.regroup(answer.next_group)
        self.connections.update_list(answer.members, answer.workers, now_s)
        self.sharing.attach(answer, now_s, restores=restores)

    def decide(self, now_s: float) -> None:
        """Append the instructions that follow from everything that happened in this turn.

        An instruction to end the feed is among them if the head is late for too long. Raise ValueError if the world
        exceeds the group.
        """
        if now_s >= self._tick_s:
            self._tick(now_s)
        self.connections.greet(now_s)
        self.sharing.decide(now_s)
        # The sequence grows before wants are decided, so that newly known batches are asked for in the same turn.
        self._extend(now_s)
        self.wants.decide(now_s)
        self._adapt_prefetch(now_s)
        self.results.tick(now_s)
        self.job_end.tick(now_s)
        self._watch_head(now_s)
        # While each worker owes as many batches as it works on at a time, and all together half of the prefetch, their
        # answers wake this thread anyway; a wake-up for every batch that is taken would only cost the consumer.
        owed = self.tickets.unanswered
        has_room = 2 * owed < self.wants.prefetch or owed < self.wants.at_work()
        wakes = i.WakeFor(room=has_room, slots=self.wants.short_of_slots)
        if wakes != self._wakes:
            self._wakes = wakes
            self._out.append(wakes)

    def _tick(self, now_s: float) -> None:
        self.connections.tick(now_s)
        if now_s >= self._drop_s:
            self._drop_s = float("inf")
            self._out.append(i.DropSlots(self.slots.superfluous(self.prefetch.size + self._hands)))
        writers = self.connections.probe()
        self._tick_s = now_s + (_PROBE_S if writers else self.spec.heartbeat_timeout_s / 8)

    def _extend(self, now_s: float) -> None:
        room = self.upcoming.head + self.wants.prefetch - self.upcoming.end
        if room > 0:
            self.tickets.extend(self.sharing.extend(room, now_s))
        self.questions.tick(self.connections.serving(), now_s)

    def _adapt_prefetch(self, now_s: float) -> None:
        """Show this turn to `prefetch`, which decides when it has seen enough; if it shrank, memory is due to go."""
        arrived, prefetch, upcoming = self.answers.accepted, self.prefetch, self.upcoming
        left, self._ready_to = max(0, self._ready_to - upcoming.head), upcoming.ready_to(self._ready_to)
        is_full = not self.tickets.unasked and upcoming.end - upcoming.head >= prefetch.size
        before = prefetch.size
        if prefetch.see(arrived, left, now_s, is_full=is_full):
            prefetch.decide(arrived, self.wants.could_serve(), now_s)
        if prefetch.size < before:
            self._drop_s = now_s + _DROP_S

    def take(self, event: e.Event, now_s: float) -> None:
        """Handle an event that concerns the stream or its workers; raise AssertionError for any other event.

        Raise ValueError if a reader is opened and the world exceeds the group.
        """
        match event:
            case e.Took():
                self.slots.take(event.slot)
                self._pass(event.seq, event.slot)
            case e.HandedBack():
                # The batch was taken, even if a signal kept the consumer from reporting that.
                self.slots.hand_back(event.slot)
                self._pass(event.seq, event.slot)
            case e.TakenBack():
                self.wants.take_back(event.seq, won=event.won)
            case e.Opened():
                self.sharing.open(event, now_s)
            case e.Checked():
                self._on_checked(event, now_s)
            case e.ResultsReported():
                self.results.report(event, now_s)
            case e.QuestionAsked():
                self.questions.ask(event.question, now_s)
            case e.ConnectionUp() | e.ConnectionDown() | e.ConnectionFailed() | e.GreetingFailed():
                self.connections.take(event, now_s)
            case e.LockGone():
                self.connections.note_lock_gone(event.incarnation, now_s)
            case _:  # about leases, or a saved checkpoint; lockstep refuses the former
                self.sharing.take(event, now_s)

    def _pass(self, seq: int, slot: int) -> None:
        """Advance the head behind batch `seq`, which was consumed, as were all before it.

        Do nothing if that batch is not upcoming any more, or is not in this slot: the report is about a former
        sequence.
        """
        entry = self.upcoming.entries.get(seq)
        # After a redirection the entry is gone, or its batch is in another slot: a late report must not move the head
        # of the new sequence.
        if entry is not None and entry.slot == slot:
            self.upcoming.pass_to(seq + 1)

    # --- the coordinator ---

    def hear_coordinator(self, message: m.Message, now_s: float) -> bool:
        """Handle a message about the stream; return False if it was not expected.

        Expected are a list of workers, a failing worker, an answer about an open result, the job's end, what limits the
        job, a receipt, which changes nothing, and in queue mode a call, and an answer to an open message.
        """
        match message:
            case m.Members():
                self.connections.update_list(message.version, message.workers, now_s)
            case m.Limited():
                self.limits.hear(message, now_s)
            case m.Failing():
                self.connections.list.note_failing(message)
            case m.Leases() | m.Recalled():
                return self.sharing.receive(message, now_s)
            case m.Aggregate():
                return self.results.receive(message)
            case m.JobEnds():
                self.sharing.drain()
                self.job_end.hear(message, now_s)
            case _:
                return isinstance(message, m.Noted)
        return True

    # --- workers ---

    def hear_worker(self, event: e.WorkerSent, now_s: float) -> bool:
        """Handle a worker's message; return False if it was not expected, or the connection serves no worker.

        A Welcome, a refusal and an answer to a question are always expected. Raise ValueError if the number of batches
        of an epoch is learnt and the world exceeds the group.
        """
        match event.message:
            case m.Welcome() | m.Refused():
                self.connections.take(event, now_s)
            case m.EpochAnswer() | m.NameAnswer() as answer:
                self.questions.answer(answer)
                if isinstance(answer, m.EpochAnswer):
                    self.sharing.learn(answer.epoch, answer.group, answer.batches, now_s)
            case _:
                # A connection serves nobody before its first Welcome, nor once its worker was buried or replaced; what
                # comes then is a stray.
                worker = self.connections.worker_at(event.connection_id)
                return worker is not None and self._hear_known(worker, event, now_s)
        return True

    def _hear_known(self, worker: KnownWorker, event: e.WorkerSent, now_s: float) -> bool:
        message = event.message
        match message:
            case m.Pushed():
                self.answers.receive(worker, message, event.payload, now_s)
            case m.Cancelled():
                self.answers.give_up(worker, message.ticket, now_s)
            case m.Unbuilt():
                self._on_unbuilt(worker, message, now_s)
            case m.Pong():
                self.answers.reconcile(worker, message, now_s)
            case _:
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

    def _on_checked(self, event: e.Checked, now_s: float) -> None:
        worker = self.connections.worker_at(event.connection_id)
        if worker is not None:
            self.answers.settle(worker, event.header, now_s, valid=event.valid)

    # --- the end ---

    def _watch_head(self, now_s: float) -> None:
        """End the feed once no worker has been able to build the head for `lost_timeout_s`.

        If all known workers refused it, or the job ends without draining, one heartbeat timeout is enough. A worker
        that could build the head may be listed and not connected yet, so every listed worker is tried first. Nothing
        ends while the head is ready, or a second time.
        """
        head = self.upcoming.entries.get(self.upcoming.head)
        refused = head.refused if head is not None else {}
        # Without a head there is nothing that anybody could refuse: any live worker will do then.
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
        # Once a job is ended by order, the lack of workers is its end and no loss.
        if self.job_end.drains is not None:
            self._out.append(i.Fail(job_ended()))
        elif errors:
            self._out.append(i.Fail(refused_by_all(errors[-1], len(errors), listed)))
        else:
            failing = self.connections.list.failing
            self._out.append(i.Fail(nobody_left(tried, listed, self._settings.lost_timeout_s, failing)))


class JobEnd:
    """The coordinator's latest word about the end of the job, and the order that followed from it: when readers stop.

    A draining trainer in queue mode reads to the end of its leases. Ranks in lockstep must all end with the same round,
    or those that go on would wait for the others for ever: each stands still and reports how far it has come, until the
    coordinator names the last round. Everyone else stops at once, and so does a rank that no longer hears from the
    coordinator.
    """

    def __init__(self, settings: CoreSettings, attached: m.Attached, out: list[i.Instruction]) -> None:
        #: When to stop without the coordinator, because it has been silent for too long.
        self.due_s = float("inf")
        #: Whether trainers finish the batches that they have; None while the job goes on.
        self.drains: bool | None = None
        self._out = out
        self._leases = bool(attached.work)
        self._is_rank = not attached.work and not attached.evaluation and settings.ranks.world > settings.ranks.replicas
        self._patience_s = _PATIENCE * attached.heartbeat_timeout_ms / 1000
        self._ordered: i.EndReading | None = None

    def hear(self, word: m.JobEnds, now_s: float) -> None:
        """Order readers to stop, drain or stand still, as the coordinator says.

        In queue mode readers drain if the coordinator allows it, and has never forbidden it before; ranks in lockstep
        stand still until the coordinator names the last round, and then end before it. All others stop at once. An
        order that has not changed is not given again, except to stand still.
        """
        # The message is repeated, and a later one may forbid draining; a repetition that was on its way meanwhile must
        # not allow it again.
        self.drains = word.drains and self.drains is not False
        if not self._is_rank:
            self._end(i.EndReading(job_ended(), at_once=not (self._leases and self.drains)))
            return
        self.due_s = now_s + self._patience_s
        # A rank that went on by itself would wait in the next step for ranks that have stopped. So all stand still
        # until the coordinator, which knows how far each has come, names the last round.
        if word.last is None:
            self._out.append(i.StandStill())
        else:
            last = (word.last.epoch, word.last.number)
            self._end(i.EndReading(job_ended(), at_once=False, last=last, waits=self.drains))

    def tick(self, now_s: float) -> None:
        """Stop a rank's readers at once if the coordinator, after announcing the end, has been silent for too long."""
        if now_s >= self.due_s:
            self.due_s = float("inf")
            self._end(i.EndReading(job_ended(), at_once=True))

    def _end(self, order: i.EndReading) -> None:
        # The coordinator repeats its message. An unchanged order is given once; its error is a new object each time.
        former = self._ordered
        if former is None or (former.at_once, former.last, former.waits) != (order.at_once, order.last, order.waits):
            self._ordered = order
            self._out.append(order)
