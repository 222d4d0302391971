"""A core without a network: what tests of its rules talk to. Messages and orders are the real ones, the clock a number.

Rules: nothing happens but what a test lets happen; checks of payloads are answered as told, probes find no proof unless
a test asks for one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from shared.wire import messages as m
from shared.wire.batch_layout import BucketShape, Field, layout_of
from shared.wire.message_parts import Cursor, Ticket, WireField, WireShape, WorkerAddress
from trainer_client.core import events as e
from trainer_client.core import instructions as i
from trainer_client.core.core import Core
from trainer_client.core.settings import CoreSettings
from trainer_client.core.upcoming import Position, Ranks

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trainer_client.core.attached_stream import AttachedStream
    from trainer_client.core.upcoming import Entry

__all__ = ["BATCHES", "DIGEST", "LoneCore", "address", "attached"]

BATCHES = 40
DIGEST = "plan-1"
FIELDS = (WireField("audio", "float32", (None,), None),)
SHAPE = WireShape(2, (("audio", 8),))
NBYTES = layout_of(
    (Field(key="audio", dtype="float32", shape=(None,)),), BucketShape(rows=2, lengths={"audio": 8})
).nbytes
T = TypeVar("T")


def address(number: int, *, local: bool = True, incarnation: int = 0) -> WorkerAddress:
    """Worker `number` of the list."""
    boot_id = "here" if local else f"host-{number}"
    return WorkerAddress(f"w{number}", incarnation or number, f"tcp://127.0.0.1:{7000 + number}", boot_id, 0)


def attached(serial: int = 1, *, at: tuple[int, int] = (0, 0), **other: object) -> m.Attached:
    """The coordinator's answer."""
    fields: dict[str, object] = {
        "serial": serial, "job": "digits", "stream": "train", "evaluation": False, "work": None, "book": None,
        "cursor": Cursor(*at, 4, DIGEST), "next_group": 4, "tenure": 1, "batches": BATCHES, "most_batches": BATCHES,
        "fields": FIELDS, "shapes": (SHAPE,),
        "producers": 0, "base_fields": (), "heartbeat_timeout_ms": 2000, "max_bad": 1.0,
        "max_bad_samples": None, "members": 1, "workers": (),
    }  # fmt: skip
    return m.Attached(**{**fields, **other})  # type: ignore[arg-type]


