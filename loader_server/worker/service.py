"""A worker: one process, one core, that builds the batches that trainers ask for and pushes them.

Rules: this poll loop owns the sockets, and only it decides; `reception` handles what trainers send, and building
happens in `build_thread`. A worker holds nothing that it could not rebuild: any other can take its place at any moment.
"""

from __future__ import annotations

import os
import secrets
import time
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import zmq

from loader_server.building.build_counts import BuildCounts
from loader_server.building.build_thread import BuildThread
from loader_server.building.builder import Builder
from loader_server.building.crash_trial import CrashTrial
from loader_server.building.deadline import Deadline
from loader_server.building.fallbacks import FALLBACK_REASONS
from loader_server.building.fingerprint import builder_fingerprint, builder_parts
from loader_server.building.not_finite import float_keys
from loader_server.building.quarantine import Quarantine
from loader_server.building.read_ahead import ReadAhead
from loader_server.building.send_buffers import SendBuffers
from loader_server.building.whole_builder import WholeBuilder
from loader_server.feature_cache.cache import FeatureCache
from loader_server.job_file import JobFile
from loader_server.machine.doors import Doors
from loader_server.machine.free_room import free_room
from loader_server.machine.room import NEEDED_DESCRIPTORS, Room
from loader_server.sharing.sharing_builder import SharingBuilder
from loader_server.sharing.shelf import Shelf
from loader_server.sources.whole_source import WholeSource
from loader_server.stream import Stream
from loader_server.tracing.want_stamps import WantStamps
from loader_server.worker.data_watch import DataWatch
from loader_server.worker.late_streams import LateStreams
from loader_server.worker.reception import Reception, ReceptionParts
from loader_server.worker.registration import Registration
from loader_server.worker.reports import build_report
from loader_server.worker.restart_watch import RestartWatch, builder_on_disk
from loader_server.worker.sender import Sender
from shared.endpoints import advertised
from shared.fairness.budget import Budget
from shared.guard import Guard
from shared.logs import Log
from shared.malloc_tuning import Aftermath
from shared.memory import boot_id
from shared.metrics.probes import LOOP_S, Probes, WorkerView, dead, unready_worker
from shared.silence import GONE_AFTER
from shared.sockets import MOST_WAITING, Waker, read_waiting
from shared.wire import messages as m
from shared.wire.payload import require_library
from shared.wire.refusing import TO_WORKER

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from loader_server.building.build_thread import Outcome
    from loader_server.building.crash_trial import Conviction
    from loader_server.machine.asking import Asker
    from loader_server.wants.session import Session
    from shared.keys import ClientKeys, ServerKeys

__all__ = ["Worker", "WorkerSettings", "builder_of"]

#: How long a worker that ends by itself (it is out of descriptors or memory, or its successor is to take over) may take
#: to finish what it has begun.
_LAST_WORDS_S = 5.0
#: How long trainers have to read its last answers: what a DEALER has received but not read is lost when the connection
#: ends.
_READING_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """Settings of a worker: its job, where it serves, and its coordinator."""

    job_path: Path
    name: str
    listen: str
    coordinator: str
    server_keys: ServerKeys | None = None
    client_keys: ClientKeys | None = None
    #: The host, perhaps with a port, that it advertises to trainers; if empty, it finds out its address.
    advertise: str = ""
    #: The file of the machine's shelf of shared batches; empty if there is none.
    shelf: str = ""


