"""The receiver of a feed: calls for its consumers, and the turns of its thread, which carry out the core's decisions.

Rules: consumers meet the thread in the outbox and in the answers that they wait for; sockets are the thread's alone
(`receive_thread`), which ends when the receiver is not referenced any more. Nothing is decided here. An error in a turn
is raised again where the user is waiting. A process forked from ours has no receive thread, so there all calls raise.
"""

from __future__ import annotations

import contextlib
import functools
import math
import threading
import time
import weakref
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import zmq

from shared.endpoints import check_coordinator
from shared.errors import LostError, SettingsError, StokerError, WorldChangedError
from shared.events.trainer_fields import trainer_fields
from shared.logs import Log
from shared.system.endpoint_file import FollowedEndpoint
from shared.system.system_errors import refuse_small_limits_of_client
from shared.wire import messages as m
from shared.wire.codec import refuse_unsendable
from trainer_client.core import events as e
from trainer_client.core import instructions as i
from trainer_client.core.attachment import attach_request
from trainer_client.core.core import Core
from trainer_client.core.open_results import results_message
from trainer_client.network.awaited_answers import AwaitedAnswers, SilentWait
from trainer_client.network.coordinator_client import WARN_AFTER_S, ReceiverSettings, nobody_answers
from trainer_client.network.heartbeat import Heartbeat
from trainer_client.network.outbox import NOTHING_READ, Outbox
from trainer_client.network.receive_thread import Wires, run_turns, used_after_fork, watch_forks
from trainer_client.network.standing import Standing
from trainer_client.network.worker_connections import WorkerConnections

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from shared.memory import SlotMemory
    from shared.wire.message_parts import Cursor, DoneSet
    from shared.wire.messages import Attached
    from trainer_client.core.attached_stream import AttachedStream
    from trainer_client.core.stream_spec import StreamSpec

_T = TypeVar("_T")

__all__ = ["Receiver", "ReceiverSettings"]

#: The longest that the loop sleeps, even if the core has nothing due.
_LONGEST_PAUSE_S = 1.0

#: How often a consumer that waits for an answer checks whether the feed has failed meanwhile.
_LOOK_S = 0.2


def _refuse_nothing() -> None:
    """Do nothing: without a strategy over several processes, only the coordinator notices that a rank is lost."""


