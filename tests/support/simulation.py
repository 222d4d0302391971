"""One trainer and its workers in memory: real decisions, model processes, links that fail, a clock that is a number.

Rules: `Wants`, `Ledger`, `Inbox`, `Road`, `Tickets` and `WantQueue` are the real ones; processes, memory and links are
models that keep what the real ones promise: a connection keeps its order and loses what is on it when it is cut, a
stopped process keeps what it holds, a dead one writes nowhere. Every write into a slot leaves the writer's ticket,
so that a byte of someone else is seen wherever it lies. Deterministic: the same actions give the same world.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from loader_server.tickets import Tickets
from loader_server.want_queue import WantQueue
from shared.errors import ReadError, RefusedError, StokerError
from shared.messages import Ticket
from trainer_client import wants as w
from trainer_client.course import Course, Position, Seat, Target
from trainer_client.handover import Line
from trainer_client.inbox import Inbox
from trainer_client.ledger import Ledger, SlotState
from trainer_client.road import Road

__all__ = ["BUILD_STEPS", "STEPS_A_TIMEOUT", "STEP_S", "TIMEOUT_S", "Setting", "World"]

TIMEOUT_S = 1.0
STEP_S = 0.1
STEPS_A_TIMEOUT = round(TIMEOUT_S / STEP_S)

#: A build writes its slot in so many pieces, one a step.
BUILD_STEPS = 3

Stamp = tuple[int, Ticket] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The size of a world; `in_slot` says of each endpoint whether its worker shares memory."""

    in_slot: tuple[bool, ...]
    slots: int = 6
    prefetch: int = 4
    #: Batches that the consumer has in hands while it asks for the next one.
    hold: int = 1
    replicas: int = 1
    batches: int = 12
    group: int = 4
    lost_timeout_s: float = 1e9


@dataclass(slots=True, eq=False)
class _Job:
    want: w.SendWant
    written: int = 0
    pause: int = 0
    cancelled: bool = False


@dataclass(slots=True, eq=False)
class Process:
    """A worker as `loader_server.worker` behaves."""

    incarnation: int
    endpoint: int
    in_slot: bool
    memory: list[list[Stamp]]
    alive: bool = True
    stopped: bool = False
    hung_steps: int = 0
    draining: bool = False
    wrong: bool = False
    refusing: bool = False
    #: Extra steps for each piece.
    slow: int = 0
    #: Steps that each build holds the interpreter's lock: nothing of the process turns meanwhile.
    hogging: int = 0
    session: bool = False
    tickets: Tickets = field(default_factory=Tickets)
    jobs: dict[Ticket, _Job] = field(default_factory=dict)
    queue: WantQueue[str, _Job] = field(default_factory=WantQueue)
    building: _Job | None = None

    @property
    def turns(self) -> bool:
        return self.alive and not self.stopped and not self.hung_steps

    @property
    def locked(self) -> bool:
        """Whether it holds its lock on the trainer's memory: the proof of life."""
        return self.alive and self.in_slot and self.session

    def step(self, link: Link) -> None:
        if self.alive and not self.stopped and self.hung_steps:
            self.hung_steps -= 1
        if not self.turns:
            return
        while link.up and not link.held and link.to_worker:
            self._receive(link, *link.to_worker.popleft())
        self._build(link)

    def _receive(self, link: Link, kind: str, body: Any) -> None:
        if kind == "hello":
            self.session = True
            link.answer("welcome", (self.incarnation, self.in_slot))
        elif kind == "want":
            self._want(link, body)
        elif kind == "cancel":
            self._cancel(link, body)
        elif kind == "ping":
            link.answer("pong", (body, self.tickets.held() if self.session else ()))

    def _want(self, link: Link, want: w.SendWant) -> None:
        if not self.session or want.worker != self.incarnation:
            link.answer("unbuilt", (want.ticket, "unknown"))
        elif self.draining:
            link.answer("unbuilt", (want.ticket, "draining"))
        elif self.tickets.accept(want.ticket):
            job = self.jobs[want.ticket] = _Job(want)
            self.queue.put("trainer", job, urgent=want.urgent)

    def _cancel(self, link: Link, ticket: Ticket) -> None:
        job = self.jobs.get(ticket)
        if job is not None:
            job.cancelled = True
            if self.queue.remove("trainer", job):
                self._end(job)
                link.answer("cancelled", ticket)

    def _end(self, job: _Job) -> None:
        self.tickets.answer(job.want.ticket)
        del self.jobs[job.want.ticket]

    def _build(self, link: Link) -> None:
        if self.building is None:
            self.building = self.queue.take()
            self.hung_steps = self.hogging if self.building is not None else 0
        job = self.building
        if job is None:
            return
        if job.pause:
            job.pause -= 1
        elif not self.refusing and not job.cancelled and job.written < BUILD_STEPS:
            self._write(job)
        else:
            self.building = None
            self._answer(link, job)

    def _write(self, job: _Job) -> None:
        if job.want.in_slot:
            self.memory[job.want.ticket.slot][job.written] = (self.incarnation, job.want.ticket)
        job.written += 1
        job.pause = self.slow

    def _answer(self, link: Link, job: _Job) -> None:
        self._end(job)
        if job.cancelled:
            link.answer("cancelled", job.want.ticket)
        elif self.refusing:
            link.answer("unbuilt", (job.want.ticket, "failed"))
        else:
            link.answer("pushed", (job.want, self.incarnation, not self.wrong))

    def drain(self, link: Link) -> None:
        """SIGTERM: what is built is finished, the rest refused."""
        self.draining = True
        while (job := self.queue.take()) is not None:
            self._end(job)
            link.answer("unbuilt", (job.want.ticket, "draining"))

    def forget(self) -> None:
        """It heard nothing of the trainer for long: the session is over, if nothing of ours can still write."""
        for job in self.queue.drop("trainer"):
            self._end(job)
        if self.building is not None:
            self.building.cancelled = True
        else:
            self.session, self.tickets = False, Tickets()