class Worker:
    """A worker's main loop; to be made in the process's main thread. `run` returns when it has drained.

    Making it raises StokerError, OSError, ZMQError or a user's error if job, data, endpoint or coordinator is unusable.
    """

    def __init__(self, settings: WorkerSettings, nursery: Asker) -> None:
        self.settings = settings
        self.incarnation = secrets.randbits(63)
        #: The last heartbeat, with how much there is to do.
        self.load: m.Beat | None = None
        self._job = JobFile(settings.job_path)
        self.log = Log("worker", job=self._job.settings.name, worker=settings.name)
        self._streams = {name: Stream(self._job, name) for name in self._job.recipes if self._job.is_there(name)}
        #: Counts of its remote files.
        self.remote_counts = self._job.cache.counts
        self.build_counts = {name: _counts_of(stream) for name, stream in self._streams.items()}
        self._quarantine = Quarantine(self._job.state / "quarantine.jsonl")
        #: Masked rows, by reason.
        self.masked_by_reason = self._quarantine.counts
        build_timeout_s = self._job.settings.build_timeout_s
        deadline = Deadline(build_timeout_s)
        self._features = {name: FeatureCache.open(self._job, stream) for name, stream in self._streams.items()}
        self._shelf = self._open_shelf()
        self._builders = {
            name: builder_of(stream, self._quarantine, deadline, self._features[name], self._shelf)
            for name, stream in self._streams.items()
        }
        self._waker = Waker()
        self._stamps = WantStamps()
        self._late = LateStreams(
            self._job, lambda name: builder_of(Stream(self._job, name), self._quarantine, deadline), self._waker.wake
        )
        self._data = DataWatch(settings.name, settings.job_path, self._streams, self._waker.wake)
        encoding = self._job.payload_encoding
        require_library(encoding)
        self._buffers = SendBuffers(encoding, self._job.settings.queue_bytes)
        needed = Room(memory=self._job.settings.largest_sample, descriptors=NEEDED_DESCRIPTORS)
        self._thread = BuildThread(
            self._builders,
            crash_trial=CrashTrial(nursery, settings.job_path, build_timeout_s, needed),
            buffers=self._buffers,
            readers=ReadAhead(build_timeout_s),
            deadline=deadline,
            wake=self._waker.wake,
            stamps=self._stamps,
        )
        self._aftermath = Aftermath()
        self._draining = False
        #: The refusal for which it ends, if its successor may be accepted.
        self._refusal: m.Refused | None = None
        #: Time of the main loop's last turn.
        self._turned_s = time.monotonic()
        self._stop_s = float("inf")
        #: Until when the last answer may still be unread.
        self._unread_until_s = 0.0
        self._look_s = self._prune_s = 0.0
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.guard = Guard(self._context, settings.server_keys, TO_WORKER)
        batches: Budget[int] = Budget(self._job.settings.queue_bytes)
        self._sender = Sender(self._context, settings.listen, settings.server_keys, self._buffers, batches)
        self.doors = Doors(self.log)
        self._sender.watch(self.doors)
        self.endpoint = self._sender.endpoint
        #: All ports that it serves.
        self.ports = self._sender.ports
        self._reception = Reception(
            ReceptionParts(
                name=settings.name,
                incarnation=self.incarnation,
                settings=self._job.settings,
                streams=self._streams,
                builders=self._builders,
                thread=self._thread,
                sender=self._sender,
                guard=self.guard,
                log=self.log,
                wake=self._waker.wake,
                awaited=lambda: self._late.awaited | self._data.lacking.keys(),
                has_room=lambda: free_room().holds(needed),
                stamps=self._stamps,
            )
        )
        self.counts = self._reception.counts
        builder = builder_fingerprint(self._streams, self._job.versions_of_sent())
        self._restart_watch = RestartWatch(
            partial(builder_on_disk, settings.job_path), builder, self._waker.wake, self.log
        )
        #: Reports to our parent that we are refused, each time that we check whether a restart would help.
        self.tell_refused: Callable[[], None] = lambda: None
        self._registration = Registration(
            self._context,
            settings.coordinator,
            settings.client_keys,
            m.Register(
                worker=settings.name,
                incarnation=self.incarnation,
                endpoint=advertised(self.endpoint, settings.advertise),
                boot_id=boot_id(),
                uid=os.getuid(),
                builder=builder,
                metrics="",
            ),
            lambda: builder_parts(self._streams, self._job.versions_of_sent()),
        )

    def _open_shelf(self) -> Shelf | None:
        """Return the shelf of shared batches; None if the job does not share any or there is no shelf (logged)."""
        if not self._job.settings.share:
            return None
        try:
            return Shelf(self.settings.shelf)
        except OSError as error:
            why = str(error) if self.settings.shelf else "only workers of `loader-server run` have a shelf of batches"
            self.log.warning("batches are not shared", reason=why)
            return None

    # --- the loop ---

    @property
    def fallbacks(self) -> dict[str, int]:
        """Return how many batches fell back to a slower way of building, by reason, over all streams."""
        counted = [builder.fallbacks.counts for builder in list(self._builders.values())]
        return {reason: sum(counts[reason] for counts in counted) for reason in FALLBACK_REASONS}

    @property
    def exhausted(self) -> bool:
        """Return whether it ends because it is out of descriptors or memory, or has lost its nursery."""
        return self._reception.exhausted

    def run(self) -> None:
        """Serve until drained.

        Raises the coordinator's refusal if it ended so that a successor can take over, or if that is for good;
        LostError if no coordinator has answered for a minute after the start; SettingsError if the coordinator's
        endpoint file is unsafe and no address is known yet; MachineError if at the end a child that it killed does not
        go away. Other errors of a turn pass through.
        """
        poller = zmq.Poller()
        for socket in (*self._sender.sockets, *self.doors.monitors()):
            poller.register(socket, zmq.POLLIN)
        poller.register(self._waker.fileno(), zmq.POLLIN)
        polled = None
        # A worker without its data would refuse every want while it looks healthy, so it registers only after the first
        # check.
        self._registration.note_data(None, may_register=False, now_s=time.monotonic())
        self._data.start()
        try:
            while not self._is_done():
                # It is replaced when the coordinator is silent, or elsewhere.
                if polled is not self._registration.socket:
                    if polled is not None:
                        poller.unregister(polled)
                    polled = self._registration.socket
                    poller.register(polled, zmq.POLLIN)
                self._turn({socket for socket, _ in poller.poll(self._pause_ms(time.monotonic()))})
            self._registration.leave()  # no turn has sent this if there was nothing to finish
            if self._refusal is not None:
                raise self._registration.error_of(self._refusal)
        finally:
            self._close()

    def tell_metrics(self, bound: str) -> None:
        """Announce our metrics' address with the next registration; to be called before `run`."""
        self._registration.tell_metrics(bound)

    def drain(self, timeout_s: float) -> None:
        """Finish what is being built, refuse the rest, then end, after `timeout_s` in any case.

        May be called from a signal handler.
        """
        self._draining = True
        self._stop_s = time.monotonic() + timeout_s
        self._waker.wake()

    def _is_done(self) -> bool:
        now_s = time.monotonic()
        idle = not self._thread.load and not self._reception.wants and not self._sender.is_behind()
        # Its verdicts on samples cost five workers, so none may be lost: what a trainer has received but not read goes
        # with the connection.
        if self.exhausted:
            idle = idle and now_s > self._unread_until_s
        return self._draining and (idle or now_s > self._stop_s)

    def _pause_ms(self, now_s: float) -> int:
        if self._sender.is_behind():
            return 5
        if self._draining or self.doors.brakes.are_on():
            return 20
        return max(1, int(1000 * (self._registration.membership.due_s - now_s)) + 1)

    def probes(self) -> Probes:
        """Return the answers to health probes.

        The loop counts as dead after standing still for longer than a build may take, with some seconds more.
        """
        return Probes(
            lambda now_s: dead(self._turned_s, max(self._job.settings.build_timeout_s, LOOP_S) + LOOP_S, now_s),
            lambda now_s: unready_worker(self._view(), now_s),
        )

    def _view(self) -> WorkerView:
        membership = self._registration.membership
        return WorkerView(
            turned_s=self._turned_s,
            is_draining=self._draining,
            has_data=self._has_data(),
            was_registered=membership.was_registered,
            is_registered=membership.registered,
            is_refused=membership.is_refused,
            heard_s=membership.heard_s,
            heartbeat_timeout_s=membership.heartbeat_timeout_s,
        )

    def _has_data(self) -> bool:
        """Return whether it can serve any stream, now or once a trainer has sent a graph."""
        return bool(self._late.awaited) or len(self._data.lacking) < len(self._streams)

    def _turn(self, ready: set[object]) -> None:
        now_s = self._turned_s = time.monotonic()
        if self._waker.fileno() in ready:
            self._waker.clear()
        # Allowed keys have changed: trainers are checked against them now.
        if self.guard.look(now_s):
            self._look_s = now_s
        self.doors.turn(now_s)
        self._take_in(ready, now_s)
        self._forget_gone(now_s)
        for outcome in self._thread.take_outcomes():
            self._answer(outcome)
            self._unread_until_s = now_s + _READING_S
        self._reception.answer_questions()
        self._sender.take_back()
        if self.exhausted and not self._draining:
            self.drain(_LAST_WORDS_S)
        # In each turn: what was begun is finished, and what comes meanwhile is refused, so trainers ask others at once.
        if self._draining:
            self._sender.mark_all()
            self._reception.refuse_all()
        self._reception.feed_builder()
        self._talk_to_coordinator(now_s, spoken_to=self._registration.socket in ready)
        if not self._sender.flush():  # a trainer that is gone waits for nothing
            self.log.debug("trainer is gone")

    def _take_in(self, ready: set[object], now_s: float) -> None:
        """Handle what trainers sent, and tell the brakes whether messages are left over.

        Useless messages and strays count against their senders, strays as garbage too. Errors of `receive` pass.
        """
        count, unheard = 0, self._reception.unheard
        for identity, *frames in read_waiting(self._sender.router) if self._sender.router in ready else ():
            count += 1
            key = self.guard.key_of(identity)
            for frame in frames:
                if not self._reception.receive(identity.bytes, key, frame.buffer, now_s):
                    self.doors.brakes.note_useless(identity)
        strays = self._sender.drop_strays(ready, self.doors.brakes.note_useless)
        self.counts.garbage += strays
        # A full read may have left messages over, so the brakes have to look who sends them.
        is_behind = max(count, strays) == MOST_WAITING
        if is_behind or self._reception.unheard != unheard:
            self._aftermath.note()
        self.doors.brakes.turn(now_s, is_behind=is_behind)

    def unsent_bytes(self) -> int:
        """Return how many bytes of built batches are still being sent by TCP."""
        return self._sender.unsent_bytes()

    def _talk_to_coordinator(self, now_s: float, *, spoken_to: bool) -> None:
        if self._data.take():
            self._registration.note_data(self._data.failing(), may_register=self._has_data(), now_s=now_s)
        for culprits in self._registration.turn(now_s, self._make_beat, spoken_to=spoken_to):
            for builder in self._builders.values():
                builder.culprits.hear(culprits.keys)
        self._look_whether_to_restart(now_s)
        self._registration.ask(self._late.take_pieces(self._registration.take_pieces(), now_s))
        self._registration.ask(self._late.look(now_s))
        self._registration.answer_trace(self._stamps.ring)
        for builder in self._late.take_opened():
            self._serve(builder)
        if self._draining:
            self._registration.leave()

    def _serve(self, builder: Builder) -> None:
        stream = builder.stream
        name = stream.name
        self.log.info("stream is open", stream=name)
        self._streams[name], self._builders[name], self._features[name] = stream, builder, None
        self.build_counts = {**self.build_counts, name: _counts_of(stream)}
        self._reception.serve(stream)

    def _look_whether_to_restart(self, now_s: float) -> None:
        """End with the coordinator's refusal if a successor would build other bytes, and may thus be accepted.

        A refusal for the protocol version is no reason to check: a successor would speak the same one.
        """
        refusal = self._registration.refusal
        if refusal is None or refusal.code == "version":
            self._restart_watch.calm()
        elif self._draining:
            return
        elif self._restart_watch.take(now_s):
            self._refusal = refusal
            self.drain(_LAST_WORDS_S)
        elif self._restart_watch.is_due(now_s):
            self.tell_refused()
            self._restart_watch.begin(now_s)

    def _make_beat(self) -> m.Beat:
        load = self.load = m.Beat(
            worker=self.settings.name,
            incarnation=self.incarnation,
            waiting=self._reception.wants.of_trainers,
            built=self.counts.built,
            masked=self.counts.masked,
            remote_bytes=self.remote_counts.fetched_bytes,
            remote_found=self.remote_counts.found,
            remote_waited=self.remote_counts.waited,
            **build_report(self._thread, self.build_counts.values()),
            culprits=self._registration.membership.culprits,
        )
        return load

    def _forget_gone(self, now_s: float) -> None:
        if now_s < self._look_s:
            return
        self._look_s = now_s + self._registration.membership.heartbeat_timeout_s / 4
        self._reception.forget(lambda session: self._is_gone(session, now_s))
        self._aftermath.look()
        if now_s >= self._prune_s:
            self._prune_s = now_s + GONE_AFTER * self._registration.membership.heartbeat_timeout_s
            self._sender.forget_quiet()

    def _is_gone(self, session: Session, now_s: float) -> bool:
        """Return whether the trainer has been silent for long, or its key is no longer allowed."""
        silent = now_s - session.heard_s > GONE_AFTER * self._registration.membership.heartbeat_timeout_s
        return silent or not self.guard.has_role(session.key, "trainer")

    def _close(self) -> None:
        # A thread that still builds may write into slots, features and shelf: they are left to the end of the process.
        ended = self._thread.close(timeout_s=1.0)
        self._reception.close(let_go=ended)
        self._registration.close()
        self.doors.close()
        self._sender.close()
        self._context.term()
        self._data.close()
        self._waker.close()
        self._quarantine.close()
        for features in self._features.values():
            if features is not None and ended:
                features.close()
        if self._shelf is not None and ended:
            self._shelf.close()
        for stream in self._streams.values():
            stream.close()

    # --- outcomes of builds ---

    def _answer(self, outcome: Outcome) -> None:
        stream = outcome.build.want.stream
        self.build_counts[stream].add_effort(outcome.build.effort)
        if outcome.built is not None and outcome.payload is not None:
            self.build_counts[stream].add(outcome.built, outcome.payload.nbytes)
        for conviction in outcome.convictions:
            self._convict(stream, conviction)
        self._reception.answer(outcome)

    def _convict(self, stream: str, conviction: Conviction) -> None:
        identity, ends = conviction.identity, conviction.ends
        self.log.warning(
            "sample kills its decoder", stream=stream, sample=conviction.sample, identity=identity, ends=ends
        )
        self._builders[stream].culprits.find(identity)
        self._registration.membership.convict(
            m.Culprit(worker=self.settings.name, stream=stream, identity=identity, ends=ends)
        )


def _counts_of(stream: Stream) -> BuildCounts:
    """Return counts of zero, with an entry for each key that may have values that are not finite."""
    return BuildCounts(not_finite=Counter(dict.fromkeys(float_keys(stream.chain.fields), 0)))


def builder_of(
    stream: Stream,
    quarantine: Quarantine,
    deadline: Deadline,
    features: FeatureCache | None = None,
    shelf: Shelf | None = None,
) -> Builder:
    """Return the builder that suits the stream's source.

    That is a WholeBuilder for a source of whole batches, which are made in sequence and so gain nothing from a batch of
    another worker, else a SharingBuilder if there is a shelf, else a plain Builder. Errors of making it pass through,
    such as those of the user's code.
    """
    if isinstance(stream.source, WholeSource):
        return WholeBuilder(stream, quarantine, deadline, stream.source)
    if shelf is not None:
        return SharingBuilder(stream, quarantine, deadline, features, shelf)
    return Builder(stream, quarantine, deadline, features)