class Receiver:
    """A feed's receive thread, with consumers' calls; making one raises SettingsError or MachineError if it cannot."""

    def __init__(self, settings: ReceiverSettings) -> None:
        check_coordinator(settings.endpoint, where="connect")
        FollowedEndpoint(settings.endpoint, encrypted=settings.coordinator_keys is not None)  # refuses an unsafe file
        refuse_small_limits_of_client()
        self.settings = settings
        self.standing = Standing()
        core = settings.core
        named = trainer_fields(core.name, core.ranks.rank, core.incarnation)
        self.log = Log("trainer", stream=core.stream, **named)
        self.core = Core(core)
        self._wires = Wires(settings)
        self.outbox = Outbox(self._wires.waker.wake, core.ranks.replicas, self._wires.ring)
        self._answers = AwaitedAnswers()
        #: Called repeatedly while a consumer waits for all ranks; raises an error if one of them is gone.
        self.refuse_lost: Callable[[], None] = _refuse_nothing
        self._offers: list[i.Offer] = []
        self._is_forked = False
        self._heartbeat = Heartbeat(core, self.standing, self.outbox)
        watch_forks(self)
        # The thread has only a weak reference, whose callback wakes it: a finaliser may not wait for anything.
        held = weakref.ref(self, functools.partial(_wake, self._wires))
        self._thread = threading.Thread(target=run_turns, args=(held, self._wires), name="stoker-receiver", daemon=True)
        self._thread.start()

    # --- for consumers, in any thread ---

    @property
    def stream(self) -> AttachedStream:
        """Return the core's state of the stream, for reading only; it exists once `attach` has returned."""
        assert self.core.stream is not None
        return self.core.stream

    @property
    def spec(self) -> StreamSpec:
        """Return the coordinator's description of the stream; it exists once `attach` has returned."""
        return self.stream.spec

    @property
    def memory(self) -> SlotMemory:
        """Return the memory of the slots; it exists once `attach` has returned."""
        assert self._wires.memory is not None
        return self._wires.memory

    def count_garbage(self) -> int:
        """Return the number of invalid frames and payloads, plus that of messages that were not expected."""
        workers = self._wires.workers
        from_workers = workers.count_garbage() if workers is not None else 0
        return self._wires.coordinator.garbage + from_workers + self.core.strays

    def count_fallbacks(self) -> int:
        """Return how many batches came by a connection for messages although sealed payloads have one; 0 unattached."""
        return self._wires.workers.count_fallbacks() if self._wires.workers is not None else 0

    def attach(self, cursor: Cursor | None, done: DoneSet | None = None) -> Attached:
        """Attach (again) at a cursor, or in queue mode with a done-set; raise LostError after `connect_timeout_s`.

        Raise SettingsError for values out of bounds, the error of a refusal or wrong answer, or that of `wait_for`.
        """
        refuse_unsendable(attach_request(self.settings.core, cursor, done), "restore" if cursor or done else "connect")
        serial, answer = self._answers.expect()
        self.outbox.tell(e.AttachAsked(serial, cursor, done))
        try:
            return self._wait_for_coordinator(answer)
        except FutureTimeoutError:
            raise self._no_coordinator() from None

    def _wait_for_coordinator(self, answer: Future[Attached]) -> Attached:
        """Return the answer, or raise TimeoutError after `connect_timeout_s`, or the feed's error; warn after 5 s."""
        timeout_s = self.settings.connect_timeout_s
        if timeout_s > WARN_AFTER_S:
            with contextlib.suppress(FutureTimeoutError):
                return self.wait_for(answer, timeout_s=WARN_AFTER_S)
            self.log.warning(
                "no coordinator has let this trainer in yet: it goes on asking", endpoint=self.settings.endpoint,
                reason=self.core.attachment.last_reason, waits_s=timeout_s - WARN_AFTER_S,
            )  # fmt: skip
            timeout_s -= WARN_AFTER_S
        return self.wait_for(answer, timeout_s=timeout_s)

    def ask_state(self) -> DoneSet:
        """Return the done-set, in queue mode, once the coordinator has all reports of this trainer on disk.

        Raise LostError if it does not answer within `lost_timeout_s`, or the error of a feed that fails or is closed.
        """
        return self._wait_answered(self.begin_asking_state(), "the coordinator to say what is done")

    def begin_asking_state(self) -> Future[DoneSet]:
        """Return the future of what `ask_state` returns; it may never be answered."""
        return self._request(e.StateAsked)

    def ask_sums(self) -> i.AnswerSums:
        """Return the named evaluation's sums, with all our reports; they are None while any batch is unsettled.

        Raise LostError if no answer comes within `lost_timeout_s`, or the error of a feed that fails or is closed.
        """
        return self._wait_answered(self._request(e.SumsAsked), "the coordinator to tell the sums of an evaluation")

    def ask_end(self) -> bool:
        """Wait, in queue mode, until the work after training is leased to us (True), or done by another (False).

        Errors of `wait_for` pass through: LostError, EndedError, that of `refuse_lost`, or of a failed or closed feed.
        """
        return self.wait_for(self._request(e.EndAsked), of_all=True)

    def settle_end(self, *, done: bool) -> None:
        """Report that the work after training is done, or failed; return when this is on the coordinator's disk.

        Raise LostError if no answer comes within `lost_timeout_s`, or the error of a feed that fails or is closed.
        """
        answer: Future[bool] = self._request(functools.partial(e.EndSettled, done=done))
        self._wait_answered(answer, "the coordinator to note that the work after training is done")

    def _request(self, event: Callable[[int], e.Event]) -> Future[_T]:
        """Report the event made with a new serial; return the future of its answer."""
        serial, answer = self._answers.expect()  # before the event: the answer could overtake it, and be dropped
        self.outbox.tell(event(serial))
        return answer

    def report_results(self, results: e.ResultsReported, *, whole: bool) -> Future[m.Aggregate]:
        """Report results; return the future of the first or `whole` answer. Raise SettingsError if out of bounds."""
        refuse_unsendable(results_message(self.settings.core, results), "results")
        serial, answer = self._answers.expect(of_all=whole)
        self.outbox.tell(replace(results, serial=serial))
        return answer

    def ask_batches(self, epoch: int, group: int) -> int:
        """Return how many batches an epoch has; ask the workers if that is not known yet.

        Raise LostError after `lost_timeout_s` without an answer, SettingsError for a bad epoch, or the feed's error.
        """
        known = self.stream.upcoming.epochs.get((epoch, group))
        if known is not None:
            return known
        spec = self.spec
        query = m.EpochQuery(stream=spec.stream, plan_digest=spec.plan_digest, epoch=epoch, group=group)
        batches: int = self._wait_answered(self._put(query), "a worker's answer")
        return batches

    def ask_names(self, samples: Iterable[int]) -> list[str]:
        """Return samples' names; raise SettingsError for unknown numbers, LostError unanswered, or the feed's error."""
        spec = self.spec
        queries = [m.NameQuery(stream=spec.stream, plan_digest=spec.plan_digest, sample=sample) for sample in samples]
        answers = [(query, self._put(query)) for query in queries]
        return [self._name_of(query, self._wait_answered(answer, "a worker's answer")) for query, answer in answers]

    @staticmethod
    def _name_of(query: m.NameQuery, name: str | None) -> str:
        if name is None:
            raise SettingsError(
                expected=f"the number of a sample of stream {query.stream}, as in a batch's tag",
                got=f"{query.sample}",
                where="tag",
                remedy="Take the number from a row with a sample: rows without one have -1.",
            )
        return name

    def _wait_answered(self, answer: Future[_T], expected: str) -> _T:
        patience_s = self.settings.core.lost_timeout_s
        try:
            return self.wait_for(answer, timeout_s=patience_s)
        except FutureTimeoutError:
            raise LostError(
                expected=f"{expected} within {patience_s:g} s",
                got="none",
                where=f"stream {self.settings.core.stream}",
                remedy="Look whether loaders are there with `loader-server status`, or raise lost_timeout_s.",
            ) from None

    def _put(self, question: m.EpochQuery | m.NameQuery) -> Future[Any]:
        refuse_unsendable(question, "tag" if isinstance(question, m.NameQuery) else "epoch")
        answer = self._answers.expect_answer(question)
        self.outbox.tell(e.QuestionAsked(question))
        return answer

    def wait_for(self, answer: Future[_T], *, of_all: bool = False, timeout_s: float = math.inf) -> _T:
        """Return the answer; raise TimeoutError after `timeout_s`, and the error of a feed that fails or is closed.

        An answer, or its error, that is here counts even then. If it depends on all ranks (`of_all`), raise EndedError
        if they part, the error of `refuse_lost`, or LostError if the coordinator is silent for `lost_timeout_s`.
        """
        until_s = time.monotonic() + timeout_s
        silence = SilentWait(self.settings.core.lost_timeout_s)
        # An answer that is here counts even if the feed has failed since.
        if not answer.done():
            self.outbox.raise_if_over()
        while True:
            try:
                return answer.result(min(_LOOK_S, max(0.0, until_s - time.monotonic())))
            except FutureTimeoutError:
                if time.monotonic() >= until_s:
                    raise
            self.outbox.raise_if_over()
            if of_all:
                if self.outbox.ended is not None and self.outbox.parted:
                    raise self.outbox.ended
                self.refuse_lost()
                silence.look(self.core.attachment.heard_s, _LOOK_S, self.settings.endpoint)

    def wait_for_failure(self, timeout_s: float) -> BaseException | None:
        """Return the error that stopped the feed, or stops it within this time; None if it goes on."""
        until_s = time.monotonic() + timeout_s
        while self.outbox.error is None and (left_s := until_s - time.monotonic()) > 0:
            with contextlib.suppress(FutureTimeoutError):
                Future[None]().result(min(left_s, _LOOK_S))
        return self.outbox.error

    def at_end(self, close: Callable[[], object]) -> None:
        """Have `close` called as the thread ends, or now (errors pass) if it has; it may wait, but not refer to us."""
        self._wires.at_end.append(close)
        if not self._thread.is_alive():
            close()

    def close(self, timeout_s: float) -> None:
        """End the thread and its sockets, waiting at most this long; slots that are still referenced stay valid."""
        self.outbox.close()
        self._wires.end()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def refuse_fork(self) -> None:
        """Raise SettingsError in a process forked from the one with the thread; do nothing in that one."""
        if self._is_forked:
            self.outbox.raise_if_over()

    def lose_thread(self) -> None:
        """Make every later call raise, because this process was forked from the one with the thread."""
        self._is_forked = True
        self.outbox.begin_anew(used_after_fork(self.settings.core.name))

    # --- the thread ---

    def turn(self, ready: set[object]) -> int:
        """Hand events to the core, carry out its orders, and return the next pause in ms; errors of both pass."""
        now_s = time.monotonic()
        events = [*self.outbox.read_facts(), *self._wires.read(ready, now_s)]
        while True:
            events = self._carry_out(self.core.handle(events, now_s))
            if not events:
                return self._pause_ms()

    def _pause_ms(self) -> int:
        # A consumer wakes us only for what the core asked to be woken for, so that taking a batch usually costs it no
        # call to the system.
        if self.outbox.has_facts and (self.outbox.wake_for_slots or self.outbox.wake_for_room):
            return 0  # some came before the core asked to be woken for them, so no wake-up follows
        pause_s = min(self.core.due_s - time.monotonic(), _LONGEST_PAUSE_S)
        return max(0, int(1000 * pause_s) + 1)

    def _carry_out(self, orders: list[i.Instruction]) -> list[e.Event]:
        """Carry out instructions in order, and return the resulting events; errors of the wires pass through."""
        events: list[e.Event] = []
        for order in orders:
            carry_out = self._own_orders.get(type(order))
            if isinstance(order, i.ToCoordinator):
                events += [] if self._wires.coordinator.send(order.message) else [e.CoordinatorAway()]
            elif isinstance(order, i.TakeBack):
                # The batch may have been offered in this very turn, and must be in the outbox to be found.
                self._flush_offers()
                events.append(e.TakenBack(order.seq, self.outbox.take_back(order.seq)))
            elif carry_out is not None:
                carry_out(self, order)
            elif type(order) in self._worker_orders:
                assert self._wires.workers is not None
                events += self._worker_orders[type(order)](self._wires.workers, order)
            else:
                self._pass_on(order)
        # Offers and messages of a turn go together: one lock of the outbox for all offers, one call for each worker.
        self._flush_offers()
        if self._wires.workers is not None:
            events += self._wires.workers.flush()
        # What consumers did meanwhile comes in the same turn: the core learns at once that a batch could not be taken
        # back and that a consumer has taken it.
        if events:
            events = [*events, *self.outbox.read_facts()]
        return events

    # --- orders about consumers and the feed ---

    def _pass_on(self, order: i.Instruction) -> None:
        match order:
            case i.Offer():
                self.memory.note_written(order.slot, order.header.nbytes)
                self._offers.append(order)
            case i.Serve():
                self._flush_offers()
                self.outbox.serve(order.reader, order.head, ended=order.ended)
            case i.Restart():
                self._flush_offers()  # offers of this turn are dropped there as well, and handed back like the rest
                self.outbox.restart(order.reader, order.head)
            case i.EndReading():
                self.log.info("job was ended", at_once=order.at_once, last=order.last)
                self.outbox.end(order.error, at_once=order.at_once, last=order.last, parted=not order.waits)
            case i.WakeFor():
                self.outbox.wake_for_room, self.outbox.wake_for_slots = order.room, order.slots
            case i.Fail():
                self.fail(order.error)
            case i.HangUp():
                self._wires.end()
            case i.WriteLog():
                getattr(self.log, order.level)(order.event, **order.fields)
            case _:
                self._answer(order)

    def _answer(self, order: i.Instruction) -> None:
        match order:
            case i.AnswerState():
                self._answers.answer(order.serial, order.done)
            case i.AnswerSums():
                self._answers.answer(order.serial, order)
            case i.AnswerEnd():
                self._answers.answer(order.serial, order.is_ours)
            case i.AnswerResults():
                self._answers.answer_results(order.answer)
            case i.AnswerQuestion():
                self._answers.answer_question(order.question, order.answer)
            case _:
                raise AssertionError(f"{order} is carried out by nothing")

    def _send_progress(self, order: i.SendProgress) -> None:
        self._wires.coordinator.send(self._heartbeat.make(order.members, self.stream, time.monotonic(), self.log))

    def _renew_coordinator(self, _order: i.RenewCoordinator) -> None:
        self.log.debug("connection to a silent coordinator is made anew")
        try:
            self._wires.coordinator.renew()
        except zmq.ZMQError as error:  # perhaps no descriptor is left; the core will order it again
            self.log.warning("connection to the coordinator cannot be made anew", error=str(error))

    def _answer_attach(self, order: i.AnswerAttach) -> None:
        answer = self._answers.take(order.serial)
        if answer is None:
            return  # the feed failed in this turn, and the caller got that error
        if isinstance(order.answer, BaseException):
            answer.set_exception(order.answer)
        else:
            cursor = order.answer.cursor
            self.standing.trained_to = self.outbox.read_to = (cursor.epoch, cursor.number)
            self.outbox.furthest = NOTHING_READ
            answer.set_result(order.answer)

    def _stand_still(self, _order: i.StandStill) -> None:
        core, (epoch, number) = self.settings.core, self.outbox.stand_still()
        self._wires.coordinator.send(
            m.StandsStill(stream=core.stream, incarnation=core.incarnation, epoch=epoch, number=number)
        )

    def _make_slots(self, order: i.MakeSlots) -> None:
        """Make the slots, or raise OSError without memory for them; warn if they should be shared memory and cannot."""
        # Only now it is known whether this is queue mode, where nobody has a rank.
        rank = None if order.spec.work else self.settings.core.ranks.rank
        self.log = self.log.bind(job=order.spec.job, rank=rank)
        self._wires.make_slots(order.slots, order.spec)
        if self.settings.core.shared_memory and not self.memory.shareable:
            self.log.warning("batches come by TCP", reason=self.memory.why_not_shared)

    def _drop_slots(self, order: i.DropSlots) -> None:
        for slot in order.slots:
            self.memory.drop(slot)

    def _flush_offers(self) -> None:
        if self._offers:
            self.outbox.offer(self._offers)
            self._offers = []

    _own_orders: ClassVar[dict[type, Callable[..., None]]] = {
        i.SendProgress: _send_progress,
        i.RenewCoordinator: _renew_coordinator,
        i.AnswerAttach: _answer_attach,
        i.StandStill: _stand_still,
        i.MakeSlots: _make_slots,
        i.DropSlots: _drop_slots,
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

    def fail(self, error: BaseException) -> None:
        """Raise this error in waiting callers; stop the feed if none did before; log it unless after an Exception."""
        if isinstance(self.outbox.error, Exception):
            pass  # it has stopped already, and the first error counts
        elif isinstance(error, WorldChangedError):
            self.log.info("world is over", reason=error.got)
        else:
            self.log.error("feed stops", error=str(error))
        self._answers.fail(error)
        self.outbox.interrupt(error)

    def _no_coordinator(self) -> StokerError:
        got = self._wires.coordinator.problem or self.core.attachment.last_reason
        return nobody_answers(self.settings.endpoint, got, self.settings.connect_timeout_s)


def _wake(wires: Wires, _dead: object) -> None:
    wires.waker.wake()
