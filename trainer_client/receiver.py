"""The trainer's one receive thread: it owns the sockets, carries out what `wants` decides, and fills the inbox.

Rules: every socket is made, used and closed in this thread; consumers only take from the inbox under its lock and leave notes in
deques; the loop wakes by message, note or the next deadline. Decisions are elsewhere: asking in `wants`, order in `inbox`,
ownership in `ledger`, the road ahead in `course`, the talk with the coordinator in `control`, with one worker in `link`.
"""

from __future__ import annotations

import itertools
import os
import secrets
import threading
import time
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import zmq

from shared import messages as m
from shared.errors import ClosedError, LostError, RefusedError, StokerError
from shared.hashing import digest64
from shared.keys import ClientKeys
from shared.logs import Log
from shared.memory import SlotMemory
from shared.sockets import Waker, check_endpoint
from trainer_client import wants as w
from trainer_client.control import Control, Identity
from trainer_client.course import Course, Position, Target
from trainer_client.inbox import Inbox
from trainer_client.ledger import Ledger
from trainer_client.link import Link
from trainer_client.stream_facts import StreamFacts

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from trainer_client.course import Seat
    from shared.messages import Attached, Cursor, Members, Message, Pushed, Ticket

__all__ = ["Item", "Line", "Receiver", "ReceiverSettings"]

#: How often a silent writer is looked at for proof of its death: a lock has no event to wait for.
_PROBE_S = 0.02

#: How long the line in service has to pause before an older line may take over: frameworks abandon iterators without a word.
_LEFT_BEHIND_S = 0.1

#: Serial numbers of lines: the newest is the one that a framework really reads.
_SERIALS = itertools.count()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverSettings:
    """What `connect` was asked for."""

    endpoint: str
    job: str
    stream: str
    seat: Seat
    prefetch: int
    prefetch_bytes: int
    shared_memory: bool
    verify: bool
    keys: str
    connect_timeout_s: float
    lost_timeout_s: float


@dataclass(frozen=True, slots=True)
class Item:
    """A batch that lies whole in its slot."""

    target: Target
    slot: int
    header: m.Pushed


class Line:
    """A reader's place in the course: where it started, how many batches it took, and which lap it is in."""

    __slots__ = ("closed", "ended", "lap", "serial", "start", "taken")

    def __init__(self, start: Position) -> None:
        self.serial = next(_SERIALS)
        self.start = start
        self.taken = 0
        self.lap = -1
        self.ended = False
        self.closed = False


