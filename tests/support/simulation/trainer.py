"""A trainer's process: the core that ships and the real outbox, in a shell that does what the receive thread does.

Rules: a turn reads facts, then the coordinator, then each worker's connection (news of it first), and carries out what
the core orders in that order. Consumers run whenever they like, so also in the middle of a turn: between a decision and
what is done about it.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, ClassVar

from shared.errors import LostError
from shared.wire import messages as m
from shared.wire.message_parts import Cursor, DoneSet, SharedSlots
from tests.support.simulation.memory import Memory, Payload, Stamp
from tests.support.simulation.network import Port
from tests.support.simulation.process import Process, Timer
from trainer_client.core import events as e
from trainer_client.core import instructions as i
from trainer_client.core.core import Core
from trainer_client.network.outbox import Outbox, Waiting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tests.support.simulation.consumer import Consumer
    from tests.support.simulation.world import World
    from trainer_client.core.settings import CoreSettings
    from trainer_client.core.stream_spec import StreamSpec

__all__ = ["Interrupted", "Trainer", "WouldWait"]

#: The longest that the receive thread sleeps, whatever the core says.
_LONGEST_PAUSE_S = 1.0


class WouldWait(BaseException):
    """The consumer would wait here, so long at most."""


class Interrupted(BaseException):
    """A signal came at this instruction."""


class _Turnstile(Waiting):
    """Nobody waits in the simulated world, they come again when they are called."""

    def __init__(self, trainer: Trainer) -> None:
        super().__init__()
        self._trainer = trainer

    def wait(self, _bell: object, timeout_s: float) -> None:
        raise WouldWait(float("inf") if timeout_s < 0 else timeout_s)

    def ring(self) -> None:
        self._trainer.poke()


class _Facts(deque[Any]):
    """The deque of facts; a signal may come before something is added."""

    interrupt_next = False

    def append(self, fact: Any) -> None:
        if self.interrupt_next and isinstance(fact, e.Took):
            self.interrupt_next = False
            raise Interrupted
        super().append(fact)


class Trainer(Process):
    """One incarnation of the trainer at a place."""

    def __init__(self, world: World, name: str, settings: CoreSettings) -> None:
        super().__init__(world.scheduler, name, settings.incarnation)
        self.world = world
        self.settings = settings
        self.core = Core(settings)
        self.outbox = Outbox(self.wake)
        self.facts = self.outbox._facts = _Facts()
        self.outbox._waiting = _Turnstile(self)
        self.memory: Memory | None = None
        self.ports: dict[int, Port] = {}
        self.consumer: Consumer | None = None
        self.error: BaseException | None = None
        self.trained_to = (0, 0)
        #: A newer incarnation has its ranks.
        self.replaced = False
        self._lock_bytes: dict[int, int] = {}
        self._spec: StreamSpec | None = None
        self._coordinator = Port(world.network, self, world.COORDINATOR, f"{name}/{self.incarnation}".encode())
        self._id_of: dict[Port, int] = {}
        self._ready: set[int] = set()
        self._offers: list[i.Offer] = []
        self._queued: dict[int, list[Any]] = {}
        self._answers: dict[int, Callable[[Any], None]] = {}
        self._questions: dict[Any, Callable[[Any], None]] = {}
        self._serials = 0
        self._next_turn = Timer(self, self._turn)

    # --- for the consumer ---

    def poke(self) -> None:
        """Something may be there that the consumer waits for."""
        if self.consumer is not None:
            self.consumer.poke()

    def ask_to_attach(
        self, cursor: Cursor | None, answered: Callable[[Any], None], done: DoneSet | None = None
    ) -> None:
        """Attach at this cursor, or in queue mode with what is done."""
        self._serials += 1
        self._answers[self._serials] = answered
        self.outbox.tell(e.AttachAsked(self._serials, cursor, done))

    def ask_state(self, answered: Callable[[Any], None]) -> None:
        """Ask the coordinator what is done."""
        self._serials += 1
        self._answers[self._serials] = answered
        self.outbox.tell(e.StateAsked(self._serials))

    def ask(self, question: m.EpochQuery | m.NameQuery, answered: Callable[[Any], None]) -> None:
        """Ask any worker."""
        self._questions[question] = answered
        self.outbox.tell(e.QuestionAsked(question))

    # --- turns ---

    def wake(self) -> None:
        """Turn soon."""
        self._turn_at(self.scheduler.now_s + self.world.turn_pause_s())

    def notify(self, port: Port) -> None:
        """A socket has something to read."""
        connection_id = self._id_of.get(port)
        if connection_id is not None:
            self._ready.add(connection_id)
        self.wake()

    def _turn_at(self, time_s: float) -> None:
        if time_s < self._next_turn.due_s:
            self._next_turn.set(time_s)

    def _turn(self) -> None:
        now_s = self.scheduler.now_s
        events = [*self.outbox.read_facts(), *self._read_network()]
        core = self.core
        while True:
            orders = core.handle(events, now_s)
            self._consumer_runs()
            events = self._carry_out(orders)
            if not self.alive:
                return
            if not events:
                break
        self.world.checks.on_turn(self)
        if self.outbox.has_facts and (self.outbox.wake_for_slots or self.outbox.wake_for_room):
            self.wake()
        pause_s = min(max(core.due_s - now_s, 0.0), _LONGEST_PAUSE_S)
        self._turn_at(now_s + pause_s + 0.001)

    def _read_network(self) -> Iterable[e.Event]:
        self._coordinator.news.clear()
        for message in self._coordinator.read():
            yield e.CoordinatorSent(message)
        ready, self._ready = sorted(self._ready), set()
        for connection_id in ready:
            port = self.ports[connection_id]
            news, port.news = port.news, []
            for up in news:
                yield e.ConnectionUp(connection_id) if up else e.ConnectionDown(connection_id)
            for message in port.read():
                yield self._came(connection_id, message)

    def _came(self, connection_id: int, message: Any) -> e.Event:
        if isinstance(message, tuple):
            header, payload = message
            return e.WorkerSent(connection_id, header, payload)
        if isinstance(message, m.Welcome):
            assert self.memory is not None
            return e.WorkerSent(
                connection_id, message, message.shared and self._lock_bytes.get(connection_id, 0) in self.memory.locks
            )
        return e.WorkerSent(connection_id, message)

    def _consumer_runs(self) -> None:
        if self.consumer is not None and self.world.races():
            self.consumer.run_early()

    def _carry_out(self, orders: list[i.Instruction]) -> list[e.Event]:
        events: list[e.Event] = []
        doors = self._doors
        for order in orders:
            doors[type(order)](self, order, events)
        self._flush_offers()
        self._flush(events)
        if events:
            events = [*events, *self.outbox.read_facts()]
        return events

    # --- orders: consumers and coordinator ---

    def _to_coordinator(self, order: i.ToCoordinator, events: list[e.Event]) -> None:
        if not self._coordinator.send(order.message):
            events.append(e.CoordinatorAway())

    def _send_progress(self, order: i.SendProgress, _events: list[e.Event]) -> None:
        (epoch, number), (read_epoch, read_number) = self.trained_to, self.outbox.read_to
        self._coordinator.send(
            m.Progress(
                stream=self.settings.stream,
                rank=self.settings.ranks.rank,
                incarnation=self.incarnation,
                epoch=epoch,
                number=number,
                read_epoch=read_epoch,
                read_number=read_number,
                waited_permille=0,
                batches_read=self.outbox.batches_read,
                prefetch=self.core.stream.wants.prefetch,
                wire_us=int(1e6 * self.core.stream.answers.wire.busy_s),
                computed_us=0,
                metrics="",
                members=order.members,
            )
        )

    def _renew_coordinator(self, _order: i.RenewCoordinator, _events: list[e.Event]) -> None:
        self._coordinator.renew()

    def _answer_attach(self, order: i.AnswerAttach, _events: list[e.Event]) -> None:
        self.scheduler.note(self, "attach", order.serial, "is answered:", order.answer)
        if isinstance(order.answer, m.Attached):
            cursor = order.answer.cursor
            self.trained_to = self.outbox.read_to = (cursor.epoch, cursor.number)
        answered = self._answers.pop(order.serial, None)  # None: the feed has failed, and it was told so
        if answered is not None:
            answered(order.answer)

    def _answer_state(self, order: i.AnswerState, _events: list[e.Event]) -> None:
        self._answers.pop(order.serial)(order.done)

    def _answer_question(self, order: i.AnswerQuestion, _events: list[e.Event]) -> None:
        answered = self._questions.pop(order.question, None)
        if answered is not None:
            answered(order.answer)

    def _make_slots(self, order: i.MakeSlots, _events: list[e.Event]) -> None:
        self._spec = order.spec
        self.memory = self.world.memories[self.incarnation] = Memory(order.slots)

    def _drop_slots(self, order: i.DropSlots, _events: list[e.Event]) -> None:
        assert self.memory is not None
        for slot in order.slots:
            self.world.checks.on_drop(self, slot)
            self.memory.slots[slot][:] = [None] * len(self.memory.slots[slot])

    def _offer(self, order: i.Offer, _events: list[e.Event]) -> None:
        self.world.checks.on_offer(self, order)
        self._offers.append(order)

    def _flush_offers(self) -> None:
        if self._offers:
            self.outbox.offer(self._offers)
            self._offers = []

    def _take_back(self, order: i.TakeBack, events: list[e.Event]) -> None:
        self._flush_offers()
        self._consumer_runs()
        events.append(e.TakenBack(order.seq, self.outbox.take_back(order.seq)))

    def _serve(self, order: i.Serve, _events: list[e.Event]) -> None:
        self._flush_offers()
        self._consumer_runs()
        self.outbox.serve(order.reader, order.head, ended=order.ended)

    def _restart(self, order: i.Restart, _events: list[e.Event]) -> None:
        self._flush_offers()
        self._consumer_runs()
        self.outbox.restart(order.reader, order.head)

    def _wake_for(self, order: i.WakeFor, _events: list[e.Event]) -> None:
        self.outbox.wake_for_room, self.outbox.wake_for_slots = order.room, order.slots

    def _fail(self, order: i.Fail, _events: list[e.Event]) -> None:
        self.scheduler.note(self, "FAILS:", order.error)
        self.error = self.error or order.error
        self.world.checks.on_fail(self, order.error)
        self.outbox.interrupt(order.error)
        answers, self._answers = self._answers, {}
        for answered in answers.values():
            answered(order.error)

    def _hang_up(self, _order: i.HangUp, _events: list[e.Event]) -> None:
        """What failed is restarted in any case."""

    def _log(self, order: i.WriteLog, _events: list[e.Event]) -> None:
        self.scheduler.note(self, order.event, order.fields)

    # --- orders: workers ---

    def _open(self, order: i.Open, events: list[e.Event]) -> None:
        if order.endpoint == self.world.UNREACHABLE:
            error = LostError(expected="an endpoint", got=order.endpoint, where="trainer", remedy="Look.")
            events.append(e.ConnectionFailed(order.connection_id, error))
            return
        identity = f"{self.name}/{self.incarnation}/{order.connection_id}".encode()
        port = self.ports[order.connection_id] = Port(self.world.network, self, order.endpoint, identity)
        self._id_of[port] = order.connection_id

    def _close(self, order: i.Close, _events: list[e.Event]) -> None:
        port = self.ports.pop(order.connection_id, None)
        if port is not None:
            del self._id_of[port]
            self._ready.discard(order.connection_id)
            self._queued.pop(order.connection_id, None)
            port.close()

    def _renew(self, order: i.Renew, _events: list[e.Event]) -> None:
        self._queued.pop(order.connection_id, None)
        self.ports[order.connection_id].renew()

    def _greet(self, order: i.Greet, events: list[e.Event]) -> None:
        assert self._spec is not None
        self._lock_bytes[order.connection_id] = order.lock_byte
        hello = m.Hello(
            job=self._spec.job,
            stream=self._spec.stream,
            incarnation=self.incarnation,
            shared=self._shared_slots(order.lock_byte) if self.settings.shared_memory else None,
            verify=self.settings.verify,
            yields=self.settings.verifies,
            seal=None,
        )
        if not self._send(order.connection_id, [*self._queued.pop(order.connection_id, ()), hello]):
            events.append(e.GreetingFailed(order.connection_id))

    def _shared_slots(self, lock_byte: int) -> SharedSlots:
        assert self.memory is not None
        return SharedSlots(self.settings.boot_id, 0, self.incarnation, 0, b"", len(self.memory.slots), 0, lock_byte)

    def _to_worker(self, order: i.ToWorker, _events: list[e.Event]) -> None:
        message = order.message
        if isinstance(message, m.Want):
            self.world.checks.on_want(self, message)
        self._queued.setdefault(order.connection_id, []).append(message)

    def _send(self, connection_id: int, messages: list[Any]) -> bool:
        port = self.ports[connection_id]
        return all(port.send(message) for message in messages)

    def _flush(self, events: list[e.Event]) -> None:
        queued, self._queued = self._queued, {}
        for connection_id, messages in queued.items():
            if not self._send(connection_id, messages):
                events.append(e.ConnectionDown(connection_id))

    # --- orders: payloads ---

    def _write(self, order: i.Write, events: list[e.Event]) -> None:
        assert self.memory is not None
        payload: Payload = order.payload
        self.world.checks.on_trainers_write(self, order.header)
        slot = self.memory.slots[order.header.ticket.slot]
        slot[:] = [payload.stamp] * len(slot)
        events.append(e.Checked(order.connection_id, order.header, payload.whole))

    def _check(self, order: i.Check, events: list[e.Event]) -> None:
        assert self.memory is not None
        slot = self.memory.slots[order.header.ticket.slot]
        whole = all(isinstance(stamp, Stamp) and stamp == slot[0] for stamp in slot)
        events.append(e.Checked(order.connection_id, order.header, whole))

    def _probe(self, order: i.Probe, events: list[e.Event]) -> None:
        assert self.memory is not None
        if order.lock_byte not in self.memory.locks:
            events.append(e.LockGone(order.incarnation))

    _doors: ClassVar[dict[type, Callable[..., None]]] = {
        i.ToCoordinator: _to_coordinator,
        i.SendProgress: _send_progress,
        i.RenewCoordinator: _renew_coordinator,
        i.AnswerAttach: _answer_attach,
        i.AnswerState: _answer_state,
        i.AnswerQuestion: _answer_question,
        i.MakeSlots: _make_slots,
        i.DropSlots: _drop_slots,
        i.Offer: _offer,
        i.Serve: _serve,
        i.Restart: _restart,
        i.TakeBack: _take_back,
        i.WakeFor: _wake_for,
        i.Fail: _fail,
        i.HangUp: _hang_up,
        i.WriteLog: _log,
        i.Open: _open,
        i.Close: _close,
        i.Renew: _renew,
        i.Greet: _greet,
        i.ToWorker: _to_worker,
        i.Write: _write,
        i.Check: _check,
        i.Probe: _probe,
    }
