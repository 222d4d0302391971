"""The coordinator's process: a ROUTER around `state`, with `journal` in between.

Rules: each turn reads what came, writes the facts in one transaction, and only then sends. A peer that cannot be
reached is not dropped here: `state` judges silence. A journal that cannot be written, or whose files are gone, holds up
only what depends on it: no lease and no place is promised, and no lease expires, until it can be written again. A
message that cannot be sent holds up nothing. Both are counted. No peer gets more than its share: a peer that sends too
many messages is not heard for a moment, one that does not read gets no more answers, and one that sends faster than we
can read is braked (see `shared.fairness`). The status is built at most once a turn, because a report takes long.
"""

from __future__ import annotations

import math
import secrets
import time
from dataclasses import replace
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING

import zmq

from loader_server.building.fingerprint import builder_fingerprint, builder_parts, differing_parts
from loader_server.coordinator import objections
from loader_server.coordinator.endpoint_writer import EndpointWriter
from loader_server.coordinator.events import (
    CoordinatorSettings,
    Counts,
    EndOrdered,
    Excused,
    GraphFailed,
    GraphRuns,
    Instruction,
    JournalLooked,
    Keep,
    Received,
    RunGraph,
    Send,
    Ticked,
    Warn,
)
from loader_server.coordinator.graph_keeper import GraphKeeper, kept_graphs
from loader_server.coordinator.journal import Journal, JournalWriter
from loader_server.coordinator.outgoing import drop_older_members, is_promise
from loader_server.coordinator.report import Comings
from loader_server.coordinator.state import CoordinatorState
from loader_server.coordinator.streams.views import CountingThread, View
from loader_server.fleet.bundle import BundleKeeper
from loader_server.fleet.giving import Giving
from loader_server.machine.doors import Doors
from loader_server.stream import Stream
from shared.endpoints import scrape_address
from shared.errors import DataError, ProtocolError
from shared.fairness.budget import Patience
from shared.fairness.unread import UnreadAnswers
from shared.guard import Guard
from shared.logs import Log
from shared.malloc_tuning import Aftermath
from shared.metrics.probes import LOOP_S, CoordinatorView, Probes, dead, unready_coordinator
from shared.metrics.scrape_targets import job_targets
from shared.sockets import Waker, bind_router, read_waiting
from shared.wire import messages as m
from shared.wire.codec import VersionError, decode, encode, encode_refusal
from shared.wire.refusing import TO_COORDINATOR

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    from loader_server.job_file import JobFile
    from shared.keys import ServerKeys
    from shared.stations.reported import StreamLimits

__all__ = ["Coordinator", "open_coordinator"]


#: A turn that took this many tick intervals was a stall; every peer sends its next heartbeat within as many.
_STALL_TICKS = 4

#: How long trainers have to hear of the job's end (repeated with each heartbeat), and how often to check meanwhile.
_LAST_WORDS_S = 1.0
_LOOK_MS = 50
#: The main loop counts as dead after this long; no single turn takes that much, not even on a slow disk.
_DEAD_S = 60.0
#: How long libzmq may take to send the last messages on close.
_LINGER_MS = 200
#: Limit of messages that are read in one turn; if there are more, the brakes hear of it.
_MOST_MESSAGES = 1024
#: Limit of differing workers that are remembered so that each is logged once.
_MOST_DIFFERING = 256
#: Poll interval while answers are unread or a flood is being braked.
_SOON_MS = 20


def open_coordinator(job: JobFile, endpoint: str, keys: ServerKeys | None, *, advertise: str = "") -> Coordinator:
    """Return the coordinator of a job file, with journal and endpoint file in the job's state folder.

    Raises SettingsError, DataError or MachineError if folder, journal, data, endpoint or `advertise` cannot be used,
    HeldError if another coordinator holds the journal; OSErrors of reading files, other errors of making sources pass.
    """
    job.refuse_closed(job.state)
    journal = Journal(job.state / "journal.sqlite")
    try:
        streams = {name: Stream(job, name) for name in job.recipes if job.is_there(name)}
        settings = CoordinatorSettings(
            job=job.settings.name,
            builder=builder_fingerprint(streams, job.versions_of_sent()),
            builder_parts=builder_parts(streams, job.versions_of_sent()),
            group=job.settings.group,
            heartbeat_timeout_s=job.settings.heartbeat_timeout_s,
            max_bad=job.settings.max_bad,
            graphs=kept_graphs(job),
        )
        counting = CountingThread()
        views = {name: View(stream, counting) for name, stream in streams.items()}
        coordinator = Coordinator(settings, views, journal, endpoint, keys)
        coordinator.keep_files(job, partial(View, counting=counting), advertise)
        return coordinator
    except BaseException:  # the journal has no other owner yet
        journal.close()
        raise


