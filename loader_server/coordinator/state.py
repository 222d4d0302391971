"""The coordinator's knowledge and decisions, without a socket, a disk or a clock.

One door: `handle(event, now_s) -> instructions`. Pure. Rules:
- What has to survive a crash leaves as `Keep(fact)`, ahead of the messages that promise it; recovery feeds the facts
  back.
- A newer incarnation of a rank takes it over; the older one hears of it and stops, even if the coordinator was
  restarted in between (see succession).
- Ranks of one world hold equal cursors. A rank with another cursor waits a while, because the others may just be
  restarting, and is then refused, naming both. Evaluation streams have no such rule: anyone may read them at the same
  time.
- The group is the world's size when a stream first starts, unless the job file sets it, and is kept from then on.
- A connection speaks for one trainer of a stream: when another attaches on it, the former one has left. It speaks for a
  worker if that worker registered on it: incarnations are sent to all trainers, so knowing one proves nothing.
- An answer names its request. A repeated request is answered again and changes nothing; a request older than the last
  one answered is dropped.
- An answer that may grow (the status, the list of workers, the culprits) is cut to what a message takes.
"""

from __future__ import annotations

from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, ClassVar

from loader_server.coordinator import objections
from loader_server.coordinator.convictions import Convictions
from loader_server.coordinator.ending import Ending
from loader_server.coordinator.events import (
    Advanced,
    CoordinatorSettings,
    Counts,
    CulpritFound,
    EndOrdered,
    Event,
    Excused,
    Fact,
    Forgot,
    GraphFailed,
    GraphRuns,
    GroupFixed,
    Instruction,
    JournalLooked,
    Keep,
    RankTaken,
    Received,
    ResultsKept,
    Send,
    StreamView,
    Ticked,
    Warn,
    WorldNamed,
)
from loader_server.coordinator.pace.job_watch import JobWatch
from loader_server.coordinator.report import stream_report, text_of, worker_report
from loader_server.coordinator.sent_graphs import NO_GRAPH, Graphs
from loader_server.coordinator.streams.elastic_worlds import Worlds
from loader_server.coordinator.streams.queues import Queues
from loader_server.coordinator.streams.stream_trainers import COUNTING_MS, AttachedTrainer, StreamTrainers
from loader_server.coordinator.streams.verifiers import Verifiers
from loader_server.coordinator.streams.world_rules import WorldRules
from loader_server.coordinator.trace_relay import TraceRelay
from loader_server.coordinator.workers import Workers
from loader_server.leases.lease_book import BookAdvanced, LeaseFact
from shared.silence import GONE_AFTER
from shared.wire import messages as m
from shared.wire.refusing import not_attached
from shared.wire.topics.work_messages import VERIFY

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from loader_server.coordinator.streams.stream_trainers import AttachedReader
    from shared.wire.message_parts import Cursor

__all__ = ["CoordinatorState"]

_NOTED = m.Noted()


