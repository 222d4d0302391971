"""One trainer and its workers in memory: real decisions, model processes, links that fail, a clock that is a number.

Rules: `Wants`, `Ledger`, `Inbox` and `Road` are the real ones; processes, memory and links are models. Every write into
a slot leaves the writer's ticket, so that a byte of someone else is seen wherever it lies. Deterministic: the same
actions give the same world.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from shared.errors import ReadError, RefusedError, StokerError
from shared.messages import Ticket
from tests.support.simulated_worker import BUILD_STEPS, Link, Process, Stamp
from trainer_client import want_events as e
from trainer_client import wants as w
from trainer_client.course import Course, Position, Seat, Target
from trainer_client.handover import Line
from trainer_client.inbox import Inbox
from trainer_client.ledger import Ledger, SlotState
from trainer_client.road import Road

__all__ = ["STEPS_A_TIMEOUT", "STEP_S", "TIMEOUT_S", "Setting", "World"]

TIMEOUT_S = 1.0
STEP_S = 0.1
STEPS_A_TIMEOUT = round(TIMEOUT_S / STEP_S)


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
        self.orders: list[e.Instruction] = []
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
        self._happened(e.Ticked())
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
            self._happened(e.Extended(targets))

    def _books(self) -> None:
        if self.road.pass_to(self.inbox.head):
            self._happened(e.Consumed(self.inbox.head))

    def _read(self, link: Link, kind: str, body: Any) -> None:
        if kind == "news":
            self._news(link, up=body)
        elif kind == "welcome":
            self._welcomed(link, *body)
        elif link.incarnation is not None and kind == "pong":
            self._happened(e.Held(link.incarnation, body[0], frozenset(body[1])))
        elif link.incarnation is not None and kind == "pushed":
            self._pushed(link, *body)
        elif link.incarnation is not None and kind == "cancelled" and self.wants.expects(link.incarnation, body):
            self._happened(e.GaveUp(link.incarnation, body, None))
        elif link.incarnation is not None and kind == "unbuilt" and self.wants.expects(link.incarnation, body[0]):
            self._unbuilt(link, *body)

    def _news(self, link: Link, *, up: bool) -> None:
        if up:
            link.send("hello", None)
        elif link.incarnation is not None:
            self._happened(e.WorkerCut(link.incarnation))
            self._probe(link)

    def _probe(self, link: Link) -> None:
        locked = any(one.incarnation == link.incarnation and one.locked for one in self.processes)
        if link.incarnation is not None and link.shared and not locked:
            self._bury(link)
            link.send("hello", None)

    def _bury(self, link: Link) -> None:
        assert link.incarnation is not None
        self._happened(e.WorkerDead(link.incarnation, crashed=not link.left))
        link.incarnation, link.shared = None, False

    def _welcomed(self, link: Link, incarnation: int, in_slot: bool) -> None:
        if link.incarnation not in (None, incarnation):
            self._bury(link)
        locked = any(one.incarnation == incarnation and one.locked for one in self.processes)
        link.incarnation, link.left, link.shared = incarnation, False, in_slot and locked
        self._happened(e.WorkerUp(incarnation, f"w{link.endpoint}", link.shared))

    def _pushed(self, link: Link, want: e.SendWant, writer: int, valid: bool) -> None:
        one, ticket = link.incarnation, want.ticket
        assert one is not None
        if not self.wants.expects(one, ticket):
            self.wants.counts.stale += 1
            return
        if not want.in_slot and self.wants.is_needed(one, ticket):
            self.memory[ticket.slot][:] = [(writer, ticket)] * BUILD_STEPS
        self._arrived[ticket.slot] = (writer, ticket)
        self._happened(e.Arrived(one, ticket, valid=valid))

    def _unbuilt(self, link: Link, ticket: Ticket, code: str) -> None:
        assert link.incarnation is not None
        if code == "unknown":
            self._happened(e.WorkerLeft(link.incarnation))  # until it welcomes us again
            link.send("hello", None)
        link.left = link.left or code == "draining"
        error = None if code == "unknown" else _error(code, link.endpoint)
        self._happened(e.GaveUp(link.incarnation, ticket, error, passing=code == "draining"))

    def _happened(self, event: e.Event) -> None:
        self.wants.note(event, self.now_s)

    def _settle(self) -> None:
        while orders := self.wants.decide(self.now_s):
            for order in orders:
                self._carry_out(order)

    def _carry_out(self, order: e.Instruction) -> None:
        self.orders.append(order)
        if isinstance(order, e.Deliver):
            self.inbox.put(order.seq, (order.target, order.slot, self._arrived.pop(order.slot)))
        elif isinstance(order, e.Retract):
            item = self.inbox.retract(order.seq)
            if item is not None:
                self.ledger.drop(item[1])
            self._happened(e.Retracted(order.seq, item[1] if item else None))
        elif isinstance(order, e.Fail):
            assert self.failed is None, "the feed fails once"
            refused = self.wants._entries[self.wants._head].refused
            able = [one for one, worker in self.wants._workers.items() if worker.live and one not in refused]
            assert refused, f"nobody refused: {self.picture()}"
            assert not able, f"{able} could build it: {self.picture()}"
            self.failed = order.error
        else:
            self._send(order)

    def _send(self, order: e.SendWant | e.SendCancel | e.SendPing) -> None:
        link = next((link for link in self.links if link.incarnation == order.worker), None)
        if link is None:  # it went in this very turn
            return
        if isinstance(order, e.SendWant):
            if not link.send("want", order):
                self._happened(e.WorkerCut(order.worker))
        elif isinstance(order, e.SendCancel):
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
            self._happened(e.SlotReturned())
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
            self._happened(e.SlotReturned())

    def reopen(self, number: int) -> None:
        """The consumer starts again at a batch of the first epoch."""
        start = Position(0, number, self.setting.group)
        self.line = Line(start)
        self.expected = self._reference(start)
        if not self.road.leads_on(self.line):
            head = self.road.turn(self.line)
            for _, slot, _ in self.inbox.restart(head):
                self.ledger.drop(slot)
            self._happened(e.Refocused(head))
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