@dataclass(slots=True, eq=False)
class Link:
    """The connection to one endpoint, and what the trainer knows of it."""

    endpoint: int
    up: bool = False
    held: bool = False
    to_worker: deque[tuple[str, Any]] = field(default_factory=deque)
    to_trainer: deque[tuple[str, Any]] = field(default_factory=deque)
    incarnation: int | None = None
    shared: bool = False
    left: bool = False

    def answer(self, kind: str, body: Any) -> None:
        if self.up:
            self.to_trainer.append((kind, body))

    def send(self, kind: str, body: Any) -> bool:
        if self.up:
            self.to_worker.append((kind, body))
        return self.up

    def cut(self, *, after: str) -> None:
        """What was on the way to the worker is lost; what comes from it is `lost`, or read before or after the news."""
        pending = [] if after == "lost" else [one for one in self.to_trainer if one[0] != "news"]
        self.up = False
        self.to_worker.clear()
        self.to_trainer.clear()
        self.to_trainer.extend(pending if after == "read before" else ())
        self.to_trainer.append(("news", False))
        self.to_trainer.extend(pending if after == "read after" else ())

    def connect(self) -> None:
        self.up = True
        self.to_trainer.append(("news", True))


@dataclass(slots=True, eq=False)
class _Held:
    slot: int
    stamp: Stamp


