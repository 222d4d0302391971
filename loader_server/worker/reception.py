"""The requests of trainers to a worker, and the answers.

Rules: used in the poll loop only. Every accepted ticket is answered exactly once (pushed, unbuilt or cancelled), and
only when nothing here can write into its slot any more. Open tickets, unread answers and bytes of batches are counted
for each trainer: a trainer that asks for too much, or does not read, holds up only itself. A refusal names what was
expected, what came and what to do.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from loader_server.building.build_thread import Build
from loader_server.building.trial_rule import ExhaustedError
from loader_server.machine.processes import NurseryEndedError
from loader_server.sources.blame import error_text
from loader_server.tracing.want_stamps import WantStamps
from loader_server.wants.open_wants import OpenWants
from loader_server.wants.session import MOST_SESSIONS, Session
from loader_server.wants.sessions import Sessions
from loader_server.wants.tickets import Verdict
from loader_server.worker.epoch_counts import EpochCounts, EpochQuestion
from loader_server.worker.reports import pushed_of
from loader_server.worker.want_log import WantLog
from shared.errors import MachineError, ProtocolError, StokerError
from shared.fairness.budget import Patience
from shared.tracing.ring import StampKind
from shared.wire import messages as m
from shared.wire.batch_layout import layout_of
from shared.wire.codec import VersionError, decode, encode_refusal
from shared.wire.message_parts import clipped
from shared.wire.refusing import refused, unbuilt

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping

    from loader_server.building.build_thread import BuildThread, Outcome
    from loader_server.building.builder import Builder
    from loader_server.stream import Stream
    from loader_server.worker.sender import Sender
    from shared.guard import Guard
    from shared.logs import Log
    from shared.settings.job import JobSettings
    from shared.wire.messages import Message

__all__ = ["Reception", "ReceptionParts", "WorkerCounts", "unbuilt_after"]

_SAY_HELLO = "Say hello again."

#: The codes of errors that a want may end with, other than "failed"; the first that fits counts.
_CODES = ((ExhaustedError, "exhausted"), (MachineError, "machine"))


@dataclass(slots=True)
class WorkerCounts:
    """Counters of what has happened since the worker started."""

    built: int = 0
    #: Rows whose sample was masked.
    masked: int = 0
    #: Wants whose ticket, or a later one of its slot, was seen before.
    stale: int = 0
    #: Messages that cannot be decoded, or are not for a worker.
    garbage: int = 0
    #: Wants that got no batch.
    refused: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceptionParts:
    """The parts of a worker that its reception uses."""

    name: str
    incarnation: int
    settings: JobSettings
    streams: Mapping[str, Stream]
    builders: Mapping[str, Builder]
    thread: BuildThread
    sender: Sender
    guard: Guard
    log: Log
    wake: Callable[[], None]
    #: Returns the streams that will be served but are not open yet.
    awaited: Callable[[], Container[str]]
    #: Returns whether as much memory and as many descriptors are free as one sample may take.
    has_room: Callable[[], bool]
    stamps: WantStamps = field(default_factory=WantStamps)


class Reception:
    """Receives the messages of trainers, hands builds to the building thread, and answers."""

    def __init__(self, parts: ReceptionParts) -> None:
        self._parts = parts
        self._sender = parts.sender
        self._thread = parts.thread
        self._log = WantLog(parts.log)
        self.counts = WorkerCounts()
        #: Whether this process is out of descriptors or memory, or has lost its nursery.
        self.exhausted = False
        self._sessions: Sessions[Session] = Sessions(
            lambda address, hello: Session(address, hello, parts.sender.buffers.take)
        )
        #: The largest size of a batch, by stream.
        self._largest = {name: _largest_bytes(stream) for name, stream in parts.streams.items()}
        self.wants: OpenWants[Session, Build] = OpenWants(
            self._sessions, parts.sender.batches, self._largest, parts.sender.reads
        )
        self._patience: Patience[bytes] = Patience()
        #: Messages that were dropped unread, because their senders had sent too many that were of no use.
        self.unheard = 0
        self._count = {name: builder.batches for name, builder in parts.builders.items()}
        self._epochs = EpochCounts(self._count, parts.log, parts.wake)

    def serve(self, stream: Stream) -> None:
        """Serve a stream that was opened later; raise a KeyError if its builder is not known by now."""
        self._largest[stream.name] = _largest_bytes(stream)
        self._count[stream.name] = self._parts.builders[stream.name].batches

    # --- work to do ---

    def _to_build(self) -> int:
        """Return how many builds come before a new one; wants that wait for their own trainer do not count."""
        return self.wants.waiting() + self._thread.load

    def feed_builder(self) -> None:
        """Hand wants to the building thread while it has room."""
        while self._thread.has_room:
            build = self.wants.take()
            if build is None:
                return
            self._thread.submit(build)

    def refuse_all(self) -> None:
        """Refuse all wants that nobody has begun to build, because this worker is leaving."""
        while (given_up := self.wants.give_up()) is not None:
            session, build = given_up
            refusal = unbuilt(
                build.want.ticket,
                "draining",
                expected="a worker that stays",
                got="one that drains",
                where="worker",
                remedy="Ask another.",
            )
            self._sender.answer(session.address, refusal)

    def forget(self, is_gone: Callable[[Session], bool]) -> None:
        """Forget the trainers whose sessions `is_gone` picks, as `_forget` does."""
        for session in self._sessions:
            if is_gone(session):
                self._forget(session)

    def _forget(self, session: Session) -> None:
        """Cancel a trainer's builds; release its memory once nothing here can write there."""
        self._parts.guard.expect_no_longer(session.sealed_identity)
        self.wants.forget(session)

    def close(self, *, let_go: bool) -> None:
        """End the counting thread; with `let_go`, release the trainers' slots, as no thread can write there now."""
        self._epochs.close()
        if let_go:
            self._sessions.close()

    # --- messages of trainers ---

    def receive(self, identity: bytes, key: str, frame: memoryview | bytes, now_s: float) -> bool:
        """Handle one message; return whether it was useful, that is, brought a batch nearer.

        A sender of too many useless messages is not heard for a while: its message is dropped unread, which returns
        False. What a user's source raises for a sample's name, and what making a session raises, passes through.
        """
        if not self._patience.hears(identity, now_s):
            self.unheard += 1
            return False
        # Even a flood of well-formed messages that bring no batch nearer must not take up the loop's time.
        is_useful = self._take_in(identity, key, frame, now_s)
        if not is_useful:
            self._patience.bear(identity)
        return is_useful

    def _take_in(self, identity: bytes, key: str, frame: memoryview | bytes, now_s: float) -> bool:
        """Decode, check and dispatch one message; return whether it was a want that was accepted.

        A message that cannot be decoded, or is not for a worker, is counted as garbage; one of another protocol
        version, or not allowed to its sender, is answered with a refusal. What a source raises for a name, and what
        making a session raises, passes.
        """
        try:
            message = decode(frame)
        except VersionError as error:
            self._sender.say_frame(identity, encode_refusal(error))
            return False
        except ProtocolError:
            self.counts.garbage += 1
            return False
        refusal = self._parts.guard.turn_away(key, message)
        if refusal is not None:
            self._sender.say(identity, refusal)
            return False
        door = self._doors.get(type(message))
        if door is None:
            self.counts.garbage += 1
            return False
        accepted = door(self, identity, self._sessions.at(identity), message)
        # Looked up again: a Hello may just have begun the session.
        session = self._sessions.at(identity)
        if session is not None:
            session.heard_s, session.key = now_s, key
        return bool(accepted)

    def _greet(self, identity: bytes, former: Session | None, hello: m.Hello) -> None:
        known = self._sessions.of(hello.incarnation)
        if hello.stream in self._parts.awaited():
            return  # it greets again, and by then the stream may be open
        refusal = self._objection_to_hello(hello, len(self._sessions) - (known is not None))
        if refusal is not None:
            self._sender.say(identity, refusal)
            return
        # A connection speaks for one trainer: the former one on it is gone.
        if former is not None and former is not known:
            self._forget(former)
        if known is not None:
            self._parts.guard.expect_no_longer(known.sealed_identity)
        session = self._sessions.welcome(identity, hello)
        self._parts.guard.expect(session.sealed_identity)
        shared = session.shared is not None
        # The coordinator has a line about each trainer; with one of each worker there would be a line for each pair.
        event = "trainer came" if known is None else "trainer is back"
        self._parts.log.debug(event, **session.fields, shared_memory=shared, reason=session.why_not_shared)
        self._sender.say(
            identity,
            m.Welcome(
                worker=self._parts.name,
                incarnation=self._parts.incarnation,
                shared=shared,
                reason=session.why_not_shared,
                float32=self._parts.settings.float32,
                compression=self._parts.settings.compression,
                sealed_port=self._sender.sealed_port if session.sealer is not None else 0,
            ),
        )

    def _objection_to_hello(self, hello: m.Hello, others: int) -> m.Refused | None:
        """Return why a trainer is not served, or None if it is; `others` is the number of other trainers here.

        It is not if it names another job or a stream that is not served here, or if too many trainers are here.
        """
        job, streams = self._parts.settings.name, self._parts.streams
        if hello.job != job:
            return refused("job", f"a trainer of job {job}", f"job {hello.job}", "Connect to that job's loaders.")
        if hello.stream not in streams:
            return refused(
                "stream", f"one of the streams {', '.join(streams)}", hello.stream, "Correct the stream's name."
            )
        if others >= MOST_SESSIONS:
            return refused(
                "busy", f"at most {MOST_SESSIONS} trainers", "one more", "Ask another worker, or add workers."
            )
        return None

    def _take_want(self, identity: bytes, session: Session | None, want: m.Want) -> bool:
        """Accept or refuse a want; return whether it was accepted.

        A want whose ticket is stale is dropped without an answer; a refusal is sent, and counted.
        """
        ticket = want.ticket
        is_greeted = session is not None and not session.gone and want.trainer == session.incarnation
        if session is None or not is_greeted or want.worker != self._parts.incarnation:
            refusal = unbuilt(
                ticket,
                "unknown",
                expected="a want of a trainer that said hello to this incarnation",
                got="another",
                where="worker",
                remedy=_SAY_HELLO,
            )
            return self._refuse(identity, refusal)
        verdict = self.wants.judge(session, ticket)
        # No answer: it could be mistaken for the answer to the open ticket.
        if verdict is Verdict.STALE:
            self.counts.stale += 1
            return False
        objection = self._objection_to_want(want, session, verdict)
        if objection is not None:
            # Refused generations count as well: a ticket is accepted only if its generation is above the slot's last
            # one.
            session.tickets.refuse(ticket)
            self._log.note_refused(session, want, objection)
            return self._refuse(identity, objection)
        build = Build(
            session.incarnation,
            want,
            session.buffer(want),
            digest=session.verify or not (want.in_slot or session.sealer),
            sealer=session.sealer,
            key=self._parts.stamps.key(want),
        )
        self._parts.stamps.stamp(StampKind.RECEIVED, time.monotonic_ns(), build.key)
        self.wants.put(session, build)
        self._log.note_accepted(session, want)
        return True

    def _objection_to_want(self, want: m.Want, session: Session, verdict: Verdict) -> m.Unbuilt | None:
        """Return why a want is not built, or None if it is.

        It is not if it is for a slot of a trainer that shares none, is of another stream or plan than the session's, or
        if its trainer asks for too much (BUSY).
        """
        ticket, stream = want.ticket, self._parts.streams.get(want.stream)
        if want.in_slot and session.shared is None:
            return unbuilt(
                ticket,
                "unknown",
                expected="a want that comes by TCP",
                got="one to be written in place",
                where="worker",
                remedy=_SAY_HELLO,
            )
        if stream is None or want.stream != session.stream or want.plan_digest != stream.digest:
            return unbuilt(
                ticket,
                "plan",
                expected=f"plan {want.plan_digest}",
                got=stream.digest if stream is not None else f"no stream {want.stream}",
                where=f"worker {self._parts.name}",
                remedy="Give all machines the same job file and index.",
            )
        if verdict is Verdict.BUSY:
            return unbuilt(
                ticket,
                "busy",
                expected="one open want for each slot that was offered, from a trainer that reads its answers",
                got=f"one more, for slot {ticket.slot}",
                where="worker",
                remedy="Ask again later.",
            )
        return None

    def _refuse(self, identity: bytes, refusal: m.Unbuilt) -> bool:
        self.counts.refused += 1
        self._sender.say(identity, refusal)
        return False

    def _cancel(self, _identity: bytes, session: Session | None, message: m.Cancel) -> None:
        """Answer at once if nobody has begun to build it; otherwise the outcome of the build is the answer.

        Do nothing for a ticket that is not open.
        """
        if session is not None and self.wants.cancel(session, message.ticket):
            self._sender.answer(session.address, m.Cancelled(ticket=message.ticket))

    def _answer_ping(self, identity: bytes, session: Session | None, message: m.Ping) -> None:
        # A want, or its answer, may be lost with a connection that neither side saw end. By the list of open tickets
        # the trainer notices, and asks again. It has those of a session that is gone as well: a Pong without them would
        # say that their slots are free.
        if session is not None:
            self._parts.stamps.note_ping(session.incarnation, message.number)
        held = session.tickets.held() if session is not None else ()
        sealed = session.sealed_number if session is not None else 0
        self._sender.say(identity, m.Pong(number=message.number, tickets=held, sealed=sealed, waiting=self._to_build()))

    def _answer_epoch_query(self, _identity: bytes, session: Session | None, message: m.EpochQuery) -> None:
        stream = self._parts.streams.get(message.stream)
        if session is None or stream is None or stream.digest != message.plan_digest:
            return
        question = EpochQuestion(message.stream, message.epoch, message.group)
        batches = self._epochs.ask(session.incarnation, question)
        if batches is not None:
            self._send_batches(session, question, batches)

    def answer_questions(self) -> None:
        """Send the counts of batches that were found since the last call, to trainers whose sessions are still here."""
        for trainer, question, batches in self._epochs.take_answers():
            session = self._sessions.of(trainer)
            if session is not None:
                self._send_batches(session, question, batches)

    def _send_batches(self, session: Session, question: EpochQuestion, batches: int) -> None:
        self._sender.say(
            session.address,
            m.EpochAnswer(stream=question.stream, epoch=question.epoch, group=question.group, batches=batches),
        )

    def _answer_name_query(self, identity: bytes, _session: Session | None, message: m.NameQuery) -> None:
        stream = self._parts.streams.get(message.stream)
        if stream is not None and stream.digest == message.plan_digest:
            name = clipped(stream.source.name(message.sample)) if message.sample < stream.samples else None
            self._sender.say(identity, m.NameAnswer(stream=message.stream, sample=message.sample, name=name))

    _doors: ClassVar[dict[type[Message], Callable[..., bool | None]]] = {
        m.Hello: _greet,
        m.Want: _take_want,
        m.Cancel: _cancel,
        m.Ping: _answer_ping,
        m.EpochQuery: _answer_epoch_query,
        m.NameQuery: _answer_name_query,
    }

    # --- outcomes of wants ---

    def answer(self, outcome: Outcome) -> None:
        """Answer a want with the outcome of its build: the batch, the error, or that it was cancelled.

        A batch that was cancelled meanwhile is not sent. Nothing is sent if the session with this build is over. Raise
        a ValueError if the answer cannot be encoded.
        """
        build = outcome.build
        # The ticket is closed only here, when the building thread has ended with it: after the answer the trainer may
        # lend the slot to another worker, which would write beside this one.
        session = self.wants.finish(build)
        if session is None:
            return  # its trainer is gone
        is_built = outcome.built is not None and not build.cancelled
        kind = StampKind.PUSHED if is_built else StampKind.GIVEN_UP
        self._parts.stamps.stamp(kind, time.monotonic_ns(), build.key)
        if is_built:
            self._push(outcome, session)
        elif outcome.error is not None:
            refusal = self._report(build, session, outcome.error)
            self._log.note_refused(session, build.want, refusal)
            self._sender.answer(session.address, refusal)
        else:
            self._sender.answer(session.address, m.Cancelled(ticket=build.want.ticket))
        self._sessions.tidy(session)

    def _push(self, outcome: Outcome, session: Session) -> None:
        want, header = outcome.build.want, pushed_of(outcome, self._to_build())
        self.counts.built += 1
        self.counts.masked += header.masked
        self._log.note_pushed(session, want, header)
        if want.in_slot:
            self._sender.answer(session.address, header)
        else:
            self._sender.push(outcome, header, session, self._parts.log)

    def _report(self, build: Build, session: Session, error: BaseException) -> m.Unbuilt:
        """Return the answer to a want whose building raised this error, and log what people have to look at.

        Without memory, descriptors or nursery this worker may be set to end.
        """
        self.counts.refused += 1
        match error:
            case _ if isinstance(error.__cause__, NurseryEndedError):
                self._end_exhausted(error)
            case ExhaustedError():
                self._take_exhaustion(build, session, error)
            case MachineError():
                self._log.note_no_trial(session, build.want, error)
            case _ if not isinstance(error, StokerError):
                self._log.note_defect(session, build.want, error)
        return unbuilt_after(build.want, error)

    def _take_exhaustion(self, build: Build, session: Session, error: ExhaustedError) -> None:
        """Decide whether a sample or this process is to blame for running out; if this process, end."""
        # At a first attempt with enough room left it may be the sample's own fault, which trials will show. If the
        # samples have passed trials, or too little is left, a fresh process has to take the place of this one.
        if build.want.attempt == 0 and self._parts.has_room():
            self._log.note_exhausted(session, build.want, error)
        else:
            self._end_exhausted(error)

    def _end_exhausted(self, error: BaseException) -> None:
        self.exhausted = True
        self._parts.log.error(
            "out of descriptors or memory, or without nursery: this worker drains and ends", error=repr(error)
        )


def _largest_bytes(stream: Stream) -> int:
    return max(layout_of(stream.fields, shape).nbytes for shape in stream.shapes)


def unbuilt_after(want: m.Want, error: BaseException) -> m.Unbuilt:
    """Return the answer to a want whose building raised this error.

    Its code is "exhausted" after an ExhaustedError, "machine" after another MachineError, otherwise "failed". An error
    that is no StokerError is described by its text.
    """
    if not isinstance(error, StokerError):
        return unbuilt(
            want.ticket,
            "failed",
            expected="the batch to be built",
            got=error_text(error),
            where=f"batch {want.number} of epoch {want.epoch}",
            remedy="Look at the worker's log.",
        )
    code = next((code for kind, code in _CODES if isinstance(error, kind)), "failed")
    return unbuilt(want.ticket, code, error.expected, error.got, error.where, error.remedy)