class Receiver:
    """Runs from `attach` to `close`; `take` is what consumers call."""

    def __init__(self, settings: ReceiverSettings) -> None:
        check_endpoint(settings.endpoint, where="connect", encrypted=True, insecure=True)
        self.settings = settings
        self.keys = ClientKeys.read(settings.keys) if settings.keys else None
        self.incarnation = secrets.randbits(63)
        self.facts: StreamFacts | None = None
        self.memory: SlotMemory | None = None
        self.most_out = 0
        self.error: BaseException | None = None
        #: (epoch, number) that the heartbeats report; set by the feed.
        self.trained_to = (0, 0)
        self.log = Log("trainer", stream=settings.stream, rank=settings.seat.rank)
        self._lock = threading.Lock()
        self._ready = threading.Condition(self._lock)
        self._inbox: Inbox[Item] = Inbox()
        self._reading: Line | None = None
        self._wanted: Line | None = None
        self._waiting: dict[int, Line] = {}
        self._taken_s = 0.0
        self._waker = Waker()
        self._notes: deque[Callable[[float], None]] = deque()
        self._handed: deque[tuple[int, bool]] = deque()
        self._returns: deque[int] = deque()
        self._returned = 0
        self._handed_out = 0
        self._attaching: Future[Attached] | None = None
        self._epoch_asks: dict[tuple[int, int], list[Future[int]]] = {}
        self._epochs: dict[tuple[int, int], int] = {}
        self._epoch_asked_s = 0.0
        self._headers: dict[int, m.Pushed] = {}
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="stoker-receiver", daemon=True)
        self._thread.start()

    # --- called by consumers, from any thread ---

    def attach(self, cursor: Cursor | None) -> Attached:
        """Attach (again) at a cursor; the coordinator's answer."""
        answer: Future[Attached] = Future()

        def start(now_s: float) -> None:
            self._attaching = answer
            self._control.attach(cursor, now_s)

        self._post(start)
        try:
            return answer.result(self.settings.connect_timeout_s)
        except TimeoutError:
            raise self._no_coordinator() from None

    def batches(self, epoch: int, group: int) -> int:
        """How many batches an epoch has; any worker can say."""
        known = self._epochs.get((epoch, group))
        if known is not None:
            return known
        answer: Future[int] = Future()
        self._post(lambda _now: self._epoch_asks.setdefault((epoch, group), []).append(answer))
        while not answer.done():
            try:
                return answer.result(0.5)
            except TimeoutError:
                if self.error is not None:
                    raise self.error from None
        return answer.result()

    def take(self, line: Line) -> Item | None:
        """The next batch of this line, waiting for it; None at the end of its lap."""
        with self._ready:
            self._waiting[line.serial] = line
            try:
                return self._waited(line)
            finally:
                del self._waiting[line.serial]

    def _waited(self, line: Line) -> Item | None:
        while True:
            if self.error is not None:
                raise self.error
            if self._closing or line.closed:
                raise _closed()
            if line.ended:
                return None
            if self._reading is line and self._inbox.has_next():
                return self._taken(line)
            newest = line.serial == max(self._waiting)
            if self._wanted is not line and newest and self._may_take_over(line):
                self._wanted = line
                self._post(lambda _now: self._focus(line))
            # A line that others have left behind looks again in a while: its frameworks may have abandoned it.
            self._ready.wait(None if newest and self._wanted is line else _LEFT_BEHIND_S)

    def _may_take_over(self, line: Line) -> bool:
        """A newer line goes before; an older one only when the one in service has paused."""
        served = self._reading
        paused = time.monotonic() - self._taken_s > _LEFT_BEHIND_S
        return served is None or served.closed or served.ended or line.serial > served.serial or paused

    def _taken(self, line: Line) -> Item | None:
        self._taken_s = time.monotonic()
        item = self._inbox.take()
        line.taken += 1
        line.ended = item.target.last
        self._waker.wake()
        return item

    def out(self) -> int:
        """About how many slots consumers hold; never too few."""
        return self._handed_out - self._returned - len(self._returns)

    def hand_out(self, slot: int, *, copied: bool) -> None:
        """The consumer has taken the slot, or only a copy of what lay in it."""
        self._handed_out += not copied
        self._handed.append((slot, copied))
        if copied:
            self._waker.wake()

    def give_back(self, slot: int) -> None:
        """The last view of a slot is gone; safe in a finaliser: no lock is taken."""
        self._returns.append(slot)
        self._waker.wake()

    def leave(self, line: Line) -> None:
        """Nobody reads this line any more."""
        with self._ready:
            line.closed = True
            self._ready.notify_all()

    def interrupt(self, error: BaseException) -> None:
        """Whoever waits, or comes to wait, gets this error."""
        with self._ready:
            self.error = self.error or error
            self._ready.notify_all()

    def close(self, timeout_s: float) -> None:
        """End the thread and its sockets; slots that consumers still look at live until they look away."""
        with self._ready:
            self._closing = True
            self._ready.notify_all()
        self._waker.wake()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def _post(self, note: Callable[[float], None]) -> None:
        self._notes.append(note)
        self._waker.wake()

    # --- the thread ---

    def _run(self) -> None:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._context = context
        self._links: dict[str, Link] = {}
        self._by_worker: dict[int, Link] = {}
        self._poller = zmq.Poller()
        self._poller.register(self._waker.fileno(), zmq.POLLIN)
        self._members: frozenset[str] = frozenset()
        self._facts_queue: deque[w.Event] = deque()
        self._beat_s = self._tick_s = 0.0
        who = Identity(
            job=self.settings.job, stream=self.settings.stream, seat=self.settings.seat, incarnation=self.incarnation,
            name=f"{os.uname().nodename}:{os.getpid()}",
        )  # fmt: skip
        self._control = Control(context, self.settings.endpoint, self.keys, who)
        self._poller.register(self._control.socket, zmq.POLLIN)
        try:
            while not self._closing:
                self._turn()
            self._control.detach()
        except BaseException as error:  # noqa: BLE001 - raised again where the user waits
            self._fail(error)
        finally:
            self._hang_up()

    def _hang_up(self) -> None:
        for link in self._links.values():
            link.close()
        self._control.close()
        self._context.term()
        self._waker.close()
        if self.memory is not None:
            self.memory.close()

    def _turn(self) -> None:
        ready = {sock for sock, _ in self._poller.poll(self._pause_ms())}
        now_s = time.monotonic()
        if self._waker.fileno() in ready:
            self._waker.clear()
        while self._notes:
            self._notes.popleft()(now_s)
        if self._control.socket in ready:
            for message in self._control.read(now_s):
                self._from_coordinator(message, now_s)
        for link in list(self._links.values()):
            if link.monitor in ready:
                self._watch(link, now_s)
            if link.socket in ready:
                self._read(link, now_s)
        if self.facts is not None:
            self._keep_books(now_s)
            self._tick(now_s)
            self._extend(now_s)

    def _pause_ms(self) -> int:
        now_s = time.monotonic()
        ends = [now_s + 1.0]
        attach_s = self._control.turn(now_s)
        if attach_s is not None:
            ends.append(attach_s)
        if self.facts is not None:
            ends.append(self._tick_s)
        return max(0, int(1000 * (min(ends) - now_s)) + 1)

    def _tick(self, now_s: float) -> None:
        if now_s < self._tick_s:
            return
        self._happened(w.Ticked(), now_s)
        writers = self._wants.silent_writers()
        for worker in writers:
            self._probe(worker, now_s)
        self._tick_s = now_s + _PROBE_S if writers else self._wants.wake_at_s(now_s)
        if now_s >= self._beat_s:
            assert self.facts is not None
            self._beat_s = now_s + self.facts.heartbeat_timeout_s / 4
            self._control.beat(*self.trained_to)

    def _keep_books(self, now_s: float) -> None:
        """What consumers did since the last turn: first what they took, then what they gave back."""
        head = self._inbox.head
        if self._upcoming and head > self._first_upcoming:
            for _ in range(head - self._first_upcoming):
                self._upcoming.popleft()
            self._first_upcoming = head
            self._happened(w.Consumed(head), now_s)
        freed = False
        while self._handed:
            slot, copied = self._handed.popleft()
            if copied:
                self._ledger.drop(slot)
                freed = True
            else:
                self._ledger.hand_out(slot)
        while self._returns:
            self._ledger.give_back(self._returns.popleft())
            self._returned += 1
            freed = True
        if freed:
            self._happened(w.SlotReturned(), now_s)

    def _extend(self, now_s: float) -> None:
        targets = []
        for _ in range(self._wants.room()):
            target = self._course.advance()
            if target is None:
                break
            targets.append(target)
        if targets:
            self._upcoming.extend(targets)
            self._happened(w.Extended(tuple(targets)), now_s)
        missing = self._course.missing()
        if missing is not None and missing in self._epochs:
            self._course.learn(*missing, self._epochs[missing])
            self._extend(now_s)
        elif missing is not None:
            self._epoch_asks.setdefault(missing, [])
        if self._epoch_asks and now_s - self._epoch_asked_s > 0.2:
            self._ask_epochs(now_s)

    def _ask_epochs(self, now_s: float) -> None:
        assert self.facts is not None
        self._epoch_asked_s = now_s
        for epoch, group in self._epoch_asks:
            query = m.EpochQuery(stream=self.facts.stream, plan_digest=self.facts.plan_digest, epoch=epoch, group=group)
            for link in self._links.values():
                if link.incarnation is not None:
                    link.send(query)

    # --- the line ---

    def _focus(self, line: Line) -> None:
        """Serve this line from now on; what lies ahead is kept where it is what the line needs next."""
        now_s = time.monotonic()
        self._keep_books(now_s)
        ahead = self._upcoming[0] if self._upcoming else None
        lap = self._course.lap_ahead()
        fresh = line.taken == 0
        if fresh and ahead is not None and ahead.position == line.start and ahead.replica == 0:
            line.lap = ahead.lap
        elif fresh and ahead is None and lap is not None and lap[0] == line.start:
            line.lap = lap[1]
        else:
            self._refocus(line, now_s)
        with self._ready:
            self._reading = line
            self._ready.notify_all()

    def _refocus(self, line: Line, now_s: float) -> None:
        self._course = self._new_course(line.start)
        for _ in range(line.taken):
            self._course.advance()
        with self._lock:
            self._reading = None
            head = self._first_upcoming + len(self._upcoming)
            for item in self._inbox.restart(head):
                self._ledger.drop(item.slot)
        self._upcoming.clear()
        self._first_upcoming = head
        self._happened(w.Refocused(head), now_s)

    def _new_course(self, start: Position) -> Course:
        assert self.facts is not None
        course = Course(start, self.settings.seat, next_group=self._next_group, repeats=self.facts.evaluation)
        for (epoch, group), batches in self._epochs.items():
            course.learn(epoch, group, batches)
        return course

    # --- messages in ---

    def _from_coordinator(self, message: Attached | m.Refused | Members, now_s: float) -> None:
        if isinstance(message, m.Refused):
            self._refused(message, now_s)
            return
        if isinstance(message, m.Attached):
            self._attached(message, now_s)
        self._meet(message.workers)

    def _refused(self, message: m.Refused, now_s: float) -> None:
        if message.code == "unknown":  # a coordinator that came back without knowing us
            self._control.attach(self._cursor_now(), now_s)
            return
        error = RefusedError(
            code=message.code, expected=message.expected, got=message.got, where=f"coordinator at {self.settings.endpoint}",
            remedy=message.remedy,
        )  # fmt: skip
        if self._attaching is not None:
            self._attaching.set_exception(error)
            self._attaching = None
        else:
            self._fail(error)

    def _cursor_now(self) -> m.Cursor:
        assert self.facts is not None
        epoch, number = self.trained_to
        return m.Cursor(epoch, number, self._group, self.facts.plan_digest)

    def _attached(self, message: Attached, now_s: float) -> None:
        cursor = message.cursor
        if self.facts is None:
            self._set_up(message)
        elif self.facts.plan_digest != cursor.plan_digest:
            self._fail(_other_plan(self.facts.plan_digest, cursor.plan_digest))
        self._group, self._next_group = cursor.group, message.next_group
        self._epochs[cursor.epoch, cursor.group] = message.batches
        if self._attaching is not None:
            self.trained_to = (cursor.epoch, cursor.number)
            self._attaching.set_result(message)
            self._attaching = None

    def _set_up(self, message: Attached) -> None:
        """The first answer: now it is known how large a slot is."""
        facts = StreamFacts.of(message)
        settings = self.settings
        hands = (
            4 * settings.seat.replicas + 2
        )  # what a consumer and TensorFlow's own prefetching hold at a time, as measured
        wished = settings.prefetch * settings.seat.replicas + hands
        slots = max(2, min(wished, settings.prefetch_bytes // max(facts.largest_bytes(), 1) - 1))
        self.memory = SlotMemory(slots + 1, facts.largest_bytes())
        self._ledger = Ledger(slots)
        self.most_out = max(1, slots - 2)
        self._wants = w.Wants(
            w.WantSettings(
                prefetch=max(1, min(settings.prefetch * settings.seat.replicas, slots - 1)),
                heartbeat_timeout_s=facts.heartbeat_timeout_s,
                lost_timeout_s=settings.lost_timeout_s,
            ),
            self._ledger,
        )
        self._upcoming: deque[Target] = deque()
        self._first_upcoming = 0
        self._next_group = message.next_group
        self._epochs[message.cursor.epoch, message.cursor.group] = message.batches
        self.facts = facts
        self._course = self._new_course(Position(message.cursor.epoch, message.cursor.number, message.cursor.group))
        self.log = self.log.bind(job=facts.job)

    def _meet(self, workers: tuple[m.WorkerAddress, ...]) -> None:
        """Connect to workers that are new; forget those that are gone from the list and from the line."""
        self._members = frozenset(address.endpoint for address in workers)
        for endpoint in self._members - self._links.keys():
            link = Link(self._context, endpoint, self.keys, lock_byte=16 + len(self._links))
            self._links[endpoint] = link
            self._poller.register(link.socket, zmq.POLLIN)
            self._poller.register(link.monitor, zmq.POLLIN)
        for endpoint in [one for one, link in self._links.items() if one not in self._members and not link.connected]:
            link = self._links[endpoint]
            if link.incarnation is None:
                self._poller.unregister(link.socket)
                self._poller.unregister(link.monitor)
                link.close()
                del self._links[endpoint]

    def _watch(self, link: Link, now_s: float) -> None:
        for up in link.changes():
            if up:
                link.send(self._hello(link))
            elif link.incarnation is not None:
                self._happened(w.WorkerCut(link.incarnation), now_s)
                self._probe(link.incarnation, now_s)

    def _hello(self, link: Link) -> m.Hello:
        assert self.facts is not None
        assert self.memory is not None
        offer = self.memory.offer(link.lock_byte) if self.settings.shared_memory else None
        return m.Hello(job=self.facts.job, stream=self.facts.stream, incarnation=self.incarnation, shared=offer)

    def _probe(self, worker: int, now_s: float) -> None:
        """Is it proved that this worker is dead? Its lock on our memory is gone exactly when it is."""
        link = self._by_worker.get(worker)
        assert self.memory is not None
        if link is not None and link.shared and not self.memory.is_locked(link.lock_byte):
            self._bury(link, now_s, crashed=True)

    def _bury(self, link: Link, now_s: float, *, crashed: bool) -> None:
        assert link.incarnation is not None
        self.log.info("worker is gone", worker=link.name, crashed=crashed)
        self._happened(w.WorkerDead(link.incarnation, crashed), now_s)
        self._by_worker.pop(link.incarnation, None)
        link.incarnation, link.shared = None, False

    def _read(self, link: Link, now_s: float) -> None:
        for message, received in link.read(lambda header: self._place(link, header)):
            self._doors[type(message)](self, link, message, received, now_s)

    def _place(self, link: Link, header: Pushed) -> NDArray[np.uint8] | None:
        """Where the payload that follows belongs; None: nowhere, any more."""
        one, ticket = link.incarnation, header.ticket
        if one is None or not self._wants.expects(one, ticket) or not self._wants.is_needed(one, ticket):
            return None
        target = self._wants.target(one, ticket)
        assert self.facts is not None
        assert self.memory is not None
        if header.in_slot or target is None or not self.facts.fits(header, target):
            return None
        return self.memory.slot(ticket.slot)[: header.nbytes]

    def _welcomed(self, link: Link, message: m.Welcome, _received: int, now_s: float) -> None:
        assert self.memory is not None
        if link.incarnation not in (None, message.incarnation):
            self._bury(link, now_s, crashed=not link.left)
        link.name, link.incarnation, link.left = message.worker, message.incarnation, False
        link.shared = message.shared and self.memory.is_locked(link.lock_byte)
        self._by_worker[message.incarnation] = link
        self.log.info(
            "worker serves us", worker=link.name, by="shared memory" if link.shared else "TCP", reason=message.reason
        )
        self._happened(w.WorkerUp(message.incarnation, message.worker, link.shared), now_s)

    def _pushed(self, link: Link, header: Pushed, received: int, now_s: float) -> None:
        if link.incarnation is None or not self._wants.expects(link.incarnation, header.ticket):
            self._wants.counts.stale += 1
            return
        self._headers[header.ticket.slot] = header
        self._happened(w.Arrived(link.incarnation, header.ticket, self._is_valid(link, header, received)), now_s)

    def _is_valid(self, link: Link, header: Pushed, received: int) -> bool:
        assert self.facts is not None
        assert self.memory is not None
        assert link.incarnation is not None
        if not self._wants.is_needed(link.incarnation, header.ticket):
            return True  # a second answer: nobody will look at it
        target = self._wants.target(link.incarnation, header.ticket)
        if target is None or not self.facts.fits(header, target):
            return False
        if not header.in_slot and received != header.nbytes:
            return False
        if header.in_slot and not self.settings.verify:
            return True
        return digest64(self.memory.slot(header.ticket.slot)[: header.nbytes]) == header.digest

    def _unbuilt(self, link: Link, message: m.Unbuilt, _received: int, now_s: float) -> None:
        if link.incarnation is None or not self._wants.expects(link.incarnation, message.ticket):
            return
        if message.code == "unknown":  # the worker has forgotten our session: introduce ourselves again
            link.send(self._hello(link))
        passing = message.code == "draining"
        link.left = link.left or passing
        error = RefusedError(
            code=message.code, expected=message.expected, got=message.got, where=message.where, remedy=message.remedy
        )  # fmt: skip
        forgotten = message.code == "unknown"
        self._happened(w.GaveUp(link.incarnation, message.ticket, None if forgotten else error, passing), now_s)

    def _cancelled(self, link: Link, message: m.Cancelled, _received: int, now_s: float) -> None:
        if link.incarnation is not None and self._wants.expects(link.incarnation, message.ticket):
            self._happened(w.GaveUp(link.incarnation, message.ticket, None), now_s)

    def _ponged(self, link: Link, message: m.Pong, _received: int, now_s: float) -> None:
        if link.incarnation is not None:
            self._happened(w.Held(link.incarnation, message.number, frozenset(message.tickets)), now_s)

    def _epoch_known(self, _link: Link, message: m.EpochAnswer, _received: int, _now_s: float) -> None:
        key = (message.epoch, message.group)
        self._epochs[key] = message.batches
        for answer in self._epoch_asks.pop(key, []):
            answer.set_result(message.batches)

    def _refused_by_worker(self, link: Link, message: m.Refused, _received: int, _now_s: float) -> None:
        where = f"worker at {link.endpoint}"
        self._fail(
            RefusedError(
                code=message.code, expected=message.expected, got=message.got, where=where, remedy=message.remedy
            )
        )

    _doors: ClassVar[dict[type, Callable[..., None]]] = {
        m.Welcome: _welcomed,
        m.Pushed: _pushed,
        m.Unbuilt: _unbuilt,
        m.Cancelled: _cancelled,
        m.Pong: _ponged,
        m.EpochAnswer: _epoch_known,
        m.Refused: _refused_by_worker,
    }

    # --- decisions carried out ---

    def _happened(self, event: w.Event, now_s: float) -> None:
        self._facts_queue.append(event)
        if len(self._facts_queue) > 1:
            return  # the outer call carries on with it
        while self._facts_queue:
            for instruction in self._wants.handle(self._facts_queue[0], now_s):
                self._orders[type(instruction)](self, instruction)
            self._facts_queue.popleft()

    def _send_want(self, order: w.SendWant) -> None:
        link = self._by_worker[order.worker]
        assert self.facts is not None
        position = order.target.position
        sent = link.send(
            m.Want(
                job=self.facts.job,
                stream=self.facts.stream,
                epoch=position.epoch,
                number=order.target.number,
                empty=order.target.empty,
                group=position.group,
                plan_digest=self.facts.plan_digest,
                attempt=min(order.attempt, 1000),
                trainer=self.incarnation,
                worker=order.worker,
                ticket=order.ticket,
                in_slot=order.in_slot,
                urgent=order.urgent,
            )  # fmt: skip
        )
        if not sent:
            self._facts_queue.append(w.WorkerCut(order.worker))

    def _send_cancel(self, order: w.SendCancel) -> None:
        self._by_worker[order.worker].send(m.Cancel(ticket=order.ticket))

    def _send_ping(self, order: w.SendPing) -> None:
        self._by_worker[order.worker].send(m.Ping(number=order.number))

    def _deliver(self, order: w.Deliver) -> None:
        with self._ready:
            self._inbox.put(order.seq, Item(order.target, order.slot, self._headers.pop(order.slot)))
            self._ready.notify_all()

    def _retract(self, order: w.Retract) -> None:
        with self._lock:
            item = self._inbox.retract(order.seq)
        if item is not None:
            self._ledger.drop(item.slot)
        self._facts_queue.append(w.Retracted(order.seq, item.slot if item else None))

    def _fail_by_order(self, order: w.Fail) -> None:
        self._fail(order.error)

    _orders: ClassVar[dict[type, Callable[..., None]]] = {
        w.SendWant: _send_want,
        w.SendCancel: _send_cancel,
        w.SendPing: _send_ping,
        w.Deliver: _deliver,
        w.Retract: _retract,
        w.Fail: _fail_by_order,
    }

    def _fail(self, error: BaseException) -> None:
        self.log.error("feed stops", error=str(error))
        if self._attaching is not None:
            self._attaching.set_exception(error)
            self._attaching = None
        self.interrupt(error)

    def _no_coordinator(self) -> StokerError:
        return LostError(
            expected=f"a coordinator that answers within {self.settings.connect_timeout_s:g} s",
            got=self._control.heard,
            where=self.settings.endpoint,
            remedy="Start the loaders (`loader-server run job.toml`), or correct the endpoint, or allow more with connect_timeout_s.",
        )


def _closed() -> ClosedError:
    return ClosedError(expected="an open feed", got="a closed one", where="feed", remedy="Open another: connect(...).")


def _other_plan(ours: str, theirs: str) -> StokerError:
    return RefusedError(
        code="plan", expected=f"plan {ours}, which this run is trained on", got=f"plan {theirs}", where="coordinator",
        remedy="The job file or the data changed under a running job: restart the trainer, from a checkpoint of the same plan.",
    )  # fmt: skip
