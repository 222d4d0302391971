"""A worker as the one that ships behaves: real sessions, wants and membership; thread and sockets in the model.

Rules: every accepted ticket is answered exactly once, and only when nothing of this process can write into its slot any
more. What a worker does wrong (`Faults`) it does in one of these ways only; the rest of it is as it should be.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from loader_server.wants.open_wants import OpenWants
from loader_server.wants.sessions import Sessions
from loader_server.wants.tickets import Tickets, Verdict
from loader_server.worker.membership import Membership
from shared.fairness.budget import Budget
from shared.silence import GONE_AFTER
from shared.wire import messages as m
from tests.support.simulation.memory import PIECES, Memory, Payload, Stamp
from tests.support.simulation.network import Port, Server
from tests.support.simulation.process import Process, Timer

if TYPE_CHECKING:
    from collections.abc import Callable

    from shared.wire.message_parts import Ticket
    from tests.support.simulation.streams import Stream
    from tests.support.simulation.world import World

__all__ = ["Faults", "Worker"]

#: Builds in the building thread, as the real one has them.
_AHEAD = 4

#: Batches by TCP that fit what a worker may hold of them: few, so that its limit is met.
_BATCHES = 4

_NEVER_S = float("inf")

#: A slow worker notices that it is mended after so many times what a piece takes.
_AT_A_TIME = 10.0


@dataclass(slots=True)
class Faults:
    """What is wrong with a worker, apart from how its process fares."""

    #: How many times slower it builds.
    slow: float = 1.0
    #: Shares of wants that it answers like this.
    failing: float = 0.0
    machine: float = 0.0
    busy: float = 0.0
    wrong: float = 0.0
    misshapen: float = 0.0
    #: Every want is refused.
    refuses_all: bool = False
    #: Every build holds the interpreter.
    hogs: bool = False


@dataclass(slots=True, eq=False)
class _Build:
    trainer: int
    want: m.Want
    memory: Memory | None
    cancelled: bool = False
    #: It was refused instead of being built.
    fails: bool = False


class _Session:
    """As `loader_server.wants.session.Session`."""

    def __init__(self, worker: Worker, address: bytes, hello: m.Hello) -> None:
        self.incarnation = hello.incarnation
        self.yields = hello.yields
        self.heard_s = worker.scheduler.now_s
        self.tickets = Tickets()
        self.builds: dict[Ticket, _Build] = {}
        self.memory: Memory | None = None
        self.lock_byte = 0
        self._worker = worker
        self.greet(address, hello)

    def greet(self, address: bytes, hello: m.Hello) -> None:
        self.address = address
        self.gone = False
        self.stream = hello.stream
        self.verify = hello.verify
        if self.memory is None:
            self.memory = self._worker.open_memory(hello)
            self.lock_byte = hello.shared.lock_byte if hello.shared is not None else 0

    def close(self) -> None:
        if self.memory is not None:
            self.memory.locks.discard(self.lock_byte)
            self.memory = None


class Worker(Process):
    """One incarnation of the worker at a place; `job` is another's for a stranger at the same address."""

    def __init__(self, world: World, name: str, incarnation: int, endpoint: str, *, job: str = "job") -> None:
        super().__init__(world.scheduler, name, incarnation)
        self.world = world
        self.endpoint = endpoint
        self.job = job
        self.faults = Faults()
        self.draining = False
        #: The batches that it did not give as they should be, by trainer.
        self.refused: set[tuple[int, int, int]] = set()
        self._sessions: Sessions[_Session] = Sessions(lambda address, hello: _Session(self, address, hello))
        largest = {name: stream.largest() for name, stream in world.streams.items()}
        batches: Budget[int] = Budget(_BATCHES * max(largest.values()))
        self._wants: OpenWants[_Session, _Build] = OpenWants(self._sessions, batches, largest, lambda _address: True)
        self._thread: deque[_Build] = deque()
        self._building: _Build | None = None
        self._server = Server(world.network, self, endpoint)
        self._membership = Membership()
        self._connections = 0
        self._coordinator = self._connect()
        self._timeout_s = world.setting.timeout_s
        self._next_beat = Timer(self, self._talk_to_coordinator)
        self._talk_to_coordinator()
        self._look()

    # --- the coordinator ---

    def _connect(self) -> Port:
        self._connections += 1
        identity = f"{self.name}/{self.incarnation}/{self._connections}".encode()
        return Port(self.world.network, self, self.world.COORDINATOR, identity)

    def notify(self, port: Port) -> None:
        """Something came from the coordinator."""
        self.call(self._read, port)

    def _read(self, port: Port) -> None:
        port.news.clear()
        now_s = self.scheduler.now_s
        for message in port.read():
            self._membership.hear(now_s)
            self._membership.take_in(message, now_s)
        self._talk_to_coordinator()

    def _talk_to_coordinator(self) -> None:
        """As `Registration.turn` has it."""
        member, now_s = self._membership, self.scheduler.now_s
        if member.lose_patience(now_s):
            self._coordinator.close()
            self._coordinator = self._connect()
        if member.is_due(now_s):
            member.say(now_s, sent=self._coordinator.send(self._load() if member.registered else self._register()))
        self._next_beat.set(_NEVER_S if member.left else member.due_s)

    def _register(self) -> m.Register:
        return m.Register(
            worker=self.name,
            incarnation=self.incarnation,
            endpoint=self.endpoint,
            boot_id=self.world.network.host_of[self.name],
            uid=0,
            builder="builder" if self.job == "job" else "another",
            metrics="",
        )

    def _load(self) -> m.Beat:
        return m.Beat(
            worker=self.name,
            incarnation=self.incarnation,
            waiting=0,
            building=0,
            built=0,
            masked=0,
            kept=0,
            remote_bytes=0,
            remote_found=0,
            remote_waited=0,
            busy_us=0,
            awaited_us=0,
            read_us=0,
            held_up_us=0,
            throttled_us=0,
            queued_us=0,
            decoded=0,
            taken=0,
            culprits=self._membership.culprits,
        )

    # --- trainers come and go ---

    def receive(self, identity: bytes, message: Any) -> None:
        """A trainer said something."""
        self._doors[type(message)](self, identity, self._sessions.at(identity), message)
        session = self._sessions.at(identity)
        if session is not None:
            session.heard_s = self.scheduler.now_s

    def _say(self, identity: bytes, message: Any) -> None:
        self._server.send(identity, message)

    def _greet(self, identity: bytes, former: _Session | None, hello: m.Hello) -> None:
        if hello.job != self.job:
            self._say(identity, m.Refused(code="job", expected=self.job, got=hello.job, remedy="Look."))
            return
        if former is not None and former is not self._sessions.of(hello.incarnation):
            self._forget(former)
        session = self._sessions.welcome(identity, hello)
        shared = session.memory is not None
        self._say(
            identity,
            m.Welcome(
                worker=self.name,
                incarnation=self.incarnation,
                shared=shared,
                reason="" if shared else "as it is",
                float32="float32",
                compression="none",
                sealed_port=0,
            ),
        )

    def open_memory(self, hello: m.Hello) -> Memory | None:
        """The slots that a trainer offers, if they can be had here."""
        offer = hello.shared
        if offer is None or offer.boot_id != self.world.network.host_of[self.name]:
            return None
        memory = self.world.memories.get(offer.pid)
        if memory is None or offer.lock_byte in memory.locks or self.world.is_short_of_memory(self.name):
            return None
        memory.locks.add(offer.lock_byte)
        return memory

    def _look(self) -> None:
        silent_s = self.scheduler.now_s - GONE_AFTER * self._timeout_s
        for session in self._sessions:
            if session.heard_s < silent_s:
                self._forget(session)
        self.after(self._timeout_s / 2, self._look)

    def forget_all(self) -> None:
        """It heard nothing of its trainers for long, as far as it knows."""
        for session in self._sessions:
            self._forget(session)

    def _forget(self, session: _Session) -> None:
        for build in self._wants.forget(session):
            self._let_go(build)

    # --- wants ---

    def _take_want(self, identity: bytes, session: _Session | None, want: m.Want) -> None:
        known = session is not None and not session.gone and want.trainer == session.incarnation
        if session is None or not known or want.worker != self.incarnation:
            self._refuse(identity, want, "unknown")
            return
        verdict = self._wants.judge(session, want.ticket)
        if verdict is Verdict.STALE:
            return
        code = self._objection_to_want(session, want, verdict)
        if code:
            session.tickets.refuse(want.ticket)
            self._refuse(identity, want, code)
            return
        build = _Build(session.incarnation, want, session.memory if want.in_slot else None)
        self._wants.put(session, build)
        if build.memory is not None:
            build.memory.open_for(self.incarnation, want.ticket)
            self.world.checks.on_accepted(self, want)
        self._feed()

    def _objection_to_want(self, session: _Session, want: m.Want, verdict: Verdict) -> str:
        if want.in_slot and session.memory is None:
            return "unknown"
        if self.draining:
            return "draining"
        return "busy" if verdict is Verdict.BUSY or self.scheduler.chance(self.faults.busy) else ""

    def _refuse(self, identity: bytes, want: m.Want, code: str) -> None:
        refusal = m.Unbuilt(ticket=want.ticket, code=code, expected="", got=code, where=self.name, remedy="")
        self._say(identity, refusal)

    def _cancel(self, identity: bytes, session: _Session | None, message: m.Cancel) -> None:
        build = session.builds.get(message.ticket) if session is not None else None
        if session is not None and build is not None and self._wants.cancel(session, message.ticket):
            self._let_go(build)
            self._say(session.address, m.Cancelled(ticket=message.ticket))

    def _answer_ping(self, identity: bytes, session: _Session | None, message: m.Ping) -> None:
        held = session.tickets.held() if session is not None else ()
        self._say(identity, m.Pong(number=message.number, tickets=held, sealed=0, waiting=0))

    def _answer_epoch_query(self, identity: bytes, _session: _Session | None, query: m.EpochQuery) -> None:
        stream = self.world.streams[query.stream]
        if self.job == "job":
            batches = stream.batches(query.epoch, query.group)
            answer = m.EpochAnswer(stream=query.stream, epoch=query.epoch, group=query.group, batches=batches)
            self._say(identity, answer)

    def _answer_name_query(self, identity: bytes, _session: _Session | None, query: m.NameQuery) -> None:
        self._say(identity, m.NameAnswer(stream=query.stream, sample=query.sample, name=f"sample {query.sample}"))

    _doors: ClassVar[dict[type, Callable[..., None]]] = {
        m.Hello: _greet,
        m.Want: _take_want,
        m.Cancel: _cancel,
        m.Ping: _answer_ping,
        m.EpochQuery: _answer_epoch_query,
        m.NameQuery: _answer_name_query,
    }

    # --- building ---

    def _feed(self) -> None:
        while len(self._thread) + (self._building is not None) < _AHEAD:
            build = self._wants.take()
            if build is None:
                break
            self._thread.append(build)
        if self._building is None:
            self._begin()

    def _begin(self) -> None:
        if not self._thread:
            return
        build = self._building = self._thread.popleft()
        build.fails = self._will_fail(build)
        if build.cancelled or build.fails:
            self.after(0.0001, self._finish, build)
            return
        if self.world.is_poisoned(self, build.want):
            self.world.kill(self)
            return
        if self.faults.hogs:
            self.world.hang(self, self.scheduler.between(1.0, 3.5) * self._timeout_s)
        self._go_on(build, 0)

    def _will_fail(self, build: _Build) -> bool:
        return self.faults.refuses_all or self.world.is_refused(self, build.want)

    def _go_on(self, build: _Build, piece: int, spent: float = 0.0) -> None:
        """Spend the time that a piece takes; a slow worker that is mended meanwhile is slow no more."""
        spend = min(_AT_A_TIME, self.faults.slow - spent)
        pause_s = self.world.streams[build.want.stream].build_s(build.want.number) / PIECES
        if spend <= 0:
            self._write(build, piece)
        elif spent + spend >= self.faults.slow:
            self.scheduler.after(spend * pause_s, self._in_thread, self._write, build, piece)
        else:
            self.scheduler.after(spend * pause_s, self._in_thread, self._go_on, build, piece, spent + spend)

    def _in_thread(self, what: Any, *args: Any) -> None:
        """The building thread goes on while the poll loop hangs, if it is this thread that holds the interpreter."""
        if self.hung and self.faults.hogs and self.answers:
            what(*args)
        else:
            self.call(what, *args)

    def _write(self, build: _Build, piece: int) -> None:
        if build.memory is not None:
            self.world.checks.on_write(self, build.memory, build.want)
            build.memory.slots[build.want.ticket.slot][piece] = Stamp.of(self.incarnation, build.want)
        if piece + 1 < PIECES:
            self._go_on(build, piece + 1)
        else:
            self.call(self._finish, build)

    def _finish(self, build: _Build) -> None:
        self._building = None
        self._let_go(build)
        session = self._wants.finish(build)
        if session is not None:
            self._answer(session, build)
            self._sessions.tidy(session)
        self._feed()

    def _answer(self, session: _Session, build: _Build) -> None:
        if build.cancelled:
            self._say(session.address, m.Cancelled(ticket=build.want.ticket))
        elif build.fails:
            self._note_refusal(build.want)
            self._refuse(session.address, build.want, "failed")
        elif self.scheduler.chance(self.faults.machine) and self.world.may_fail_once_more(build.want):
            self._refuse(session.address, build.want, "machine")
        else:
            self._push(session, build)

    def _note_refusal(self, want: m.Want) -> None:
        self.refused.add((want.trainer, want.epoch, want.number))

    def _let_go(self, build: _Build) -> None:
        """Nothing of ours writes there for this ticket any more."""
        if build.memory is not None:
            build.memory.close_for(self.incarnation, build.want.ticket)

    def _push(self, session: _Session, build: _Build) -> None:
        want, faults = build.want, self.faults
        stream: Stream = self.world.streams[want.stream]
        whole = not self.scheduler.chance(faults.wrong)
        misshapen = self.scheduler.chance(faults.misshapen)
        if not whole or misshapen:
            self._note_refusal(want)
        if not whole and build.memory is not None and not session.verify:
            whole = True  # nobody looks at it: this is what `verify` is for
        if not whole and build.memory is not None:
            self.world.checks.on_write(self, build.memory, want)
            build.memory.slots[want.ticket.slot][0] = None
        header = m.Pushed(
            ticket=want.ticket,
            epoch=want.epoch,
            number=want.number,
            empty=want.empty,
            in_slot=want.in_slot,
            shape=stream.wrong_shape if misshapen else stream.shape(want.number),
            nbytes=stream.nbytes(want.number),
            digest=self.incarnation,
            rows=0 if want.empty else 2,
            masked=0,
            reason="",
            reasons=(),
            build_us=1,
            read_us=0,
            held_us=1,
            waiting=0,
        )
        payload = None if want.in_slot else Payload(Stamp.of(self.incarnation, want), whole)
        self._say(session.address, (header, payload))

    # --- the end ---

    def drain(self) -> None:
        """SIGTERM: what is being built is finished, the rest is refused."""
        self.draining = True
        leave = m.Leave(worker=self.name, incarnation=self.incarnation)
        self._membership.left = self._membership.left or self._coordinator.send(leave)
        while (given_up := self._wants.give_up()) is not None:
            session, build = given_up
            self._let_go(build)
            self._refuse(session.address, build.want, "draining")
        self._end_if_idle()

    def _end_if_idle(self) -> None:
        if self._building is None and not self._thread:
            self.after(0.05, self.world.kill, self)
        else:
            self.after(0.02, self._end_if_idle)

    def die(self) -> None:
        """Kill -9: nothing of it writes any more, and its locks are gone."""
        super().die()
        for session in self._sessions:
            for build in session.builds.values():
                self._let_go(build)
            if not self.world.is_lock_inherited(self):
                session.close()
