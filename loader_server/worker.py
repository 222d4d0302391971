"""A worker: one process, one core, that builds the batches it is asked for and pushes them.

Rules: this poll loop owns the sockets and alone decides; building happens in `build_thread`. Every accepted ticket is
answered exactly once (pushed, unbuilt or cancelled), and only when nothing here can write into its slot any more. The
worker keeps nothing that it could not rebuild: any other one can take its place at any moment.
"""

from __future__ import annotations

import os
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import zmq

from loader_server import refusals
from loader_server.build_counts import BuildCounts
from loader_server.build_thread import BuildThread, Job, Outcome
from loader_server.builder import Builder
from loader_server.deadline import Deadline
from loader_server.guard import Guard
from loader_server.outgoing import Outgoing
from loader_server.quarantine import Quarantine
from loader_server.read_ahead import ReadAhead
from loader_server.registration import Registration, advertised
from loader_server.sending import Sending
from loader_server.session import Session
from loader_server.stream import JobFile
from loader_server.trial import Trial
from loader_server.want_queue import WantQueue
from shared import messages as m
from shared.codec import VersionError, decode, encode_refusal
from shared.errors import MachineError, ProtocolError, StokerError
from shared.hashing import fingerprint
from shared.logs import Log
from shared.memory import boot_id
from shared.messages import WireShape
from shared.packing import require_library
from shared.roles import TO_WORKER
from shared.sockets import Waker, drained

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from loader_server.trial import Conviction
    from shared.keys import ClientKeys, ServerKeys
    from shared.layout import BucketShape
    from shared.messages import Message

__all__ = ["Worker", "WorkerCounts", "WorkerSettings"]

#: Jobs given to the building thread at a time: one being built, the others being read ahead.
_AHEAD = 4

#: A trainer that has been silent for so many heartbeat timeouts is gone.
_GONE_AFTER = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """Where a worker serves, and whom it belongs to."""

    job_path: Path
    name: str
    listen: str
    coordinator: str
    server_keys: ServerKeys | None = None
    client_keys: ClientKeys | None = None


@dataclass(slots=True)
class WorkerCounts:
    """What happened so far."""

    built: int = 0
    masked: int = 0
    pushed_bytes: int = 0
    stale: int = 0
    garbage: int = 0
    refused: int = 0
    build_us: int = 0


