"""The trainer's one receive thread: turns what arrives into events, and carries out what the core decides.

Rules: every socket is made, used and closed in this thread; consumers meet it in the outbox. The loop wakes for a
message, for a consumer, or at the core's next deadline. Nothing is decided here. An error in this thread is raised
again where the user is waiting.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import threading
import time
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import zmq

from shared.endpoints import check_endpoint
from shared.errors import LostError, StokerError, WorldChangedError
from shared.logs import Log
from shared.memory import SlotMemory
from shared.sockets import Waker
from shared.wire import messages as m
from shared.wire.parts import DoneSet
from trainer_client.core import events as e
from trainer_client.core import instructions as i
from trainer_client.core.core import Core
from trainer_client.network.coordinator_client import CoordinatorClient
from trainer_client.network.outbox import Outbox
from trainer_client.network.worker_connections import WorkerConnections, WorkerConnectionsParts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from shared.keys import ClientKeys
    from shared.wire.messages import Attached
    from shared.wire.parts import Cursor
    from trainer_client.core.core import AttachedStream
    from trainer_client.core.settings import CoreSettings
    from trainer_client.core.stream_spec import StreamSpec

_T = TypeVar("_T")

#: How long to wait for a coordinator in silence.
_SAYS_SO_AFTER_S = 5.0

__all__ = ["Receiver", "ReceiverSettings", "Standing", "trainer_name"]

#: The longest that the loop sleeps, whatever the core says.
_LONGEST_PAUSE_S = 1.0

#: How often a consumer that waits for an answer checks whether the feed has failed meanwhile.
_LOOK_S = 0.2

#: libzmq's own limit would be 1023 sockets; a connection to a worker takes up to four.
_MOST_SOCKETS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverSettings:
    """Whom to attach to, and as whom."""

    core: CoreSettings
    endpoint: str
    coordinator_keys: ClientKeys | None
    worker_keys: ClientKeys | None
    connect_timeout_s: float


@dataclass(slots=True)
class Standing:
    """How far the consumer has come; written by its session, read for the heartbeats."""

    #: (epoch, number) of the first batch not yet trained on.
    trained_to: tuple[int, int] = (0, 0)
    #: Seconds that the consumer has waited for data since the start.
    waited_s: float = 0.0


def _refuse_nothing() -> None:
    """Nobody but the coordinator knows of other ranks."""


def trainer_name() -> str:
    """Host and process, for messages to people."""
    return f"{os.uname().nodename}:{os.getpid()}"


class Receiver:
    """Runs until `close`; consumers use `attach`, `ask_batches`, `ask_names` and `outbox`."""

    def __init__(self, settings: ReceiverSettings) -> None:
        check_endpoint(settings.endpoint, where="connect", encrypted=True, insecure=True)
        self.settings = settings
        self.standing = Standing()
        core = settings.core
        self.log = Log("trainer", stream=core.stream, rank=core.ranks.rank)
        self.core = Core(core)
        self._waker = Waker()
        self.outbox = Outbox(self._waker.wake, core.ranks.replicas)
        self._memory: SlotMemory | None = None
        self._serials = itertools.count(1)
        self._attaching: dict[int, Future[Attached]] = {}
        self._questions: dict[m.Message, list[Future[Any]]] = {}
        self._states: dict[int, Future[DoneSet]] = {}
        self._ends: dict[int, Future[bool]] = {}
        #: Results that were reported: whether to wait for all ranks, and who waits.
        self._results: dict[int, tuple[bool, Future[m.Aggregate]]] = {}
        #: Called now and then while all ranks are waited for: raises an error if one of them is gone.
        self.refuse_lost: Callable[[], None] = _refuse_nothing
        self._offers: list[i.Offer] = []
        self._told = (0.0, 0.0)
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="stoker-receiver", daemon=True)
        self._thread.start()

    # --- for consumers, in any thread ---

    @property
    def stream(self) -> AttachedStream:
        """What the core knows of the stream, to be read only; there once `attach` has returned."""
        assert self.core.stream is not None
        return self.core.stream

    @property
    def spec(self) -> StreamSpec:
        """What the stream is."""
        return self.stream.spec

    @property
    def memory(self) -> SlotMemory:
        """The slots."""
        assert self._memory is not None
        return self._memory

    def count_garbage(self) -> int:
        """How many frames were not valid messages."""
        workers = self._workers.count_garbage() if self._workers is not None else 0
        return workers + self._coordinator.garbage + self.core.strays

    def attach(self, cursor: Cursor | None, done: DoneSet | None = None) -> Attached:
        """Attach (again) at a cursor, or in queue mode with a set of what is done; the coordinator's answer."""
        serial, answer = next(self._serials), Future[m.Attached]()
        self._attaching[serial] = answer
        self.outbox.tell(e.AttachAsked(serial, cursor, done))
        try:
            return self._wait_for_coordinator(answer)
        except FutureTimeoutError:
            raise self._no_coordinator() from None

    def _wait_for_coordinator(self, answer: Future[Attached]) -> Attached:
        """Wait as long as the user allows; long before that, say that nobody answers: the endpoint may be wrong."""
        timeout_s = self.settings.connect_timeout_s
        if timeout_s > _SAYS_SO_AFTER_S:
            with contextlib.suppress(FutureTimeoutError):
                return self.wait_for(answer, timeout_s=_SAYS_SO_AFTER_S)
            self.log.warning(
                "no coordinator has let this trainer in yet: it goes on asking", endpoint=self.settings.endpoint,
                reason=self.core.attachment.last_reason, waits_s=timeout_s - _SAYS_SO_AFTER_S,
            )  # fmt: skip
            timeout_s -= _SAYS_SO_AFTER_S
        return self.wait_for(answer, timeout_s=timeout_s)

    def ask_state(self) -> DoneSet:
        """In queue mode: what is done, once the coordinator has all that this trainer settled so far on disk."""
        serial, answer = next(self._serials), Future[DoneSet]()
        self._states[serial] = answer
        self.outbox.tell(e.StateAsked(serial))
        return self.wait_for(answer)

    def ask_end(self) -> bool:
        """In queue mode: wait until the work to be done once after training is ours, or done by another (False)."""
        serial, answer = next(self._serials), Future[bool]()
        self._ends[serial] = answer
        self.outbox.tell(e.EndAsked(serial))
        return self.wait_for(answer, of_all=True)

    def settle_end(self, *, done: bool) -> None:
        """That work is done, or the user failed at it; returns when this is on the coordinator's disk."""
        serial, answer = next(self._serials), Future[bool]()
        self._ends[serial] = answer
        self.outbox.tell(e.EndSettled(serial, done))
        self.wait_for(answer)

    def tell_results(self, told: e.ResultsTold, *, whole: bool) -> Future[m.Aggregate]:
        """Report results, under a serial of ours; the first answer, or the one about all ranks."""
        serial, answer = next(self._serials), Future[m.Aggregate]()
        self._results[serial] = (whole, answer)
        self.outbox.tell(replace(told, serial=serial))
        return answer

    def ask_batches(self, epoch: int, group: int) -> int:
        """How many batches an epoch has; waits for a worker's answer if that is not known yet."""
        known = self.stream.upcoming.epochs.get((epoch, group))
        if known is not None:
            return known
        spec = self.spec
        query = m.EpochQuery(stream=spec.stream, plan_digest=spec.plan_digest, epoch=epoch, group=group)
        batches: int = self._ask(query)
        return batches

    def ask_names(self, samples: Iterable[int]) -> list[str]:
        """The source's names for some samples; waits for workers' answers, which come all at once."""
        spec = self.spec
        queries = [m.NameQuery(stream=spec.stream, plan_digest=spec.plan_digest, sample=sample) for sample in samples]
        return [self.wait_for(answer) for answer in [self._put(query) for query in queries]]

    def _ask(self, question: m.EpochQuery) -> Any:  # noqa: ANN401 - whatever the answer holds
        return self.wait_for(self._put(question))

    def _put(self, question: m.EpochQuery | m.NameQuery) -> Future[Any]:
        answer: Future[Any] = Future()
        self._questions.setdefault(question, []).append(answer)
        self.outbox.tell(e.QuestionAsked(question))
        return answer

    def wait_for(self, answer: Future[_T], *, of_all: bool = False, timeout_s: float = math.inf) -> _T:
        """The answer, unless the feed fails or is closed; or the job is ended, if others have to do a part."""
        until_s = time.monotonic() + timeout_s
        while True:
            try:
                return answer.result(min(_LOOK_S, max(0.0, until_s - time.monotonic())))
            except FutureTimeoutError:
                if time.monotonic() >= until_s:
                    raise
            self.outbox.raise_if_over()
            if of_all and self.outbox.ended is not None and self.outbox.parted:
                raise self.outbox.ended
            if of_all:
                self.refuse_lost()

    def wait_for_failure(self, timeout_s: float) -> BaseException | None:
        """What stopped the feed, if anything did or does within this time."""
        until_s = time.monotonic() + timeout_s
        while self.outbox.error is None and (left_s := until_s - time.monotonic()) > 0:
            with contextlib.suppress(FutureTimeoutError):
                Future[None]().result(min(left_s, _LOOK_S))
        return self.outbox.error

    def close(self, timeout_s: float) -> None:
        """End the thread and its sockets; slots that consumers still reference stay valid."""
        self.outbox.close()
        self._closing = True
        self._waker.wake()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    # --- the thread ---

    def _run(self) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._context.max_sockets = _MOST_SOCKETS
        self._workers: WorkerConnections | None = None
        self._poller = zmq.Poller()
        self._poller.register(self._waker.fileno(), zmq.POLLIN)
        self._coordinator = CoordinatorClient(self._context, self.settings.endpoint, self.settings.coordinator_keys)
        self._poller.register(self._coordinator.socket, zmq.POLLIN)
        try:
            while not self._closing:
                self._turn()
            ranks, core = self.settings.core.ranks, self.settings.core
            self._coordinator.send(m.Detach(stream=core.stream, rank=ranks.rank, incarnation=core.incarnation))
        except BaseException as error:
            self._fail(error)
        finally:
            self._hang_up()

    def _hang_up(self) -> None:
        if self._workers is not None:
            self._workers.close_all()
        self._coordinator.close()
        self._context.term()
        self._waker.close()
        if self._memory is not None:
            self._memory.close()

    def _turn(self) -> None:
        ready: set[object] = {socket for socket, _ in self._poller.poll(self._pause_ms())}
        if self._waker.fileno() in ready:
            self._waker.clear()
        now_s = time.monotonic()
        events = [*self.outbox.read_facts(), *self._read_network(ready, now_s)]
        while True:
            events = self._carry_out(self.core.handle(events, now_s))
            if not events:
                break

    def _pause_ms(self) -> int:
        if self.outbox.has_facts and (self.outbox.wake_for_slots or self.outbox.wake_for_room):
            return 0  # some came while we decided to wait for them
        pause_s = min(self.core.due_s - time.monotonic(), _LONGEST_PAUSE_S)
        return max(0, int(1000 * pause_s) + 1)

    def _read_network(self, ready: set[object], now_s: float) -> Iterator[e.Event]:
        if self._coordinator.socket in ready:
            for message in self._coordinator.read():
                yield e.CoordinatorSaid(message)
        if self._workers is not None:
            yield from self._workers.read(ready, now_s)

    def _carry_out(self, orders: list[i.Instruction]) -> list[e.Event]:
        """Carry out instructions, in order; returns what came of it."""
        events: list[e.Event] = []
        for order in orders:
            own = self._own_orders.get(type(order))
            if isinstance(order, i.ToCoordinator):
                events += [] if self._coordinator.send(order.message) else [e.CoordinatorAway()]
            elif own is not None:
                own(self, order)
            elif isinstance(order, i.TakeBack):
                self._flush_offers()
                events.append(e.TakenBack(order.seq, self.outbox.take_back(order.seq)))
            else:
                assert self._workers is not None
                events += self._worker_orders[type(order)](self._workers, order)
        self._flush_offers()
        if self._workers is not None:
            events += self._workers.flush()
        if events:
            events = [*events, *self.outbox.read_facts()]
        return events

    # --- orders ---

    def _send_progress(self, order: i.SendProgress) -> None:
        core = self.settings.core
        (epoch, number), (read_epoch, read_number) = self.standing.trained_to, self.outbox.read_to
        self._coordinator.send(
            m.Progress(
                stream=core.stream,
                rank=core.ranks.rank,
                incarnation=core.incarnation,
                epoch=epoch,
                number=number,
                read_epoch=read_epoch,
                read_number=read_number,
                waited_permille=self._measure_waited_permille(),
                members=order.members,
            )
        )

    def _measure_waited_permille(self) -> int:
        """The consumer's share of waiting since the last call."""
        now_s = time.monotonic()
        waited_s = self.standing.waited_s + self.outbox.waiting_s(now_s)
        told_s, told_waited_s = self._told
        self._told = (now_s, waited_s)
        return max(0, min(1000, round(1000 * (waited_s - told_waited_s) / max(now_s - told_s, 1e-3))))

    def _renew_coordinator(self, _order: i.RenewCoordinator) -> None:
        self.log.info("connection to a silent coordinator is made anew")
        self._poller.unregister(self._coordinator.socket)
        try:
            self._coordinator.renew()
        except zmq.ZMQError as error:  # no descriptor left, say; the core will order it again
            self.log.warning("connection to the coordinator cannot be made anew", error=str(error))
        self._poller.register(self._coordinator.socket, zmq.POLLIN)

    def _answer_attach(self, order: i.AnswerAttach) -> None:
        answer = self._attaching.pop(order.serial, None)
        if answer is None:
            return  # the feed failed in this turn, and the caller was told so
        if isinstance(order.answer, BaseException):
            answer.set_exception(order.answer)
        else:
            cursor = order.answer.cursor
            self.standing.trained_to = self.outbox.read_to = (cursor.epoch, cursor.number)
            answer.set_result(order.answer)

    def _answer_question(self, order: i.AnswerQuestion) -> None:
        for asked in self._questions.pop(order.question, ()):
            asked.set_result(order.answer)

    def _answer_state(self, order: i.AnswerState) -> None:
        self._states.pop(order.serial).set_result(order.done)

    def _answer_end(self, order: i.AnswerEnd) -> None:
        self._ends.pop(order.serial).set_result(order.is_ours)

    def _end_reading(self, order: i.EndReading) -> None:
        self.log.info("job was ended", at_once=order.at_once, last=order.last)
        self.outbox.end(order.error, at_once=order.at_once, last=order.last, parted=not order.waits)

    def _stand_still(self, _order: i.StandStill) -> None:
        epoch, number = self.outbox.stand_still()
        core = self.settings.core
        self._coordinator.send(
            m.StandsStill(stream=core.stream, incarnation=core.incarnation, epoch=epoch, number=number)
        )

    def _answer_results(self, order: i.AnswerResults) -> None:
        whole, answer = self._results.get(order.answer.serial, (False, None))
        if answer is not None and (order.answer.whole or not whole):
            del self._results[order.answer.serial]
            answer.set_result(order.answer)

    def _make_slots(self, order: i.MakeSlots) -> None:
        """The coordinator has answered, so the size of a slot is known now."""
        self.log = self.log.bind(job=order.spec.job)
        self._memory = SlotMemory(order.slots, order.spec.largest_bytes())
        if self.settings.core.shared_memory and not self._memory.shareable:
            self.log.warning("batches come by TCP", reason=self._memory.why_not_shared)
        self._workers = WorkerConnections(
            WorkerConnectionsParts(
                context=self._context,
                poller=self._poller,
                keys=self.settings.worker_keys,
                settings=self.settings.core,
                spec=order.spec,
                memory=self._memory,
            )
        )

    def _offer(self, order: i.Offer) -> None:
        self.memory.note_written(order.slot, order.header.nbytes)
        self._offers.append(order)

    def _flush_offers(self) -> None:
        if self._offers:
            self.outbox.offer(self._offers)
            self._offers = []

    def _serve(self, order: i.Serve) -> None:
        self._flush_offers()
        self.outbox.serve(order.reader, order.head, ended=order.ended)

    def _restart(self, order: i.Restart) -> None:
        self._flush_offers()  # what was offered in this turn is dropped there, and handed back like the rest
        self.outbox.restart(order.reader, order.head)

    def _wake_for(self, order: i.WakeFor) -> None:
        self.outbox.wake_for_room, self.outbox.wake_for_slots = order.room, order.slots

    def _fail_feed(self, order: i.Fail) -> None:
        self._fail(order.error)

    def _log(self, order: i.WriteLog) -> None:
        getattr(self.log, order.level)(order.event, **order.fields)

    _own_orders: ClassVar[dict[type, Callable[..., None]]] = {
        i.SendProgress: _send_progress,
        i.RenewCoordinator: _renew_coordinator,
        i.AnswerAttach: _answer_attach,
        i.AnswerQuestion: _answer_question,
        i.AnswerState: _answer_state,
        i.AnswerEnd: _answer_end,
        i.AnswerResults: _answer_results,
        i.EndReading: _end_reading,
        i.StandStill: _stand_still,
        i.MakeSlots: _make_slots,
        i.Offer: _offer,
        i.Serve: _serve,
        i.Restart: _restart,
        i.WakeFor: _wake_for,
        i.Fail: _fail_feed,
        i.WriteLog: _log,
    }
    _worker_orders: ClassVar[dict[type, Callable[..., Iterator[e.Event]]]] = {
        i.Open: WorkerConnections.open,
        i.Close: WorkerConnections.close,
        i.Renew: WorkerConnections.renew,
        i.Greet: WorkerConnections.greet,
        i.ToWorker: WorkerConnections.send,
        i.Write: WorkerConnections.write,
        i.Check: WorkerConnections.check,
        i.Probe: WorkerConnections.probe,
    }

    # --- the end ---

    def _fail(self, error: BaseException) -> None:
        if isinstance(self.outbox.error, Exception):
            pass  # it has stopped already, and the first error is the one that counts
        elif isinstance(error, WorldChangedError):
            self.log.info("world is over", reason=error.got)
        else:
            self.log.error("feed stops", error=str(error))
        for answer in list(self._attaching.values()):
            answer.set_exception(error)
        for _, told in list(self._results.values()):
            told.set_exception(error)
        self._attaching.clear()
        self._results.clear()
        self.outbox.interrupt(error)

    def _no_coordinator(self) -> StokerError:
        return LostError(
            expected=f"a coordinator that answers within {self.settings.connect_timeout_s:g} s",
            got=self.core.attachment.last_reason,
            where=self.settings.endpoint,
            remedy="Start the loaders (`loader-server run job.toml`), correct the endpoint, or allow more time with "
            "connect_timeout_s.",
        )