class World:
    """`step` lets time pass; the other methods are faults and what a consumer does."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.now_s = 0.0
        self.memory: list[list[Stamp]] = [[None] * BUILD_STEPS for _ in range(setting.slots + 1)]
        self.links = [Link(endpoint) for endpoint in range(len(setting.in_slot))]
        self.processes: list[Process] = []
        self._incarnations = 0
        for endpoint in range(len(setting.in_slot)):
            self.processes.append(self._process(endpoint))
        self.ledger = Ledger(setting.slots)
        self.wants = w.Wants(
            w.WantSettings(
                prefetch=setting.prefetch, heartbeat_timeout_s=TIMEOUT_S, lost_timeout_s=setting.lost_timeout_s
            ),
            self.ledger,
        )
        self.seat = Seat(rank=0, replicas=setting.replicas, world=setting.replicas)
        start = Position(0, 0, setting.group)
        self.road = Road(start, self.seat, repeats=False)
        self.line = Line(start)
        self.expected = self._reference(start)
        self.inbox: Inbox[tuple[Target, int, Stamp]] = Inbox()
        self.hands: deque[_Held] = deque()
        self.taken: list[Target] = []
        self.orders: list[w.Instruction] = []
        self.failed: StokerError | None = None
        self._arrived: dict[int, Stamp] = {}

    def _process(self, endpoint: int) -> Process:
        self._incarnations += 1
        return Process(self._incarnations, endpoint, self.setting.in_slot[endpoint], self.memory)

    def _reference(self, start: Position) -> Course:
        course = Course(start, self.seat, next_group=self.setting.group, repeats=False)
        for epoch in range(100):
            course.learn(epoch, self.setting.group, self.setting.batches)
        return course

    # --- time ---

    def step(self, steps: int = 1) -> None:
        """One turn of everybody, each `STEP_S` long."""
        for _ in range(steps):
            self.now_s += STEP_S
            for process, link in zip(self.processes, self.links, strict=True):
                if process.alive and not process.stopped and not link.up:
                    link.connect()
                process.step(link)
                self.check()
            self._turn()
            self.check()

    def stall(self, steps: int) -> None:
        """The trainer does nothing for so long."""
        self.now_s += steps * STEP_S

    def read_until(self, batches: int, gap_s: float) -> float:
        """A consumer takes what comes, until it has so many in all; the longest wait, which is below `gap_s`."""
        longest_s, since_s = 0.0, self.now_s
        while len(self.taken) < batches and self.failed is None:
            if self.take():
                since_s = self.now_s
            else:
                self.step()
            longest_s = max(longest_s, self.now_s - since_s)
            assert longest_s <= gap_s, f"nothing for {gap_s:g} s, {len(self.taken)} taken: {self.picture()}"
        return longest_s

    # --- the trainer's turn, as receiver and exchange do it ---

    def _turn(self) -> None:
        for link in self.links:
            while not link.held and link.to_trainer:
                self._read(link, *link.to_trainer.popleft())
        self._books()
        self._happened(w.Ticked())
        for one in self.wants.silent_writers():
            self._probe(next(link for link in self.links if link.incarnation == one))
        self.extend()
        self._settle()

    def extend(self) -> None:
        """Take the road further, as far as it is known and there is room."""
        missing = self.road.missing()
        if missing is not None and any(
            one.turns and link.up for one, link in zip(self.processes, self.links, strict=True)
        ):
            self.road.learn(*missing, self.setting.batches)
        targets = self.road.extend(self.wants.room())
        if targets:
            self._happened(w.Extended(targets))

    def _books(self) -> None:
        if self.road.pass_to(self.inbox.head):
            self._happened(w.Consumed(self.inbox.head))

    def _read(self, link: Link, kind: str, body: Any) -> None:
        if kind == "news":
            self._news(link, up=body)
        elif kind == "welcome":
            self._welcomed(link, *body)
        elif link.incarnation is not None and kind == "pong":
            self._happened(w.Held(link.incarnation, body[0], frozenset(body[1])))
        elif link.incarnation is not None and kind == "pushed":
            self._pushed(link, *body)
        elif link.incarnation is not None and kind == "cancelled" and self.wants.expects(link.incarnation, body):
            self._happened(w.GaveUp(link.incarnation, body, None))
        elif link.incarnation is not None and kind == "unbuilt" and self.wants.expects(link.incarnation, body[0]):
            self._unbuilt(link, *body)

    def _news(self, link: Link, *, up: bool) -> None:
        if up:
            link.send("hello", None)
        elif link.incarnation is not None:
            self._happened(w.WorkerCut(link.incarnation))
            self._probe(link)

    def _probe(self, link: Link) -> None:
        locked = any(one.incarnation == link.incarnation and one.locked for one in self.processes)
        if link.incarnation is not None and link.shared and not locked:
            self._bury(link)
            link.send("hello", None)

    def _bury(self, link: Link) -> None:
        assert link.incarnation is not None
        self._happened(w.WorkerDead(link.incarnation, crashed=not link.left))
        link.incarnation, link.shared = None, False

    def _welcomed(self, link: Link, incarnation: int, in_slot: bool) -> None:
        if link.incarnation not in (None, incarnation):
            self._bury(link)
        locked = any(one.incarnation == incarnation and one.locked for one in self.processes)
        link.incarnation, link.left, link.shared = incarnation, False, in_slot and locked
        self._happened(w.WorkerUp(incarnation, f"w{link.endpoint}", link.shared))

    def _pushed(self, link: Link, want: w.SendWant, writer: int, valid: bool) -> None:
        one, ticket = link.incarnation, want.ticket
        assert one is not None
        if not self.wants.expects(one, ticket):
            self.wants.counts.stale += 1
            return
        if not want.in_slot and self.wants.is_needed(one, ticket):
            self.memory[ticket.slot][:] = [(writer, ticket)] * BUILD_STEPS
        self._arrived[ticket.slot] = (writer, ticket)
        self._happened(w.Arrived(one, ticket, valid=valid))

    def _unbuilt(self, link: Link, ticket: Ticket, code: str) -> None:
        assert link.incarnation is not None
        if code == "unknown":
            self._happened(w.WorkerLeft(link.incarnation))  # until it welcomes us again
            link.send("hello", None)
        link.left = link.left or code == "draining"
        error = None if code == "unknown" else _error(code, link.endpoint)
        self._happened(w.GaveUp(link.incarnation, ticket, error, passing=code == "draining"))

    def _happened(self, event: w.Event) -> None:
        self.wants.note(event, self.now_s)

    def _settle(self) -> None:
        while orders := self.wants.decide(self.now_s):
            for order in orders:
                self._carry_out(order)

    def _carry_out(self, order: w.Instruction) -> None:
        self.orders.append(order)
        if isinstance(order, w.Deliver):
            self.inbox.put(order.seq, (order.target, order.slot, self._arrived.pop(order.slot)))
        elif isinstance(order, w.Retract):
            item = self.inbox.retract(order.seq)
            if item is not None:
                self.ledger.drop(item[1])
            self._happened(w.Retracted(order.seq, item[1] if item else None))
        elif isinstance(order, w.Fail):
            assert self.failed is None, "the feed fails once"
            refused = self.wants._entries[self.wants._head].refused
            able = [one for one, worker in self.wants._workers.items() if worker.live and one not in refused]
            assert refused, f"nobody refused: {self.picture()}"
            assert not able, f"{able} could build it: {self.picture()}"
            self.failed = order.error
        else:
            self._send(order)

    def _send(self, order: w.SendWant | w.SendCancel | w.SendPing) -> None:
        link = next((link for link in self.links if link.incarnation == order.worker), None)
        if link is None:  # it went in this very turn
            return
        if isinstance(order, w.SendWant):
            if not link.send("want", order):
                self._happened(w.WorkerCut(order.worker))
        elif isinstance(order, w.SendCancel):
            link.send("cancel", order.ticket)
        else:
            link.send("ping", order.number)

    # --- the consumer ---

    def take(self) -> bool:
        """Take the next batch, if it is there, while holding `hold` others; the oldest goes back then."""
        if not self.inbox.has_next():
            return False
        seq = self.inbox.head
        target, slot, stamp = self.inbox.take()
        expected = self.expected.advance()
        assert target == expected, f"number {seq} is {target}, due was {expected}"
        assert self.memory[slot] == [stamp] * BUILD_STEPS, f"slot {slot} of {stamp} holds {self.memory[slot]}"
        self.taken.append(target)
        self.line.taken += 1
        self._books()
        copied = slot == self.ledger.reserve or len(self.hands) >= max(1, self.setting.slots - 2)
        if copied:
            self.ledger.drop(slot)
            self._happened(w.SlotReturned())
        else:
            self.ledger.hand_out(slot)
            self.hands.append(_Held(slot, stamp))
        while len(self.hands) > self.setting.hold:
            self.give_back()
        self.extend()
        return True

    def give_back(self) -> None:
        """The consumer lets go of the oldest batch in its hands."""
        if self.hands:
            self.ledger.give_back(self.hands.popleft().slot)
            self._happened(w.SlotReturned())

    def reopen(self, number: int) -> None:
        """The consumer starts again at a batch of the first epoch."""
        start = Position(0, number, self.setting.group)
        self.line = Line(start)
        self.expected = self._reference(start)
        if not self.road.leads_on(self.line):
            head = self.road.turn(self.line)
            for _, slot, _ in self.inbox.restart(head):
                self.ledger.drop(slot)
            self._happened(w.Refocused(head))
        self.extend()

    # --- faults ---

    def cut(self, one: int, after: str = "lost") -> None:
        """The connection to an endpoint breaks; it is made anew at the next step."""
        if self.links[one].up:
            self.links[one].cut(after=after)

    def kill(self, one: int, after: str = "lost") -> None:
        """Kill -9: it writes nothing any more, and its lock is gone."""
        self.processes[one].alive = False
        self.cut(one, after)

    def restart(self, one: int) -> None:
        """Another incarnation at the same endpoint; the port has to be free."""
        if not self.processes[one].alive:
            self.processes[one] = self._process(one)

    def heal(self, *, stopped_stay: bool = False) -> None:
        """No more faults; processes that are stopped may stay so, as long as one is not."""
        for one, (process, link) in enumerate(zip(self.processes, self.links, strict=True)):
            link.held = False
            process.hung_steps = process.slow = 0
            process.wrong = process.refusing = False
            process.stopped = process.stopped and stopped_stay and one > 0
            if process.draining:
                self.kill(one)
            self.restart(one)

    # --- what must hold at every step ---

    def check(self) -> None:
        """Whose slot is it? Nobody else's, in every book."""
        asked = [ticket for worker in self.wants._workers.values() for ticket in worker.asks]
        lent = {slot for slot in range(self.setting.slots + 1) if self.ledger.state(slot) is SlotState.LENT}
        assert len(asked) == len(lent)
        assert {ticket.slot for ticket in asked} == lent, self.picture()
        assert self.ledger.count(SlotState.FILLED) == len(self.inbox)
        assert self.ledger.count(SlotState.OUT) == len(self.hands) <= self.setting.slots
        for ticket in self._could_be_written():
            current = Ticket(ticket.slot, self.ledger._generations[ticket.slot])
            assert current == ticket, f"{ticket} can still be written, {current} is lent"
            assert self.ledger.state(ticket.slot) is SlotState.LENT, f"{ticket} can still be written: {self.picture()}"
        for held in self.hands:
            assert self.memory[held.slot] == [held.stamp] * BUILD_STEPS, f"written under the consumer: {held}"

    def _could_be_written(self) -> list[Ticket]:
        """Tickets that some living process holds or will be given, for writing in place."""
        found = []
        for process, link in zip(self.processes, self.links, strict=True):
            if process.alive:
                found += [job.want.ticket for job in process.jobs.values() if job.want.in_slot]
                known = process.session
                for kind, body in link.to_worker:
                    known = known or kind == "hello"
                    if kind == "want" and known and body.in_slot and body.worker == process.incarnation:
                        found.append(body.ticket)
        return found

    def picture(self) -> str:
        """The world in one line, for a failing test."""
        states = "".join(self.ledger.state(slot).value[0] for slot in range(self.setting.slots + 1))
        workers = ", ".join(
            f"w{one.endpoint}#{one.incarnation}{'' if one.alive else ' dead'}{' stopped' if one.stopped else ''}"
            f"{' draining' if one.draining else ''} {len(one.jobs)} jobs"
            for one in self.processes
        )
        seen = {
            one: f"{'' if worker.live else 'not '}live, {len(worker.asks)} asks"
            for one, worker in self.wants._workers.items()
        }
        head = self.wants._entries.get(self.wants._head)
        return f"at {self.now_s:.1f} s, slots {states}; {workers}; seen {seen}; head {self.wants._head}: {head}"


def _error(code: str, endpoint: int) -> StokerError:
    where = f"worker w{endpoint}"
    if code == "draining":
        return RefusedError(
            code=code, expected="one that stays", got="one that drains", where=where, remedy="Ask another."
        )
    return ReadError(expected="a file", got="an input/output error", where=where, remedy="Look at the disk.")
