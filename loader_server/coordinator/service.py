"""The coordinator's process: a ROUTER around `state`, with `journal` in between.

Rules: each turn takes in what came, writes the facts in one transaction, and only then sends. A peer that cannot be
reached is dropped from nothing here: silence is judged by the state. A journal that cannot be written stops what
would have to be kept, loudly, and nothing else.
"""

from __future__ import annotations

import secrets
import sqlite3
import time
from typing import TYPE_CHECKING

import zmq

from loader_server.coordinator.events import Fact, Instruction, Keep, Received, Send, Ticked
from loader_server.coordinator.journal import Journal
from loader_server.coordinator.state import CoordinatorState, Counts
from loader_server.guard import Guard
from shared.codec import VersionError, decode, encode, encode_refusal
from shared.errors import ProtocolError
from shared.hashing import fingerprint
from shared.logs import Log
from shared.messages import WireField, WireShape
from shared.roles import TO_COORDINATOR
from shared.sockets import Waker, bind_router, drained, send_now

if TYPE_CHECKING:
    from loader_server.stream import JobFile, Stream
    from shared.errors import SettingsError
    from shared.keys import ServerKeys
    from shared.messages import Message

__all__ = ["Coordinator", "View"]


#: A turn that took so many times its usual pause was a stall; everybody's next heartbeat comes within as many.
_STALL_TICKS = 4


class View:
    """A stream as the coordinator's state sees it."""

    def __init__(self, stream: Stream) -> None:
        self._plan = stream.plan
        self._batches: dict[tuple[int, int], int] = {}
        self.digest = stream.digest
        self.evaluation = stream.settings.evaluation
        self.fields = tuple(WireField(field.key, field.dtype, field.shape, field.per_second) for field in stream.fields)
        self.shapes = tuple(WireShape(shape.rows, tuple(sorted(shape.lengths.items()))) for shape in stream.shapes)

    def batches(self, epoch: int, group: int) -> int:
        """How many batches an epoch has."""
        if (epoch, group) not in self._batches:
            self._batches[epoch, group] = self._plan.epoch(epoch, group).batches
        return self._batches[epoch, group]

    def most_batches(self, group: int) -> int:
        """No epoch has more."""
        return self._plan.most_batches(group)

    def objection(self, group: int) -> SettingsError | None:
        """Why batches cannot come in groups of `group`; None where they can."""
        return self._plan.objection(group)


class Coordinator:
    """Made in the process's main thread; `run` returns after `stop`."""

    def __init__(self, job: JobFile, endpoint: str, keys: ServerKeys | None) -> None:
        self._log = Log("coordinator", job=job.settings.name)
        self._journal = Journal(job.state / "journal.sqlite")
        streams = {name: job.open(name) for name in job.recipes}
        builder = fingerprint(
            *(part for name, stream in sorted(streams.items()) for part in (name, stream.digest, stream.builder))
        )
        self._state = CoordinatorState(
            job.settings.name,
            {name: View(stream) for name, stream in streams.items()},
            builder=builder,
            group=job.settings.group,
            heartbeat_timeout_s=job.settings.heartbeat_timeout_s,
            max_bad=job.settings.max_bad,
            first_members=secrets.randbits(62) + 1,
        )
        for fact in self._journal.facts():
            self._state.recover(fact)
        self._tick_s = job.settings.heartbeat_timeout_s / 4
        self._waker = Waker()
        self._stopping = False
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.guard = Guard(self._context, keys, TO_COORDINATOR)
        self._router = bind_router(self._context, endpoint, keys)
        self.endpoint = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
        self.garbage = 0
        self.journal_errors = 0
        #: Of each stream: its samples, and how many are left out by reason.
        self.samples = {name: stream.samples for name, stream in streams.items()}
        self.left_out = {name: stream.bad_rows | stream.plan.dropped for name, stream in streams.items()}
        #: How things stood at the last tick: whole, for threads other than the loop's.
        self.report = self._state.report(time.monotonic())

    @property
    def counts(self) -> Counts:
        """What happened so far."""
        return self._state.counts

    def run(self) -> None:
        """Serve until stopped."""
        poller = zmq.Poller()
        poller.register(self._router, zmq.POLLIN)
        poller.register(self._waker.fileno(), zmq.POLLIN)
        turned_s = time.monotonic()
        due_s = turned_s + self._tick_s
        try:
            while not self._stopping:
                poller.poll(int(1000 * self._tick_s))
                now_s = time.monotonic()
                if now_s - turned_s > _STALL_TICKS * self._tick_s:
                    # We stalled (a stopped machine, a slow disk): nobody expires for our silence, before all had time
                    # to be heard again.
                    due_s = now_s + _STALL_TICKS * self._tick_s
                turned_s = now_s
                instructions = self._taken_in(now_s)
                if now_s >= due_s:
                    due_s = now_s + self._tick_s
                    instructions += self._state.handle(Ticked(), now_s)
                    self.report = self._state.report(now_s)
                self._carry_out(instructions)
        finally:
            self._close()

    def stop(self) -> None:
        """End soon; callable from a signal handler."""
        self._stopping = True
        self._waker.wake()

    def _taken_in(self, now_s: float) -> list[Instruction]:
        self.guard.look(now_s)
        instructions: list[Instruction] = []
        for identity, *frames in drained(self._router, 4096):
            try:
                message = decode(frames[0].buffer if frames else b"")
            except VersionError as error:
                self._send_raw(identity.bytes, encode_refusal(error))
            except ProtocolError:
                self.garbage += 1
            else:
                instructions += self._decide(identity, message, now_s)
        return instructions

    def _decide(self, identity: zmq.Frame, message: Message, now_s: float) -> list[Instruction]:
        if type(message) not in TO_COORDINATOR:
            self.garbage += 1
            return []
        refusal = self.guard.turn_away(self.guard.key_of(identity), message)
        if refusal is not None:
            return [Send(identity.bytes, refusal)]
        return self._state.handle(Received(identity.bytes, message), now_s)

    def _carry_out(self, instructions: list[Instruction]) -> None:
        facts: list[Fact] = [one.fact for one in instructions if isinstance(one, Keep)]
        if facts:
            try:
                self._journal.write(facts)
            except sqlite3.Error as error:
                self.journal_errors += 1
                self._log.error("journal cannot be written: progress is not kept", error=str(error))
        for one in instructions:
            if isinstance(one, Send):
                self._send_raw(one.peer, encode(one.message))

    def _send_raw(self, peer: bytes, frame: bytes) -> None:
        try:
            send_now(self._router, [peer, frame])
        except zmq.ZMQError:  # it hung up; its silence will be noticed
            self._log.debug("peer is gone")

    def _close(self) -> None:
        self._router.close(linger=200)
        self._context.term()
        self._waker.close()
        self._journal.close()