class CoordinatorState:
    """The coordinator's state, changed only through `handle` and, at the start, `recover`."""

    def __init__(
        self, settings: CoordinatorSettings, streams: Mapping[str, StreamView], *, first_version: int = 1
    ) -> None:
        self._settings = settings
        self._timeout_s = settings.heartbeat_timeout_s
        self._rules = WorldRules(settings.group, self._timeout_s)
        self._streams = {name: StreamTrainers(view) for name, view in streams.items()}
        self._graphs = Graphs(settings.job, settings.graphs, settings.graphs.keys() & streams.keys(), self._timeout_s)
        self._workers = Workers(first_version)
        self._traces = TraceRelay(self._streams, self._workers)
        #: Whether the list of workers was cut when it was last sent.
        self._is_cut = False
        self._convictions = Convictions(first_version)
        self._journal: dict[str, Any] = {"lost": "", "waiting": 0}
        #: The instructions of the event that is being handled.
        self._out: list[Instruction] = []
        self.queues = Queues(
            self._streams, group=settings.group, timeout_s=self._timeout_s,
            keep=lambda fact: self._out.append(Keep(fact)), draw=partial(next, count(first_version)),
        )  # fmt: skip
        self.ending = Ending(self._streams, self.queues, timeout_s=self._timeout_s)
        self.verifiers = Verifiers(settings.job, self._streams, self._grant, group=settings.group)
        self.watch = JobWatch(self._timeout_s)
        self._worlds = Worlds(settings.job, self._streams, group=settings.group, timeout_s=self._timeout_s)
        self.counts = Counts()

    def handle(self, event: Event, now_s: float) -> list[Instruction]:
        """Process an event; return what to do now, in order, nothing for other messages; KeyErrors of `Graphs` pass."""
        self.queues.take_up(now_s)
        self._rules.begin(self._streams, now_s)
        match event:
            case Ticked(report):
                self._tick(report, now_s)
            # While this process stalled, or could not write, it heard and answered no trainer: no lease may expire.
            case Excused():
                self.queues.excuse(now_s)
            case JournalLooked():
                self._journal = {"lost": event.lost, "waiting": event.waiting}
            case EndOrdered():
                self._out.extend(self.ending.order(now_s, drains=event.drains))
                self._out.extend(self.verifiers.send_all(self.ending.announcement))
            case GraphRuns():
                self._streams[event.stream] = StreamTrainers(event.view)
                self._out += self._graphs.run(event.stream)
            case GraphFailed():
                self._out += self._graphs.fail(event.stream, event.reason)
            case Received(peer, m.Register() as register, host):
                self._register(peer, register, host, now_s)
            case Received(peer, m.TraceQuery() | m.TracePage() as message):
                self._out += self._traces.take(peer, message, now_s)
            case Received() if type(event.message) in self._doors:
                self._doors[type(event.message)](self, event.peer, event.message, now_s)
        self._out.extend(self.queues.take_news())
        out, self._out = self._out, []
        return out

    def recover(self, fact: Fact) -> None:
        """Apply a fact from the journal; drop facts of streams that the job no longer has, except for convictions."""
        match fact:
            case CulpritFound():
                self._convictions.add(fact.stream, fact.identity, fact.ends)
            case Forgot():
                self._convictions.forget(fact.stream, fact.identity)
            case BookAdvanced():
                self.queues.recover(fact)
            case _ if fact.stream not in self._streams:
                return
            case WorldNamed():
                self._worlds.recover(fact)
            case LeaseFact():
                self.queues.recover(fact)
            case _:
                self._streams[fact.stream].recover(fact)
                # The last results of a run end its world as well.
                if isinstance(fact, ResultsKept):
                    self._worlds.recover(fact)

    def _keep(self, fact: Fact) -> None:
        self._out.append(Keep(fact))
        self.recover(fact)

    def _answer(self, peer: bytes, answer: m.Message) -> None:
        """Send an answer, and count it if it is a refusal."""
        self.counts.refusals += isinstance(answer, m.Refused | m.NotAttached)
        self._out.append(Send(peer, answer))

    # --- trainers ---

    def _join(self, peer: bytes, join: m.Join, now_s: float) -> None:
        is_ending = self.ending.report() is not None
        self._out += [Send(peer, objections.run_ended(join))] if is_ending else self._worlds.join(peer, join, now_s)

    def _attach(self, peer: bytes, attach: m.Attach, now_s: float) -> None:
        stream = self._streams.get(attach.stream)
        if self._graphs.awaits(attach.stream):
            self._out.append(Send(peer, m.Wait(serial=attach.serial, reason=NO_GRAPH, retry_ms=COUNTING_MS)))
            return
        if attach.work == VERIFY:
            self._attach_verifier(peer, attach, now_s)
            return
        problem = self._check_belongs(attach, stream, now_s)
        if problem is not None:
            self._answer(peer, problem)
            return
        assert stream is not None
        trainer = stream.trainers.get(attach.incarnation)
        if trainer is not None and attach.serial <= trainer.attach.serial:
            self._attach_again(peer, attach, trainer, now_s)
        elif stream.view.leases is not None:
            self._attach_to_queue(peer, attach, stream, now_s)
        else:
            self._attach_in_lockstep(peer, attach, stream, now_s)

    def _attach_verifier(self, peer: bytes, attach: m.Attach, now_s: float) -> None:
        answer = self.verifiers.attach(peer, attach, now_s)
        if answer is None:
            self.counts.stale += 1
            return
        self._answer(peer, answer)
        if isinstance(answer, m.Attached):
            self._out += self._greet(peer, attach.stream)

    def _attach_in_lockstep(self, peer: bytes, attach: m.Attach, stream: StreamTrainers, now_s: float) -> None:
        rules = self._rules
        cursor = rules.cursor(attach, stream)
        batches = stream.view.batches(cursor.epoch, cursor.group) if cursor.plan_digest == stream.view.digest else None
        answer = rules.check_fits(attach, cursor, batches, stream) or rules.check_takes_nothing(attach, stream, now_s)
        if answer is None and attach.world_version is not None:
            answer = self._worlds.begin(peer, attach, cursor, now_s)
            self._out += self._worlds.take_news(attach.stream)
        elif answer is None:
            answer = rules.check_agrees(attach, cursor, stream, now_s)
        if answer is not None:
            self._answer(peer, answer)
        else:
            assert batches is not None
            self._admit(peer, attach, cursor, batches, now_s)

    def _attach_to_queue(self, peer: bytes, attach: m.Attach, stream: StreamTrainers, now_s: float) -> None:
        answer = self.queues.admit(attach)
        if isinstance(answer, m.NotAttached | m.Wait):
            self._answer(peer, answer)
        else:
            stream.group = answer[0].group
            self._add(peer, attach, *answer, now_s)

    def _attach_again(self, peer: bytes, attach: m.Attach, trainer: AttachedTrainer, now_s: float) -> None:
        """Answer a repeated request again, as the answer may be lost; count and drop a request older than the last."""
        if attach.serial < trainer.attach.serial:
            self.counts.stale += 1
            return
        trainer.peer, trainer.heard_s = peer, now_s
        self._out += [Send(peer, self._grant(trainer)), *self.ending.greet(peer, attach.stream)]

    def _check_belongs(self, attach: m.Attach, stream: StreamTrainers | None, now_s: float) -> m.NotAttached | None:
        if attach.job not in ("", self._settings.job):
            return objections.another_job(attach, self._settings.job)
        if stream is None:
            return objections.no_such_stream(attach, self._streams)
        if attach.rank + attach.replicas > attach.world:
            return objections.no_such_rank(attach)
        if stream.view.leases is None and stream.needs_leases(attach):
            return objections.not_a_queue(attach)
        if stream.is_superseded(attach):
            self.counts.stale += 1
            return not_attached(attach.serial, objections.superseded(attach.rank, stream.attach_of(attach.rank)))
        return self._worlds.check(attach, now_s)

    def _admit(self, peer: bytes, attach: m.Attach, cursor: Cursor, batches: int, now_s: float) -> None:
        stream = self._streams[attach.stream]
        if stream.view.evaluation:
            stream.group = cursor.group
        else:
            if not stream.group and not self._settings.group:
                self._keep(GroupFixed(attach.stream, cursor.group))
            if attach.world_version is None:
                self._take_over(stream, attach)
        self._add(peer, attach, cursor, batches, now_s)

    def _add(self, peer: bytes, attach: m.Attach, cursor: Cursor, batches: int, now_s: float) -> None:
        stream, position = self._streams[attach.stream], (cursor.epoch, cursor.number)
        # What such a trainer had leased is leased to others at once, instead of after its silence.
        for former in stream.former(peer, attach.incarnation):
            self._let_leave(attach.stream, former, now_s)
        trainer = AttachedTrainer(
            peer=peer, attach=attach, cursor=cursor, batches=batches, heard_s=now_s, trained=position, read=position,
            tenure=stream.succession.tenure(attach.incarnation, attach.rank),
        )  # fmt: skip
        stream.add(trainer)
        self._out += self.verifiers.give_way(attach.stream)
        self.counts.note_attach(attach)
        self._out += [Send(peer, self._grant(trainer)), *self._greet(peer, attach.stream)]

    def _greet(self, peer: bytes, stream: str) -> list[Send]:
        failing = [Send(peer, failing) for failing in list(self._workers.failing.values())[-1:]]
        return [*self.ending.greet(peer, stream), *failing]

    def _take_over(self, stream: StreamTrainers, attach: m.Attach) -> None:
        """Remove the present holders of its ranks, tell them to stop, and record the new one: they cannot come back."""
        # The order is a fact of the same turn: the older one must not come back to a coordinator that was restarted.
        ranks = range(attach.rank, attach.rank + attach.replicas)
        for rank in ranks:
            other = stream.holder(rank)
            if other is not None and other.attach.incarnation != attach.incarnation:
                stream.remove(other.attach.incarnation)
                self.counts.superseded += 1
                self._out.append(Send(other.peer, objections.superseded(other.attach.rank, attach)))
        for rank, order, tenure in list(stream.succession.after(attach.incarnation, ranks, attach.tenure)):
            self._keep(RankTaken(attach.stream, rank, order, tenure))

    def _grant(self, reader: AttachedReader) -> m.Attached:
        stream = self._streams[reader.attach.stream]
        book = self.queues.mark() if stream.view.leases is not None else None
        return stream.grant(self._settings, reader, self._workers.members, book)

    def _take_progress(self, peer: bytes, progress: m.Progress, now_s: float) -> None:
        stream = self._streams.get(progress.stream)
        trainer = stream.trainers.get(progress.incarnation) if stream is not None else None
        if trainer is None and self.verifiers.hear(peer, progress, now_s):
            self._answer_heartbeat(peer, progress)
            return
        if stream is None or trainer is None:
            self._out.append(Send(peer, self._answer_unknown(progress, stream)))
            return
        trainer.hear(peer, progress, now_s)
        stream.move(trainer, (progress.epoch, progress.number))
        if stream.view.leases is not None:
            if self.queues.hear(progress.stream, progress.incarnation, now_s):
                self._out.append(Send(peer, m.Recalled()))
        elif not stream.view.evaluation and stream.last() != stream.trained:
            self._keep(Advanced(progress.stream, *stream.last()))
        self._answer_heartbeat(peer, progress)
        self._out += self._worlds.hear(trainer, now_s)

    def _answer_heartbeat(self, peer: bytes, progress: m.Progress) -> None:
        # Each answer is a chance to repeat what may have been lost: the list of workers first, then the job's end.
        members, end = self._workers.members, self.ending.news(progress.stream)
        news = end or self.watch.limit_message(progress.stream) or _NOTED
        self._out.append(Send(peer, members if progress.members != members.version else news))

    def _answer_unknown(self, progress: m.Progress, stream: StreamTrainers | None) -> m.Refused:
        holds_ranks = stream is not None and not stream.view.evaluation and stream.view.leases is None
        # One that was not superseded, as far as is known, attaches again, and then its tenure will tell.
        if stream is None or not holds_ranks or not stream.succession.is_superseded(progress.incarnation):
            return objections.unknown_trainer()
        self.counts.stale += 1
        return objections.superseded(progress.rank, stream.attach_of(progress.rank))

    def _detach(self, _peer: bytes, detach: m.Detach, now_s: float) -> None:
        self.verifiers.leave(detach.stream, detach.incarnation)
        if detach.stream in self._streams:
            self._let_leave(detach.stream, detach.incarnation, now_s)

    def _let_leave(self, stream: str, incarnation: int, now_s: float) -> None:
        self._streams[stream].remove(incarnation)
        self.queues.leave(stream, incarnation)
        self._out += self._worlds.leave(stream, incarnation, now_s)
        self._out += self.ending.agree(now_s)

    def _take_outcomes(self, peer: bytes, outcomes: m.Outcomes, now_s: float) -> None:
        if self._hear(peer, outcomes, now_s) is not None:
            answer = self.queues.report(outcomes, now_s)
            if answer is not None:
                self._out.append(Send(peer, answer))

    def _take_results(self, peer: bytes, results: m.Results, now_s: float) -> None:
        trainer = self._hear(peer, results, now_s)
        if trainer is not None:
            stream = self._streams[results.stream]
            world = trainer.attach.world if stream.view.leases is None else None
            stream.results.trainers = len(stream.trainers)
            orders = stream.results.take(results, trainer.peer, trainer.ranks, world)
            self._out += [*orders, *self._worlds.end_runs(orders)]

    def _take_place(self, peer: bytes, place: m.StandsStill, now_s: float) -> None:
        if self._hear(peer, place, now_s) is not None:
            self._out += self.ending.stand(place, now_s)

    def _hear(self, peer: bytes, news: m.Outcomes | m.Results | m.StandsStill, now_s: float) -> AttachedTrainer | None:
        """Return the attached sender, as alive; if unknown (or outcomes are in lockstep) answer so and return None."""
        stream = self._streams.get(news.stream)
        trainer = stream.trainers.get(news.incarnation) if stream is not None else None
        if stream is None or trainer is None or (isinstance(news, m.Outcomes) and stream.view.leases is None):
            self._out.append(Send(peer, objections.unknown_trainer()))
            return None
        trainer.peer, trainer.heard_s = peer, now_s
        return trainer

    def _take_graph(self, peer: bytes, message: m.GraphOffer | m.GraphPiece, now_s: float) -> None:
        self._out += self._graphs.take(peer, message, now_s)

    # --- workers ---

    def _register(self, peer: bytes, register: m.Register, host: str, now_s: float) -> None:
        refusal = objections.register_misfit(register, host, self._settings.builder)
        if refusal is not None:
            self._answer(peer, refusal)
            if refusal.code == "builder" and self._workers.note_refused(register):
                # Our fingerprint is what lets a worker in, so neither the refusal nor this names it.
                self._warn("worker builds other bytes", worker=register.worker, endpoint=register.endpoint)
            return
        is_news = self._workers.register(peer, register, now_s, host)
        self.counts.workers_replaced = self._workers.replaced
        self._out += [
            Send(peer, m.Registered(heartbeat_timeout_ms=int(1000 * self._timeout_s))),
            Send(peer, self._convictions.message),
        ]
        if is_news:
            self._send_members()

    def _take_beat(self, peer: bytes, beat: m.Beat, now_s: float) -> None:
        worker = self._workers.get(beat.incarnation)
        # Incarnations are sent to all trainers, so knowing one does not prove to be that worker.
        if worker is None or worker.peer != peer:
            self._out.append(Send(peer, objections.unknown_worker()))
            return
        worker.hear(beat, now_s)
        culprits = self._convictions.message
        self._out.append(Send(peer, culprits if beat.culprits != culprits.version else _NOTED))

    def _leave(self, peer: bytes, leave: m.Leave, _now_s: float) -> None:
        worker = self._workers.get(leave.incarnation)
        if worker is not None and worker.peer == peer:
            self._workers.remove(leave.incarnation)
            self._send_members()

    def _send_members(self) -> None:
        left_out = self._workers.left_out
        if left_out and not self._is_cut:
            self._warn("list of workers is cut to what a message carries", workers=len(self._workers), without=left_out)
        self._is_cut = bool(left_out)
        self._send_trainers(self._workers.members)

    def _take_failing(self, peer: bytes, failing: m.Failing, now_s: float) -> None:
        before = self._workers.failing.get(failing.worker)
        if self._workers.note_failing(peer, failing, now_s):
            if before != failing:
                self._warn("worker cannot serve", **{name: getattr(failing, name) for name in failing.checks})
            self._send_trainers(failing)

    def _send_trainers(self, message: m.Message) -> None:
        for stream in self._streams.values():
            self._out.extend(Send(trainer.peer, message) for trainer in stream.trainers.values())
        self._out.extend(self.verifiers.send_all(lambda _stream: message))

    # --- culprits ---

    def _take_culprit(self, peer: bytes, culprit: m.Culprit, _now_s: float) -> None:
        if not self._workers.speaks(peer):
            self._out.append(Send(peer, objections.unknown_worker()))
            return
        if culprit.stream not in self._streams:
            return
        before = self._convictions.message
        self._out += self._convictions.convict(culprit)
        if self._convictions.message != before:
            self._send_culprits()

    def _forgive(self, peer: bytes, forgive: m.Forgive, _now_s: float) -> None:
        kept = self._convictions.forgive(forgive)
        self._out += [*kept, Send(peer, m.Forgiven(count=len(kept)))]
        if kept:
            self._send_culprits()

    def _send_culprits(self) -> None:
        self._out.extend(Send(peer, self._convictions.message) for peer in self._workers.peers())

    def _warn(self, event: str, **fields: object) -> None:
        self._out.append(Warn(event, fields))

    # --- time and status ---

    def _tick(self, report: Mapping[str, Any] | None, now_s: float) -> None:
        since_s = now_s - GONE_AFTER * self._timeout_s
        gone = self._workers.remove_silent(since_s)
        self.counts.workers_gone += gone
        if gone:
            self._send_members()
        self._workers.forget_failing(now_s)
        for stream in self._streams.values():
            self.counts.trainers_gone += stream.remove_silent(since_s)
        self.verifiers.remove_silent(since_s)
        self._out += self.ending.agree(now_s)
        self.queues.tick(now_s)
        self._out += self._worlds.tick(now_s)
        self.watch.tick(self._streams.values(), self._workers.sorted(), report, now_s)

    def _answer_status(self, peer: bytes, _query: m.StatusQuery, now_s: float) -> None:
        self._out.append(Send(peer, m.Status(report=text_of(self.report(now_s)))))

    def report(self, now_s: float) -> dict[str, Any]:
        """Return the full report: job, streams, workers, number wanted, failing, culprits, end, journal, counters."""
        return {
            "job": self._settings.job,
            "streams": {name: self._stream_report(name, stream, now_s) for name, stream in self._streams.items()},
            "workers": [worker_report(worker, now_s) for worker in self._workers.sorted()],
            "workers_wanted": self.watch.workers_wanted,
            "failing": self._workers.failing_report(),
            "culprits": self._convictions.report(),
            "ends": self.ending.report(),
            "journal": self._journal,
            **self.counts.report(),
        }

    def _stream_report(self, name: str, stream: StreamTrainers, now_s: float) -> dict[str, Any]:
        return stream_report(stream, self._settings.group or stream.group, now_s) | {
            **self.queues.stream_report(name),
            "evaluating": list(self.queues.evaluations.report_of(name)),
            "verifiers": self.verifiers.report_of(name, now_s),
            "elastic": self._worlds.report_of(name, now_s),
        }

    _doors: ClassVar[dict[type[m.Message], Callable[..., None]]] = {
        m.Attach: _attach, m.Join: _join, m.Progress: _take_progress, m.Detach: _detach, m.Outcomes: _take_outcomes,
        m.Results: _take_results, m.StandsStill: _take_place, m.GraphOffer: _take_graph, m.GraphPiece: _take_graph,
        m.Beat: _take_beat, m.Leave: _leave, m.Failing: _take_failing, m.Culprit: _take_culprit, m.Forgive: _forgive,
        m.StatusQuery: _answer_status,
    }  # fmt: skip