class Coordinator:
    """The coordinator's main loop, made in the main thread; `run` returns after `stop`, with the journal closed."""

    def __init__(
        self,
        settings: CoordinatorSettings,
        streams: Mapping[str, View],
        journal: Journal,
        endpoint: str,
        keys: ServerKeys | None,
    ) -> None:
        self._log = Log("coordinator", job=settings.job)
        #: Streams that trainers can attach to, by name; replaced as a whole, so that other threads can read it.
        self.streams = streams
        self._builder_parts = settings.builder_parts
        #: The differences last logged of each worker, by name.
        self._differing: dict[str, str] = {}
        self._comings = Comings()
        self._graphs: GraphKeeper | None = None
        self._bundle: BundleKeeper | None = None
        self._giving = Giving()
        self._endpoint_writer: EndpointWriter | None = None
        self._of_graphs: SimpleQueue[GraphRuns | GraphFailed] = SimpleQueue()
        self._journal = journal
        # Random, so that after a restart no list has the version of another list that peers know.
        self._state = CoordinatorState(settings, streams, first_version=secrets.randbits(62) + 1)
        for fact in journal.read_facts():
            self._state.recover(fact)
        _refuse_incomplete(self._state.queues.incomplete())
        self.writer = JournalWriter(journal)
        self._tick_s = settings.heartbeat_timeout_s / 4
        self._waker = Waker()
        self._stopping = False
        #: An end that was ordered and not announced yet: whether trainers finish what they have; None if there is none.
        self._drains: bool | None = None
        #: Time of the main loop's last turn.
        self._turned_s = time.monotonic()
        #: Until when to stay so that trainers hear of the job's end.
        self._last_words_s = -math.inf
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.guard = Guard(self._context, keys, TO_COORDINATOR)
        self._router = bind_router(self._context, endpoint, keys)
        self.endpoint = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
        self.doors = Doors(self._log)
        self.doors.watch("messages", self._router)
        journal.say_where(self.endpoint)
        self._patience: Patience[bytes] = Patience()
        self._answers = UnreadAnswers(self._router)
        #: Pieces of the bundle have an account of their own: hosts that fetch slowly delay no other answers.
        self._pieces = UnreadAnswers(self._router)
        self._pieces.marks_all = True
        self._aftermath = Aftermath()
        #: Peers that asked for the status in this turn, in order.
        self._status_askers: dict[bytes, None] = {}
        #: Messages that cannot be decoded, or are not for a coordinator.
        self.garbage = 0
        #: Messages dropped unread because their senders exceeded their share, and answers dropped because nobody reads
        #: them.
        self.unheard = self.left_out = 0
        #: Messages that could not be encoded.
        self.unsendable = 0
        #: The report of the last tick; replaced as a whole, so that other threads can read it.
        self.report: Mapping[str, Any] = self._state.report(time.monotonic())

    @property
    def counts(self) -> Counts:
        """Return the counters of what has happened so far."""
        return self._state.counts

    @property
    def limits(self) -> StreamLimits | None:
        """Return what limits each stream; None before the first look. Another thread may call this."""
        return self._state.watch.limits

    def keep_files(self, job: JobFile, make_view: Callable[[Stream], View], advertise: str = "") -> None:
        """Keep the job's bundle, endpoint file and sent graphs from now on; to be called once.

        The endpoint file names the host `advertise`, if given. SettingsError of `EndpointWriter` passes.
        """
        sent = [name for name in job.accepting if name in self.streams]
        self._bundle = BundleKeeper(job, self._waker.wake, sent)
        self._endpoint_writer = EndpointWriter(job.endpoint_file, self.endpoint, advertise, self._log)
        self._endpoint_writer.write()
        self._graphs = GraphKeeper(job, make_view, self._hear_of_graph)

    def _hear_of_graph(self, event: GraphRuns | GraphFailed) -> None:
        self._of_graphs.put(event)
        self._waker.wake()

    def run(self, on_report: Callable[[Mapping[str, Any]], None] = lambda _report: None) -> None:
        """Serve until stopped, calling `on_report` with the report at each tick; then close everything.

        An ordered end is first announced, up to 1 s long. Errors of `on_report`, and OSErrors of files, pass.
        """
        poller = zmq.Poller()
        for socket in (self._router, *self.doors.monitors()):
            poller.register(socket, zmq.POLLIN)
        poller.register(self._waker.fileno(), zmq.POLLIN)
        turned_s = self._turned_s = time.monotonic()
        self._log.info("coordinator serves", endpoint=self.endpoint)
        due_s = turned_s + self._tick_s
        try:
            while not self._stopping or self._drains is not None or self._has_last_words():
                poller.poll(self._pause_ms())
                self._waker.clear()
                now_s, instructions = time.monotonic(), list[Instruction]()
                # We stalled: heartbeats lie unread in the socket, so nobody expires until all had time to be heard.
                if now_s - turned_s > _STALL_TICKS * self._tick_s:
                    due_s = now_s + _STALL_TICKS * self._tick_s
                    stall = Warn("this coordinator stood still", {"seconds": round(now_s - turned_s, 1)})
                    instructions += [stall, *self._state.handle(Excused(), now_s)]
                turned_s = self._turned_s = now_s
                instructions += self._take_in(now_s) + self._take_in_graphs(now_s) + self._take_in_end(now_s)
                if now_s >= due_s:
                    due_s = now_s + self._tick_s
                    instructions += self._tick(now_s)
                    on_report(self.report)
                self._carry_out(instructions)
                self._give_pieces()
        finally:
            self._close()

    def _tick(self, now_s: float) -> list[Instruction]:
        """Look at journal, endpoint file and silence, log changes, renew the report; return the orders."""
        instructions: list[Instruction] = []
        # Waiting facts are tried again. While that fails no lease may expire, as that fact would be lost too.
        if not self.writer.write(()):
            instructions += self._state.handle(Excused(), now_s)
        instructions += self._state.handle(JournalLooked(self.writer.lost, self.writer.waiting), now_s)
        instructions += self._state.handle(Ticked(self.report), now_s)
        self.report = self._state.report(now_s)
        for event, fields in self._comings.look(self.report, now_s):
            self._log.info(event, **fields)
        if self._endpoint_writer is not None:
            self._endpoint_writer.write()
        self._answers.forget_all()
        self._aftermath.look()
        return instructions

    def probes(self, build_timeout_s: float) -> Probes:
        """Return the answers to health probes: dead once the loop stands for over a minute and longer than a build."""
        return Probes(
            lambda now_s: dead(self._turned_s, max(_DEAD_S, build_timeout_s + LOOP_S), now_s),
            lambda now_s: unready_coordinator(
                CoordinatorView(
                    turned_s=self._turned_s,
                    is_stopping=self._stopping,
                    facts_waiting=self.writer.waiting,
                    is_journal_lost=bool(self.writer.lost),
                ),
                now_s,
            ),
            lambda host, port: job_targets(self.report, host, port),
        )

    def _pause_ms(self) -> int:
        pause_ms = _LOOK_MS if self._stopping else int(1000 * self._tick_s)
        # A few pieces are sent each turn: while hosts wait for more the next turn begins at once, unless libzmq is
        # behind.
        if self._can_give() and not self._pieces.is_behind():
            return 0
        is_soon = self._answers.is_behind() or self._pieces.is_behind() or self.doors.brakes.are_on()
        return min(pause_ms, _SOON_MS) if is_soon else pause_ms

    def end_job(self, *, drains: bool) -> None:
        """Order the end, announced in the next turn (`drains`: once leases are done); signal handlers may call it."""
        self._drains = drains
        self._waker.wake()

    def stop(self) -> None:
        """End soon, after an ordered end is announced; may be called from a signal handler."""
        self._stopping = True
        self._waker.wake()

    def _has_last_words(self) -> bool:
        """Return whether peers are attached less than 1 s after the end was announced, so that they may not know it."""
        ends = self._state.ending.report() if time.monotonic() < self._last_words_s else None
        return ends is not None and (ends["trainers"] > 0 or len(self._state.verifiers) > 0)

    def _take_in(self, now_s: float) -> list[Instruction]:
        self.guard.look(now_s)
        self.doors.turn(now_s)
        self._answers.take_back()
        self._pieces.take_back()
        instructions: list[Instruction] = []
        count = 0
        for identity, *frames in read_waiting(self._router, _MOST_MESSAGES):
            count += 1
            if not self._patience.hears(identity.bytes, now_s):
                self.unheard += 1
                self._aftermath.note()
                self.doors.brakes.note_useless(identity)
                continue
            instructions += self._hear(identity, frames, now_s)
        is_behind = count == _MOST_MESSAGES
        if is_behind:
            self._aftermath.note()
        self.doors.brakes.turn(now_s, is_behind=is_behind)
        return instructions + self._answer_status(now_s)

    def _hear(self, identity: zmq.Frame, frames: list[zmq.Frame], now_s: float) -> list[Instruction]:
        """Return a message's orders, maybe a refusal; none if garbage, of another release (refused here) or put off."""
        peer = identity.bytes
        try:
            message = decode(frames[0].buffer if frames else b"")
        except VersionError as error:
            self._bear(identity)
            self._send_frame(peer, encode_refusal(error))
            return []
        except ProtocolError:
            self._bear(identity)
            self.garbage += 1
            return []
        refusal = self._objection(identity, message)
        instructions: list[Instruction] = []
        # Each piece of a graph or of the bundle, and each page of stamps, is asked for, so the progress of a transfer
        # is not held against its sender; any other message is.
        is_progress = False
        match message:
            case _ if refusal is not None:
                instructions = refusal
            case m.StatusQuery():
                self._status_askers[peer] = None
            case m.BundleWanted():
                is_at_end = self._bundle is not None and self._bundle.is_end(message)
                is_progress = not is_at_end and self._giving.ask(peer, message)
            case _:
                instructions = self._decide(identity, message, now_s)
                is_progress = isinstance(message, m.GraphPiece | m.TracePage) and bool(instructions)
        if not is_progress:
            self._bear(identity)
        return instructions

    def _bear(self, identity: zmq.Frame) -> None:
        """Count a message that made no progress against its sender's patience and for the brakes."""
        self._patience.bear(identity.bytes)
        self.doors.brakes.note_useless(identity)

    def _answer_status(self, now_s: float) -> list[Instruction]:
        """Return the answers to all who asked for the status in this turn, with one report; empty if nobody asked."""
        peers, self._status_askers = list(self._status_askers), {}
        orders = self._state.handle(Received(peers[0], m.StatusQuery()), now_s) if peers else []
        return [Send(peer, order.message) for order in orders if isinstance(order, Send) for peer in peers]

    def _take_in_graphs(self, now_s: float) -> list[Instruction]:
        instructions: list[Instruction] = []
        while not self._of_graphs.empty():
            event = self._of_graphs.get()
            if isinstance(event, GraphRuns):
                assert isinstance(event.view, View)
                self.streams = {**self.streams, event.stream: event.view}
                if self._bundle is not None:
                    self._bundle.add_graph(event.stream)
            instructions += self._state.handle(event, now_s)
        return instructions

    def _take_in_end(self, now_s: float) -> list[Instruction]:
        drains, self._drains = self._drains, None
        if drains is None:
            return []
        self._last_words_s = now_s + _LAST_WORDS_S
        instructions = self._state.handle(EndOrdered(drains), now_s)
        self._log.info("job ends", **self._state.report(now_s)["ends"])
        return instructions

    def _objection(self, identity: zmq.Frame, message: m.Message) -> list[Instruction] | None:
        """Return the refusal of a message that its sender may not send; [] for garbage, not for us; None if fine."""
        if type(message) not in TO_COORDINATOR:
            self.garbage += 1
            return []
        refusal = self.guard.turn_away(self.guard.key_of(identity), message)
        return [Send(identity.bytes, refusal)] if refusal is not None else None

    def _decide(self, identity: zmq.Frame, message: m.Message, now_s: float) -> list[Instruction]:
        peer = identity.bytes
        if isinstance(message, m.BuilderParts):
            return self._answer_parts(peer, message)
        # Known only from the connection: a worker behind it may name a loopback endpoint, where nobody else finds it.
        host = str(identity.get("Peer-Address")) if isinstance(message, m.Register | m.Progress) else ""
        if isinstance(message, m.Progress) and message.metrics:
            message = replace(message, metrics=scrape_address(message.metrics, host))
        return self._state.handle(Received(peer, message, host), now_s)

    def _answer_parts(self, peer: bytes, builder: m.BuilderParts) -> list[Instruction]:
        differing = differing_parts(self._builder_parts, builder.parts)
        parts = "; ".join(differing) or "none that has a name"
        answer = Send(peer, objections.other_parts(builder, differing))
        # Refused workers ask again and again, and each difference is logged once.
        if self._differing.get(builder.worker) == parts:
            return [answer]
        if len(self._differing) >= _MOST_DIFFERING:
            self._differing.clear()
        self._differing[builder.worker] = parts
        return [Warn("worker differs from this machine", {"worker": builder.worker, "parts": parts}), answer]

    def _carry_out(self, instructions: list[Instruction]) -> None:
        facts = [order.fact for order in instructions if isinstance(order, Keep)]
        sends = [order for order in instructions if isinstance(order, Send)]
        # A promise may rest on an earlier fact that could not be written; no other message waits for the disk.
        depends = bool(facts) or any(is_promise(order.message) for order in sends)
        is_kept = not depends or self.writer.write(facts)
        for order in instructions:
            match order:
                case Warn(event, fields):
                    self._log.warning(event, **fields)
                case RunGraph(stream, content) if self._graphs is not None:
                    self._graphs.run(stream, content)
        self._send(drop_older_members(sends), is_kept=is_kept)

    def _send(self, orders: Iterable[Send], *, is_kept: bool) -> None:
        last, frame = None, b""
        for order in orders:
            message = order.message
            if isinstance(message, m.Forgiven) and not is_kept:
                message = objections.not_kept(message.count)
            # A promise that a restart would forget is not sent; it will be asked for again.
            if is_promise(message) and not is_kept:
                continue
            # What goes to many is encoded once.
            if message is not last:
                last, frame = message, self._encode(message)
            if frame:
                self._send_frame(order.peer, frame)

    def _can_give(self) -> bool:
        """Return whether hosts wait for pieces of the bundle, and it is ready."""
        return bool(self._giving) and self._bundle is not None and self._bundle.is_ready

    def _give_pieces(self) -> None:
        """Send due pieces of the bundle, or refusals of missing ones, once it is ready; OSErrors of reading pass."""
        if self._bundle is None or not self._can_give():
            return
        for peer, wanted in self._giving.take_due(self._pieces.held, self._pieces.total):
            answer = self._bundle.answer(wanted) or objections.no_piece(wanted.offset)
            if not self._pieces.send(peer, [self._encode(answer)]):
                self._log.debug("a host that fetched is gone")

    def _encode(self, message: m.Message) -> bytes:
        """Return the frame; empty, logged and counted if the message cannot be encoded: it costs only this answer."""
        try:
            return encode(message)
        except (ValueError, OverflowError, TypeError) as error:
            self._log.error("message cannot be sent", kind=message.kind, error=str(error))
            self.unsendable += 1  # last, because a reader of the count looks for the log line
            return b""

    def _send_frame(self, peer: bytes, frame: bytes) -> None:
        if not self._answers.reads(peer):  # it asks again once it reads
            self.left_out += 1
            self._aftermath.note()
        elif not self._answers.send(peer, [frame]):  # it hung up; its silence will be noticed
            self._log.debug("peer is gone")

    def _close(self) -> None:
        """Send and write what still waits, then give up endpoint file and journal; OSError of these passes through."""
        self.doors.close()
        if self._bundle is not None:
            self._bundle.close()
        self._router.close(linger=_LINGER_MS)
        self._context.term()
        self._waker.close()
        self.writer.write(())
        # While the journal is still locked: otherwise this would remove the file of a successor that serves already.
        if self._endpoint_writer is not None:
            self._endpoint_writer.close()
        self._journal.close()


def _refuse_incomplete(leases: list[str]) -> None:
    if leases:
        raise DataError(
            expected="all facts about leased batches",
            got=f"too few or too many for {', '.join(leases)}",
            where="the coordinator's journal",
            remedy="Move the file away and start again, then restore the trainers' checkpoint: it says which batches "
            "are done.",
        )
