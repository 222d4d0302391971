"""The trainer's one receive thread: attaches, keeps the line ahead of the consumers, keeps the books, tells how far
training is.

Rules: every socket is made, used and closed in this thread; consumers meet it in `handover`; the loop wakes by
message, note or the next deadline. Decisions are elsewhere: asking in `wants`, ownership in `ledger`, the way ahead
in `road`; talk with the coordinator is in `control`, with the workers in `exchange`. An error here is raised again
where the user waits.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections import deque
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import zmq

from shared import messages as m
from shared.endpoints import check_endpoint
from shared.errors import LostError, RefusedError, StokerError
from shared.keys import ClientKeys
from shared.logs import Log
from shared.memory import SlotMemory
from shared.sockets import Waker
from trainer_client import want_events as e
from trainer_client.control import Control, Identity
from trainer_client.course import Position
from trainer_client.exchange import Exchange, ExchangeParts
from trainer_client.handover import Handover, Line
from trainer_client.ledger import Ledger
from trainer_client.road import Road
from trainer_client.stream_facts import StreamFacts
from trainer_client.wants import Wants, WantSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from shared.messages import Attached, Cursor, Members
    from trainer_client.course import Seat

__all__ = ["Receiver", "ReceiverSettings"]

#: Batches asked for ahead: one being built, some on their way, the others to even out what takes longer.
_USUAL_PREFETCH = 8

#: How often a silent writer is looked at for proof of its death: a lock has no event to wait for.
_PROBE_S = 0.02

#: Pause before a question that nobody answered is put again.
_QUESTION_PAUSE_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverSettings:
    """What `connect` was asked for."""

    endpoint: str
    job: str
    stream: str
    seat: Seat
    #: Of each replica; None: as many as suit the size of batches.
    prefetch: int | None
    prefetch_bytes: int
    shared_memory: bool
    verify: bool
    keys: str
    connect_timeout_s: float
    lost_timeout_s: float


class _Line:
    """What exists once we are attached: slots, books and the way ahead."""

    def __init__(self, settings: ReceiverSettings, attached: Attached) -> None:
        facts = self.facts = StreamFacts.of(attached)
        replicas = settings.seat.replicas
        prefetch = settings.prefetch or max(_USUAL_PREFETCH, 2 * facts.at_a_time)
        hands = 4 * replicas + 2  # what a consumer and TensorFlow's own prefetching hold at a time, as measured
        affordable = settings.prefetch_bytes // max(facts.largest_bytes(), 1) - 1  # the reserve counts as well
        slots = max(2, min(prefetch * replicas + hands, affordable))
        self.memory = SlotMemory(slots + 1, facts.largest_bytes())
        self.ledger = Ledger(slots)
        self.most_out = max(1, slots - 2)
        self.wants = Wants(
            WantSettings(
                prefetch=max(1, min(prefetch * replicas, slots - 1)),
                heartbeat_timeout_s=facts.heartbeat_timeout_s,
                lost_timeout_s=settings.lost_timeout_s,
            ),
            self.ledger,
        )
        cursor = attached.cursor
        start = Position(cursor.epoch, cursor.number, cursor.group)
        self.road = Road(start, settings.seat, repeats=facts.evaluation)


class Receiver:
    """Runs until `close`; consumers use `attach`, `batches` and `handover`."""

    def __init__(self, settings: ReceiverSettings) -> None:
        check_endpoint(settings.endpoint, where="connect", encrypted=True, insecure=True)
        self.settings = settings
        self.incarnation = secrets.randbits(63)
        #: (epoch, number) that the heartbeats report; set by the feed.
        self.trained_to = (0, 0)
        self.log = Log("trainer", stream=settings.stream, rank=settings.seat.rank)
        self._keys = ClientKeys.read(settings.keys) if settings.keys else None
        self._waker = Waker()
        self._notes: deque[Callable[[float], None]] = deque()
        self.handover = Handover(self._waker.wake, lambda line: self._post(lambda now_s: self._focus(line, now_s)))
        self._line: _Line | None = None
        self._stood: Cursor | None = None
        self._attaching: Future[Attached] | None = None
        #: Questions that any worker can answer, and who waits for the answer.
        self._questions: dict[m.Message, list[Future[Any]]] = {}
        self._questions_due_s = self._beat_s = self._tick_s = self._tick_soon_s = self._hello_s = 0.0
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="stoker-receiver", daemon=True)
        self._thread.start()

    # --- for consumers, in any thread ---

    @property
    def line(self) -> _Line:
        """What attaching made; present once `attach` has returned."""
        assert self._line is not None
        return self._line

    def garbage(self) -> int:
        """Frames from workers that were no message for us."""
        return self._exchange.garbage() if self._exchange is not None else 0

    def attach(self, cursor: Cursor | None) -> Attached:
        """Attach (again) at a cursor; the coordinator's answer."""
        answer: Future[Attached] = Future()

        def start(now_s: float) -> None:
            self._attaching = answer
            self._control.attach(cursor, now_s)

        self._post(start)
        try:
            return answer.result(self.settings.connect_timeout_s)
        except FutureTimeoutError:
            raise self._no_coordinator() from None

    def batches(self, epoch: int, group: int) -> int:
        """How many batches an epoch has; any worker can say."""
        known = self.line.road.epochs.get((epoch, group))
        if known is not None:
            return known
        batches: int = self._answer(self._epoch_query(epoch, group))
        return batches

    def name(self, sample: int) -> str:
        """What the source calls a sample; any worker can say."""
        facts = self.line.facts
        name: str = self._answer(m.NameQuery(stream=facts.stream, plan_digest=facts.plan_digest, sample=sample))
        return name

    def _answer(self, query: m.Message) -> Any:  # noqa: ANN401 - whatever the answer holds
        answer: Future[Any] = Future()
        self._post(lambda _now_s: self._questions.setdefault(query, []).append(answer))
        while True:
            try:
                return answer.result(_QUESTION_PAUSE_S)
            except FutureTimeoutError:
                if self.handover.error is not None:
                    raise self.handover.error from None

    def _epoch_query(self, epoch: int, group: int) -> m.EpochQuery:
        facts = self.line.facts
        return m.EpochQuery(stream=facts.stream, plan_digest=facts.plan_digest, epoch=epoch, group=group)

    def close(self, timeout_s: float) -> None:
        """End the thread and its sockets; slots that consumers still look at live until they look away."""
        self.handover.close()
        self._closing = True
        self._waker.wake()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def _post(self, note: Callable[[float], None]) -> None:
        self._notes.append(note)
        self._waker.wake()

    # --- the thread ---

    def _run(self) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._exchange: Exchange | None = None
        self._poller = zmq.Poller()
        self._poller.register(self._waker.fileno(), zmq.POLLIN)
        who = Identity(
            job=self.settings.job,
            stream=self.settings.stream,
            seat=self.settings.seat,
            incarnation=self.incarnation,
            name=f"{os.uname().nodename}:{os.getpid()}",
        )
        self._control = Control(self._context, self.settings.endpoint, self._keys, who)
        self._poller.register(self._control.socket, zmq.POLLIN)
        try:
            while not self._closing:
                self._turn()
            self._control.detach()
        except BaseException as error:
            self._fail(error)
        finally:
            self._hang_up()

    def _hang_up(self) -> None:
        if self._exchange is not None:
            self._exchange.close()
        self._control.close()
        self._context.term()
        self._waker.close()
        if self._line is not None:
            self._line.memory.close()

    def _turn(self) -> None:
        ready: set[object] = {socket for socket, _ in self._poller.poll(self._pause_ms())}
        now_s = time.monotonic()
        if self._waker.fileno() in ready:
            self._waker.clear()
        while self._notes:
            self._notes.popleft()(now_s)
        if self._control.socket in ready:
            for message in self._control.read(now_s):
                self._from_coordinator(message, now_s)
        if self._exchange is not None:
            self._exchange.serve(ready, now_s)
            self._hello_s = self._exchange.greet(now_s)
            self._keep_books(now_s)
            self._tick(self._exchange, now_s)
            self._extend(self._exchange, now_s)
            self._exchange.settle(now_s)
            self._say_what_wakes()

    def _say_what_wakes(self) -> None:
        """Consumers need not wake us for what the next arrival is time enough for: a turn costs as much as a batch."""
        wants, handover = self.line.wants, self.handover
        handover.wants_slots, handover.wants_room = wants.short_of_slots, not wants.is_well_asked()
        came = handover.wants_slots and bool(handover.returned)
        if came or (handover.wants_room and wants.head < handover.head):
            self._waker.wake()  # while we decided

    def _pause_ms(self) -> int:
        now_s = time.monotonic()
        ends = [now_s + 1.0]
        attach_s = self._control.turn(now_s)
        if attach_s is not None:
            ends.append(attach_s)
        if self._exchange is not None:
            ends += [self._tick_s, self._hello_s]
        return max(0, int(1000 * (min(ends) - now_s)) + 1)

    def _tick(self, exchange: Exchange, now_s: float) -> None:
        if now_s < self._tick_soon_s:
            return
        self.line.wants.note(e.Ticked(), now_s)
        self._tick_s = now_s + _PROBE_S if exchange.probe(now_s) else self.line.wants.wake_at_s(now_s)
        self._tick_soon_s = (now_s + self._tick_s) / 2  # a turn that comes anyway spares one for this alone
        if now_s >= self._beat_s:
            self._beat_s = now_s + self.line.facts.heartbeat_timeout_s / 4
            self._control.beat(*self.trained_to)

    def _keep_books(self, now_s: float) -> None:
        """What consumers did since the last turn: first what they took, then what they gave back."""
        assert self._exchange is not None
        head = self.handover.head
        if self.line.road.pass_to(head):
            self.line.wants.note(e.Consumed(head), now_s)
        ledger, freed = self.line.ledger, False
        while self.handover.handed:
            slot, copied = self.handover.handed.popleft()
            if copied:
                ledger.drop(slot)
                freed = True
            else:
                ledger.hand_out(slot)
        for slot in self.handover.take_back():
            ledger.give_back(slot)
            freed = True
        if freed:
            self.line.wants.note(e.SlotReturned(), now_s)

    # --- the way ahead ---

    def _extend(self, exchange: Exchange, now_s: float) -> None:
        targets = self.line.road.extend(self.line.wants.room())
        if targets:
            self.line.wants.note(e.Extended(targets), now_s)
        missing = self.line.road.missing()
        if missing is not None:
            self._questions.setdefault(self._epoch_query(*missing), [])
        if self._questions and now_s >= self._questions_due_s:
            self._questions_due_s = now_s + _QUESTION_PAUSE_S
            exchange.ask_all(list(self._questions))

    def _learn(self, answer: m.EpochAnswer | m.NameAnswer) -> None:
        query: m.Message
        value: int | str
        if isinstance(answer, m.EpochAnswer):
            query, value = self._epoch_query(answer.epoch, answer.group), answer.batches
            self.line.road.learn(answer.epoch, answer.group, answer.batches)
        else:
            digest = self.line.facts.plan_digest
            query, value = m.NameQuery(stream=answer.stream, plan_digest=digest, sample=answer.sample), answer.name
        for asked in self._questions.pop(query, []):
            asked.set_result(value)

    def _focus(self, line: Line, now_s: float) -> None:
        """Serve this line from now on; what lies ahead is kept where it is what the line needs next."""
        assert self._exchange is not None
        self._keep_books(now_s)
        if not self.line.road.leads_on(line):
            head = self.line.road.turn(line)
            for item in self.handover.restart(head):
                self.line.ledger.drop(item.slot)
            self.line.wants.note(e.Refocused(head), now_s)
        self.handover.serve(line)

    # --- the coordinator ---

    def _from_coordinator(self, message: Attached | m.Refused | Members, now_s: float) -> None:
        if isinstance(message, m.Refused):
            self._refused(message, now_s)
            return
        if isinstance(message, m.Attached):
            self._attached(message)
        if self._exchange is not None:
            self._exchange.meet(message.workers)

    def _refused(self, message: m.Refused, now_s: float) -> None:
        if message.code == "unknown":  # a coordinator that came back without knowing us
            # Where it stood at its last attaching, as the other ranks do: by now each is at another step.
            self._control.attach(self._stood, now_s)
            return
        error = RefusedError(
            code=message.code,
            expected=message.expected,
            got=message.got,
            where=f"coordinator at {self.settings.endpoint}",
            remedy=message.remedy,
        )
        attaching, self._attaching = self._attaching, None
        if attaching is not None:
            attaching.set_exception(error)
        else:
            self._fail(error)

    def _attached(self, message: Attached) -> None:
        if self._line is None:
            self._set_up(_Line(self.settings, message))
        cursor, line = message.cursor, self.line
        if line.facts.plan_digest != cursor.plan_digest:
            self._fail(_other_plan(line.facts.plan_digest, cursor.plan_digest))
            return
        line.road.next_group = message.next_group
        line.road.learn(cursor.epoch, cursor.group, message.batches)
        attaching, self._attaching = self._attaching, None
        if attaching is not None:
            self._stood, self.trained_to = cursor, (cursor.epoch, cursor.number)
            attaching.set_result(message)

    def _set_up(self, line: _Line) -> None:
        """The first answer: now it is known how large a slot is."""
        self.log = self.log.bind(job=line.facts.job)
        self._exchange = Exchange(
            ExchangeParts(
                context=self._context,
                poller=self._poller,
                keys=self._keys,
                incarnation=self.incarnation,
                shared_memory=self.settings.shared_memory,
                verify=self.settings.verify,
                facts=line.facts,
                memory=line.memory,
                ledger=line.ledger,
                wants=line.wants,
                handover=self.handover,
                log=self.log,
                learn=self._learn,
                fail=self._fail,
            )
        )
        self._line = line

    def _fail(self, error: BaseException) -> None:
        self.log.error("feed stops", error=str(error))
        attaching, self._attaching = self._attaching, None
        if attaching is not None:
            attaching.set_exception(error)
        self.handover.interrupt(error)

    def _no_coordinator(self) -> StokerError:
        return LostError(
            expected=f"a coordinator that answers within {self.settings.connect_timeout_s:g} s",
            got=self._control.heard,
            where=self.settings.endpoint,
            remedy="Start the loaders (`loader-server run job.toml`), correct the endpoint, or allow more time with "
            "connect_timeout_s.",
        )


def _other_plan(ours: str, theirs: str) -> StokerError:
    return RefusedError(
        code="plan",
        expected=f"plan {ours}, which this run is trained on",
        got=f"plan {theirs}",
        where="coordinator",
        remedy="Job file or data changed under a running job: restart the trainer, from a checkpoint of the same plan.",
    )