class Worker:
    """Made in the process's main thread; `run` returns when it has drained."""

    def __init__(self, settings: WorkerSettings) -> None:
        self.settings = settings
        self.incarnation = secrets.randbits(63)
        self.counts = WorkerCounts()
        #: The last heartbeat's content: how much there is to do.
        self.load: m.Beat | None = None
        self.log = Log("worker", worker=settings.name)
        self._job = JobFile(settings.job_path)
        self._streams = {name: self._job.open(name) for name in self._job.recipes}
        self.build_counts = {name: BuildCounts() for name in self._streams}
        self._quarantine = Quarantine(self._job.state / "quarantine.jsonl")
        #: Rows masked so far, by reason.
        self.masked_by_reason = self._quarantine.counts
        build_timeout_s = self._job.settings.build_timeout_s
        deadline = Deadline(build_timeout_s)
        self._builders = {name: Builder(stream, self._quarantine, deadline) for name, stream in self._streams.items()}
        self._waker = Waker()
        packing = self._job.packing
        require_library(packing)
        self._outgoing = Outgoing(packing, self._job.settings.queue_bytes)
        self._thread = BuildThread(
            self._builders,
            trial=Trial(settings.job_path, build_timeout_s),
            outgoing=self._outgoing,
            readers=ReadAhead(build_timeout_s),
            deadline=deadline,
            wake=self._waker.wake,
        )
        self._queue: WantQueue[bytes, Job] = WantQueue()
        self._sessions: dict[bytes, Session] = {}
        self._draining = False
        self._stop_s = float("inf")
        self._look_s = 0.0
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.guard = Guard(self._context, settings.server_keys, TO_WORKER)
        self._sending = Sending(self._context, settings.listen, settings.server_keys, self._outgoing)
        self.endpoint = self._sending.endpoint
        #: All that it serves on.
        self.ports = self._sending.ports
        reachable = advertised(self.endpoint, settings.coordinator)
        self._registration = Registration(
            self._context,
            settings.coordinator,
            settings.client_keys,
            m.Register(
                worker=settings.name,
                incarnation=self.incarnation,
                endpoint=reachable,
                boot_id=boot_id(),
                uid=os.getuid(),
                builder=self._fingerprint(),
            ),
        )

    def _fingerprint(self) -> str:
        """Of the plans and of all that shapes the bytes: workers of a job have it in common."""
        return fingerprint(
            *(part for name, stream in sorted(self._streams.items()) for part in (name, stream.digest, stream.builder))
        )

    # --- the loop ---

    def run(self) -> None:
        """Serve until drained."""
        poller = zmq.Poller()
        poller.register(self._sending.router, zmq.POLLIN)
        poller.register(self._registration.socket, zmq.POLLIN)
        poller.register(self._waker.fileno(), zmq.POLLIN)
        try:
            while not self._is_done():
                now_s = time.monotonic()
                ready = {sock for sock, _ in poller.poll(self._pause_ms(now_s))}
                self._turn(ready)
        finally:
            self._close()

    def drain(self, timeout_s: float) -> None:
        """Finish what is being built, refuse the rest, then end; callable from a signal handler."""
        self._draining = True
        self._stop_s = time.monotonic() + timeout_s
        self._waker.wake()

    def _is_done(self) -> bool:
        idle = not self._thread.load and not len(self._queue) and not self._sending.unsent_bytes()
        return self._draining and (idle or time.monotonic() > self._stop_s)

    def _pause_ms(self, now_s: float) -> int:
        if self._sending.unsent_bytes():
            return 5  # libzmq frees a sent buffer without a word: look whether the builder may have it back
        if self._draining:
            return 20
        return max(1, int(1000 * (self._registration.due_s() - now_s)) + 1)

    def _turn(self, ready: set[object]) -> None:
        now_s = time.monotonic()
        if self._waker.fileno() in ready:
            self._waker.clear()
        if self.guard.look(now_s):
            self._look_s = now_s
        if self._sending.router in ready:
            for identity, *frames in drained(self._sending.router):
                key = self.guard.key_of(identity)
                for frame in frames:
                    self._receive(identity.bytes, key, frame.buffer, now_s)
        self._forget_gone(now_s)
        for outcome in self._thread.taken():
            self._answer(outcome)
        self._sending.take_back()
        if self._draining:
            self._refuse_queue()
        self._feed_builder()
        self._talk_to_coordinator(now_s, spoken_to=self._registration.socket in ready)
        if not self._sending.flush():  # nobody waits for what was for it
            self.log.debug("trainer is gone")

    def _feed_builder(self) -> None:
        while self._thread.load < _AHEAD and self.unsent_bytes() < self._job.settings.queue_bytes:
            job = self._queue.take()
            if job is None:
                return
            self._thread.submit(job)

    def unsent_bytes(self) -> int:
        """Bytes of batches that were built and are still on their way out by TCP."""
        return self._sending.unsent_bytes()

    def _talk_to_coordinator(self, now_s: float, *, spoken_to: bool) -> None:
        for culprits in self._registration.turn(now_s, self._beat, spoken_to=spoken_to):
            if culprits.stream in self._builders:
                self._builders[culprits.stream].culprits.hear(culprits.keys)
        if self._draining:
            self._registration.leave()

    def _to_build(self) -> int:
        return len(self._queue) + self._thread.load

    def _beat(self) -> m.Beat:
        load = self.load = m.Beat(
            worker=self.settings.name,
            incarnation=self.incarnation,
            waiting=len(self._queue),
            building=self._thread.load,
            built=self.counts.built,
            masked=self.counts.masked,
        )
        return load

    def _forget_gone(self, now_s: float) -> None:
        if now_s < self._look_s:
            return
        self._look_s = now_s + self._registration.heartbeat_timeout_s / 4
        for identity in [one for one, session in self._sessions.items() if self._is_gone(session, now_s)]:
            self._forget(identity)

    def _is_gone(self, session: Session, now_s: float) -> bool:
        """Silent for long, or its key is not allowed any more."""
        silent = now_s - session.heard_s > _GONE_AFTER * self._registration.heartbeat_timeout_s
        return silent or not self.guard.has_role(session.key, "trainer")

    def _forget(self, identity: bytes) -> None:
        """The trainer is gone: its jobs are void, its memory is let go once nothing of ours can write there."""
        session = self._sessions[identity]
        for job in self._queue.drop(identity):
            self._end(session, job)
        for job in session.jobs.values():
            job.cancelled = True
        if not session.jobs:
            session.close()
            del self._sessions[identity]

    def _close(self) -> None:
        if self._thread.close(timeout_s=1.0):
            for session in self._sessions.values():
                session.close()  # otherwise the end of the process lets go of the slots: a thread may still write
        self._registration.close()
        self._sending.close()
        self._context.term()
        self._waker.close()
        self._quarantine.close()
        for stream in self._streams.values():
            stream.close()

    # --- from trainers ---

    def _receive(self, identity: bytes, key: str, frame: memoryview | bytes, now_s: float) -> None:
        try:
            message = decode(frame)
        except VersionError as error:
            self._sending.say_frame(identity, encode_refusal(error))
            return
        except ProtocolError:
            self.counts.garbage += 1
            return
        refusal = self.guard.turn_away(key, message)
        if refusal is not None:
            self._sending.say(identity, refusal)
            return
        door = self._doors.get(type(message))
        if door is None:
            self.counts.garbage += 1
        else:
            door(self, identity, self._sessions.get(identity), message, now_s)
        session = self._sessions.get(identity)
        if session is not None:
            session.heard_s, session.key = now_s, key

    def _hello(self, identity: bytes, session: Session | None, message: m.Hello, now_s: float) -> None:
        problem = self._stranger(message)
        if problem is not None:
            self._sending.say(identity, problem)
            return
        if session is None or session.incarnation != message.incarnation:
            if session is not None:
                self._forget(identity)
            session = self._sessions[identity] = Session(message, self._outgoing.take, now_s)
            self.log.info(
                "trainer came",
                stream=message.stream,
                shared_memory=session.shared is not None,
                reason=session.why_not_shared,
            )
        else:
            session.take_key(message)
        shared = session.shared is not None
        self._sending.say(
            identity,
            m.Welcome(
                worker=self.settings.name,
                incarnation=self.incarnation,
                shared=shared,
                reason=session.why_not_shared,
                float32=self._job.settings.float32,
                compression=self._job.settings.compression,
                sealed_port=self._sending.sealed_port if session.sealer is not None else 0,
            ),
        )

    def _stranger(self, hello: m.Hello) -> m.Refused | None:
        if hello.job != self._job.settings.name:
            return refusals.another_job(hello, self._job.settings.name)
        if hello.stream not in self._streams:
            return refusals.no_such_stream(hello, self._streams)
        return None

    def _want(self, identity: bytes, session: Session | None, want: m.Want, _now_s: float) -> None:
        ticket = want.ticket
        refusal = self._objection(session, want)
        if refusal is not None:
            self.counts.refused += 1
            self._sending.say(identity, refusal)
            return
        assert session is not None
        if not session.tickets.accept(ticket):
            self.counts.stale += 1
            return
        job = Job(
            identity,
            want,
            session.buffer(want),
            digest=session.verify or not (want.in_slot or session.sealer),
            sealer=session.sealer,
        )
        session.jobs[ticket] = job
        self._queue.put(identity, job, urgent=want.urgent)

    def _objection(self, session: Session | None, want: m.Want) -> m.Unbuilt | None:
        if session is None or want.worker != self.incarnation or want.trainer != session.incarnation:
            return refusals.another_trainer(want.ticket)
        if want.in_slot and session.shared is None:
            return refusals.not_shared(want.ticket)
        if self._draining:
            return refusals.draining(want.ticket)
        stream = self._streams.get(want.stream)
        if stream is None or want.stream != session.stream or want.plan_digest != stream.digest:
            return refusals.another_plan(want, stream.digest if stream else None, self.settings.name)
        return None

    def _cancel(self, identity: bytes, session: Session | None, message: m.Cancel, _now_s: float) -> None:
        """Answered at once if the job is still in the queue; otherwise its outcome is the answer."""
        job = session.jobs.get(message.ticket) if session is not None else None
        if session is None or job is None:
            return
        job.cancelled = True
        if self._queue.remove(identity, job):
            self._end(session, job)
            self._sending.say(identity, m.Cancelled(ticket=message.ticket))

    def _ping(self, identity: bytes, session: Session | None, message: m.Ping, _now_s: float) -> None:
        held = session.tickets.held() if session is not None else ()
        sealed = session.sealed_number if session is not None else 0
        self._sending.say(
            identity, m.Pong(number=message.number, tickets=held, sealed=sealed, waiting=self._to_build())
        )

    def _epoch_query(self, identity: bytes, _session: Session | None, message: m.EpochQuery, _now_s: float) -> None:
        stream = self._streams.get(message.stream)
        if stream is not None and stream.digest == message.plan_digest:
            batches = self._builders[message.stream].batches(message.epoch, message.group)
            self._sending.say(
                identity,
                m.EpochAnswer(stream=message.stream, epoch=message.epoch, group=message.group, batches=batches),
            )

    def _name_query(self, identity: bytes, _session: Session | None, message: m.NameQuery, _now_s: float) -> None:
        stream = self._streams.get(message.stream)
        if stream is not None and stream.digest == message.plan_digest and message.sample < stream.samples:
            name = stream.source.name(message.sample)[:4000]
            self._sending.say(identity, m.NameAnswer(stream=message.stream, sample=message.sample, name=name))

    _doors: ClassVar[dict[type[Message], Callable[..., None]]] = {
        m.Hello: _hello,
        m.Want: _want,
        m.Cancel: _cancel,
        m.Ping: _ping,
        m.EpochQuery: _epoch_query,
        m.NameQuery: _name_query,
    }

    # --- answers ---

    def _answer(self, outcome: Outcome) -> None:
        job = outcome.job
        session = self._sessions.get(job.trainer)
        if outcome.built is not None and outcome.payload is not None:
            self.build_counts[job.want.stream].add(outcome.built, outcome.payload.nbytes)
        for one in outcome.convictions:
            self._convict(job.want.stream, one)
        if session is None or session.jobs.get(job.want.ticket) is not job:
            return  # a trainer that is gone, or came back as another incarnation
        self._end(session, job)
        if outcome.built is not None and not job.cancelled:
            self._push(outcome, session)
        elif outcome.error is not None:
            self._report(job, outcome.error)
        else:
            self._sending.say(job.trainer, m.Cancelled(ticket=job.want.ticket))
        if not session.jobs and self._is_gone(session, time.monotonic()):
            self._forget(job.trainer)

    def _convict(self, stream: str, one: Conviction) -> None:
        self.log.warning(
            "sample kills its decoder", stream=stream, sample=one.sample, identity=one.identity, ends=one.ends
        )
        self._builders[stream].culprits.find(one.identity)
        self._registration.tell(
            m.Culprit(worker=self.settings.name, stream=stream, identity=one.identity, ends=one.ends)
        )

    def _end(self, session: Session, job: Job) -> None:
        session.tickets.answer(job.want.ticket)
        del session.jobs[job.want.ticket]

    def _push(self, outcome: Outcome, session: Session) -> None:
        want, built = outcome.job.want, outcome.built
        assert built is not None
        assert outcome.shape is not None
        assert outcome.payload is not None
        in_slot = want.in_slot
        header = m.Pushed(
            ticket=want.ticket,
            epoch=want.epoch,
            number=want.number,
            empty=want.empty,
            in_slot=in_slot,
            shape=_wire(outcome.shape),
            nbytes=outcome.payload.nbytes,
            digest=built.digest,
            rows=built.rows,
            masked=built.masked,
            reason=built.reason,
            build_us=built.build_us,
            waiting=self._to_build(),
        )
        self.counts.built += 1
        self.counts.masked += built.masked
        self.counts.build_us += built.build_us
        self.counts.pushed_bytes += outcome.payload.nbytes
        if in_slot:
            self._sending.say(outcome.job.trainer, header)
        else:
            self._sending.push(outcome, header, session, self.log)

    def _report(self, job: Job, error: BaseException) -> None:
        self.counts.refused += 1
        if isinstance(error, MachineError):
            self.log.warning("samples cannot be tried", number=job.want.number, error=str(error))
        elif not isinstance(error, StokerError):
            self.log.error("defect while building", number=job.want.number, error=repr(error))
        self._sending.say(job.trainer, refusals.failed(job.want, error))

    def _refuse_queue(self) -> None:
        while (job := self._queue.take()) is not None:
            session = self._sessions[job.trainer]
            self._end(session, job)
            self._sending.say(job.trainer, refusals.draining(job.want.ticket))


def _wire(shape: BucketShape) -> WireShape:
    return WireShape(shape.rows, tuple(sorted(shape.lengths.items())))