class LoneCore:
    """A core, attached to a stream of BATCHES batches an epoch; `orders` are those of the last call."""

    def __init__(self, *, slots: int = 14, prefetch: int = 4, incarnation: int = 1000, **settings: object) -> None:
        ranks = Ranks(rank=0, replicas=1, world=1)
        self.core = Core(
            CoreSettings(
                job="digits", stream="train", ranks=ranks, incarnation=incarnation, name="here:1", boot_id="here",
                prefetch=prefetch, prefetch_bytes=(slots + 1) * NBYTES, **settings,  # type: ignore[arg-type]
            )
        )  # fmt: skip
        self.now_s = 0.0
        self.orders: list[i.Instruction] = []
        #: The connection of each endpoint, and the endpoint of each connection.
        self.connection_ids: dict[str, int] = {}
        #: What probes are answered with.
        self.lock_is_gone = False

    # --- time and facts ---

    def tell(self, *events: e.Event, after_s: float = 0.0) -> list[i.Instruction]:
        """Let things happen; all that is ordered until nothing follows from it any more."""
        self.now_s += after_s
        self.orders, pending = [], list(events)
        while True:
            orders = self.core.handle(pending, self.now_s)
            self.orders += orders
            pending = [event for order in orders for event in self._carry_out(order)]
            if not pending:
                return self.orders

    def _carry_out(self, order: i.Instruction) -> Iterable[e.Event]:
        if isinstance(order, i.Open):
            self.connection_ids[order.endpoint] = order.connection_id
        elif isinstance(order, i.Probe) and self.lock_is_gone:
            yield e.LockGone(order.incarnation)

    def wait(self, seconds: float, step_s: float = 0.1) -> list[i.Instruction]:
        """Let time pass; all that is ordered meanwhile."""
        until_s, orders = self.now_s + seconds, []
        while self.now_s < until_s - 1e-9:
            orders += self.tell(after_s=min(step_s, until_s - self.now_s))
        self.orders = orders
        return orders

    def ordered(self, kind: type[T]) -> list[T]:
        """The orders of this kind among the last ones."""
        return [order for order in self.orders if isinstance(order, kind)]

    def sent(self, kind: type[T]) -> list[T]:
        """The messages of this kind to workers among the last orders."""
        return [order.message for order in self.ordered(i.ToWorker) if isinstance(order.message, kind)]

    def wants(self) -> list[m.Want]:
        """What was asked for by the last orders."""
        return self.sent(m.Want)

    # --- the coordinator ---

    def attach(self, *workers: WorkerAddress, **facts: object) -> None:
        """Attach, and learn of these workers."""
        self.tell(e.AttachAsked(1, None))
        self.tell(e.CoordinatorSent(attached(workers=tuple(workers), **facts)))

    def members(self, version: int, *workers: WorkerAddress) -> list[i.Instruction]:
        """The list changes."""
        return self.tell(e.CoordinatorSent(m.Members(version=version, workers=tuple(workers))))

    # --- workers ---

    def connection_id(self, number: int) -> int:
        """The connection to worker `number`."""
        return self.connection_ids[address(number).endpoint]

    def greet(self, number: int, *, shared: bool = True, incarnation: int = 0) -> list[i.Instruction]:
        """The connection comes up, and the worker welcomes us."""
        self.tell(e.ConnectionUp(self.connection_id(number)))
        return self.welcome(number, shared=shared, incarnation=incarnation)

    def welcome(self, number: int, *, shared: bool = True, incarnation: int = 0) -> list[i.Instruction]:
        """The worker welcomes us."""
        welcome = m.Welcome(
            worker=f"w{number}", incarnation=incarnation or number, shared=shared, reason="", float32="float32",
            compression="none", sealed_port=0,
        )  # fmt: skip
        return self.tell(e.WorkerSent(self.connection_id(number), welcome, shared))

    def with_workers(self, number: int, *, shared: bool = True, **facts: object) -> list[m.Want]:
        """Attach, with so many workers of this host that serve us, numbered from 1; what is asked for then."""
        self.attach(*(address(worker) for worker in range(1, number + 1)), batches=0, **facts)
        for worker in range(1, number + 1):
            self.greet(worker, shared=shared)
        answer = m.EpochAnswer(stream="train", epoch=1, group=4, batches=BATCHES)
        self.say(1, answer)  # only now is there anything to ask for: all workers are there
        return self.wants()

    def say(self, number: int, message: m.Message, payload: object = None) -> list[i.Instruction]:
        """Worker `number` says something."""
        return self.tell(e.WorkerSent(self.connection_id(number), message, payload))

    def push(self, want: m.Want, **other: object) -> list[i.Instruction]:
        """The worker that was asked pushes the batch; by TCP its payload turns out valid."""
        orders = self.say(want.worker, pushed(want, **other), None if want.in_slot else "payload")
        for order in [order for order in orders if isinstance(order, i.Write | i.Check)]:
            orders = orders + self.tell(e.Checked(order.connection_id, order.header, valid=True))
        self.orders = orders
        return orders

    def pong(self, number: int, ping: int, *tickets: Ticket) -> list[i.Instruction]:
        """Worker `number` says what it holds."""
        return self.say(number, m.Pong(number=ping, tickets=tickets, sealed=0, waiting=0))

    def unbuilt(self, want: m.Want, code: str, got: str = "no") -> list[i.Instruction]:
        """The worker that was asked will not build it."""
        answer = m.Unbuilt(ticket=want.ticket, code=code, expected="a file", got=got, where="w", remedy="Look.")
        return self.say(want.worker, answer)

    # --- what the books say ---

    @property
    def stream(self) -> AttachedStream:
        """The core's books."""
        assert self.core.stream is not None
        return self.core.stream

    def entry(self, seq: int) -> Entry:
        """An upcoming batch."""
        return self.stream.upcoming.entries[seq]

    def offer(self, seq: int) -> i.Offer:
        """The offer of a batch that has come."""
        entry = self.entry(seq)
        assert entry.header is not None
        return i.Offer(seq, entry.slot, entry.batch, entry.header)

    def heard(self, *numbers: int) -> None:
        """A word of each of these workers, which says nothing about what they hold."""
        for number in numbers:
            self.pong(number, 0, *self.tickets(number))

    def tickets(self, number: int) -> tuple[Ticket, ...]:
        """What a worker holds, as it is written here."""
        worker = self.stream.connections.worker_at(self.connection_id(number))
        return tuple(worker.asks) if worker is not None else ()

    def wait_hearing(self, seconds: float, *numbers: int, step_s: float = 0.25) -> list[i.Instruction]:
        """Let time pass in which these workers are heard."""
        until_s, orders = self.now_s + seconds, []
        while self.now_s < until_s - 1e-9:
            for number in numbers:
                self.heard(number)
                orders += self.orders
            orders += self.tell(after_s=min(step_s, until_s - self.now_s))
        self.orders = orders
        return orders

    # --- consumers ---

    def open(self, reader: int = 1, at: tuple[int, int] = (0, 0), taken: int = 0) -> list[i.Instruction]:
        """A reader wants to be served."""
        return self.tell(e.Opened(reader, Position(*at, 4), taken))

    def consume(self, offer: i.Offer, *, keep: bool = False) -> list[i.Instruction]:
        """The consumer takes a batch, and hands it back unless it keeps it."""
        back = () if keep else (e.HandedBack(offer.seq, offer.slot),)
        return self.tell(e.Took(offer.seq, offer.slot), *back)


def pushed(want: m.Want, **other: object) -> m.Pushed:
    """What a worker says of a batch that it built."""
    fields: dict[str, object] = {
        "ticket": want.ticket, "epoch": want.epoch, "number": want.number, "empty": want.empty,
        "in_slot": want.in_slot, "shape": SHAPE, "nbytes": NBYTES, "digest": 1, "rows": 2, "masked": 0,
        "reason": "", "reasons": (),
        "build_us": 1000, "read_us": 0, "held_us": 2000, "waiting": 0,
    }  # fmt: skip
    return m.Pushed(**{**fields, **other})  # type: ignore[arg-type]
