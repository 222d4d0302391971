"""Do many trainers keep many workers busy? Real cores and real worker queues on a virtual clock, without a network.

`python -m tests.benchmarks.fleet --json`: 64 trainers with greedy consumers and 100 workers that take 0.1 s a batch
could carry 1 000 batches a second between them; printed is what share of that they carried in each second, and from the
third on. `--prefetch` is how many batches a trainer asks for ahead. Nothing fails here, as it does in
`tests.faults.simulate`: messages take half a millisecond, and a consumer takes a batch as soon as its turn has come.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from loader_server.wants.open_wants import WantQueue
from loader_server.wants.tickets import Tickets
from shared.wire import messages as m
from tests.support.lone_core import NBYTES, address, attached, pushed
from trainer_client.core import events as e
from trainer_client.core import instructions as i
from trainer_client.core.core import Core
from trainer_client.core.settings import CoreSettings
from trainer_client.core.upcoming import Position, Ranks

if TYPE_CHECKING:
    from shared.wire.message_parts import Ticket

_WAY_S = 0.0005


@dataclass
class FleetWorker:
    """A queue in which trainers have their turns, and one builder."""

    number: int
    queue: WantQueue[int, m.Want] = field(default_factory=WantQueue)
    tickets: dict[int, Tickets] = field(default_factory=dict)
    waiting: dict[tuple[int, Ticket], m.Want] = field(default_factory=dict)
    building: m.Want | None = None

    def held(self, trainer: int) -> tuple[Ticket, ...]:
        """The open tickets of a trainer."""
        return self.tickets[trainer].held() if trainer in self.tickets else ()


class FleetTrainer:
    """A core, and a consumer that takes what has come as soon as it is its turn."""

    def __init__(self, number: int, prefetch: int) -> None:
        self.number = number
        ranks = Ranks(rank=0, replicas=1, world=1)
        self.core = Core(
            CoreSettings(
                job="digits", stream="train", ranks=ranks, incarnation=number, name=f"t{number}", boot_id="t",
                prefetch=prefetch, prefetch_bytes=(prefetch + 12) * NBYTES,
            )
        )  # fmt: skip
        self.connection_ids: dict[int, int] = {}
        self.offered: dict[int, i.Offer] = {}
        self.head = 0
        self.woken_s = 0.0


class Fleet:
    """All of them, and a heap of what is going to happen."""

    def __init__(self, trainers: int, workers: int, *, prefetch: int, build_s: float) -> None:
        self.now_s = 0.0
        self.build_s = build_s
        self.delivered: list[float] = []
        self._serials = itertools.count()
        self._heap: list[tuple[float, int, object, tuple[object, ...]]] = []
        self.workers = {number: FleetWorker(number) for number in range(1, workers + 1)}
        self.trainers = {number: FleetTrainer(number, prefetch) for number in range(1, trainers + 1)}
        self._listed = tuple(address(number, local=False) for number in self.workers)
        for trainer in self.trainers.values():
            self._later(0.0, self._start, trainer)

    def _later(self, after_s: float, act: object, *arguments: object) -> None:
        heapq.heappush(self._heap, (self.now_s + after_s, next(self._serials), act, arguments))

    def run(self, seconds: float) -> None:
        """Let so much virtual time pass."""
        while self._heap and self._heap[0][0] < seconds:
            self.now_s, _, act, arguments = heapq.heappop(self._heap)
            act(*arguments)  # type: ignore[operator]

    # --- trainers ---

    def _start(self, trainer: FleetTrainer) -> None:
        self._tell(trainer, e.AttachAsked(1, None))
        plenty = attached(workers=self._listed, batches=10**6, most_batches=10**6)
        self._tell(trainer, e.CoordinatorSent(plenty))
        self._tell(trainer, e.Opened(1, Position(0, 0, 4), 0))

    def _tell(self, trainer: FleetTrainer, *events: e.Event) -> None:
        pending = list(events)
        while True:
            orders = trainer.core.handle(pending, self.now_s)
            for order in orders:
                self._carry_out(trainer, order)
            pending = self._consume(trainer)
            if not pending:
                break
        if trainer.core.due_s > trainer.woken_s or trainer.woken_s <= self.now_s:
            trainer.woken_s = max(trainer.core.due_s, self.now_s + 0.001)
            self._later(trainer.woken_s - self.now_s, self._wake, trainer, trainer.woken_s)

    def _wake(self, trainer: FleetTrainer, due_s: float) -> None:
        if due_s == trainer.woken_s:
            self._tell(trainer)

    def _consume(self, trainer: FleetTrainer) -> list[e.Event]:
        facts: list[e.Event] = []
        while trainer.head in trainer.offered:
            offer = trainer.offered.pop(trainer.head)
            trainer.head += 1
            self.delivered.append(self.now_s)
            facts += [e.Took(offer.seq, offer.slot), e.HandedBack(offer.seq, offer.slot)]
        return facts

    def _carry_out(self, trainer: FleetTrainer, order: i.Instruction) -> None:
        if isinstance(order, i.Open):
            trainer.connection_ids[order.connection_id] = int(order.endpoint.rpartition(":")[2]) - 7000
            self._later(_WAY_S, self._tell, trainer, e.ConnectionUp(order.connection_id))
        elif isinstance(order, i.Greet):
            self._later(2 * _WAY_S, self._welcome, trainer, order.connection_id)
        elif isinstance(order, i.ToWorker):
            worker = self.workers[trainer.connection_ids[order.connection_id]]
            self._later(_WAY_S, self._receive, worker, trainer, order.connection_id, order.message)
        elif isinstance(order, i.Offer):
            trainer.offered[order.seq] = order
        elif isinstance(order, i.TakeBack):
            won = trainer.offered.pop(order.seq, None) is not None
            self._later(0.0, self._tell, trainer, e.TakenBack(order.seq, won))
        elif isinstance(order, i.Write):
            self._later(0.0, self._tell, trainer, e.Checked(order.connection_id, order.header, valid=True))

    def _welcome(self, trainer: FleetTrainer, connection_id: int) -> None:
        number = trainer.connection_ids[connection_id]
        said = m.Welcome(
            worker=f"w{number}", incarnation=number, shared=False, reason="", float32="float32", compression="none",
            sealed_port=0,
        )  # fmt: skip
        self._tell(trainer, e.WorkerSent(connection_id, said, payload=False))

    # --- workers ---

    def _receive(self, worker: FleetWorker, trainer: FleetTrainer, connection_id: int, message: m.Message) -> None:
        if isinstance(message, m.Want):
            if worker.tickets.setdefault(trainer.number, Tickets()).accept(message.ticket):
                worker.waiting[trainer.number, message.ticket] = message
                worker.queue.put(trainer.number, message, urgent=message.urgent)
                self._build(worker)
        elif isinstance(message, m.Cancel):
            self._cancel(worker, trainer, connection_id, message.ticket)
        elif isinstance(message, m.Ping):
            held = worker.held(trainer.number)
            pong = m.Pong(number=message.number, tickets=held, sealed=0, waiting=self._waiting(worker))
            self._later(_WAY_S, self._tell, trainer, e.WorkerSent(connection_id, pong))

    def _cancel(self, worker: FleetWorker, trainer: FleetTrainer, connection_id: int, ticket: Ticket) -> None:
        want = worker.waiting.pop((trainer.number, ticket), None)
        if want is not None and worker.queue.remove(trainer.number, want):
            worker.tickets[trainer.number].answer(ticket)
            self._later(_WAY_S, self._tell, trainer, e.WorkerSent(connection_id, m.Cancelled(ticket=ticket)))

    @staticmethod
    def _waiting(worker: FleetWorker) -> int:
        return len(worker.queue) + (worker.building is not None)

    def _build(self, worker: FleetWorker) -> None:
        if worker.building is None:
            worker.building = worker.queue.take()
            if worker.building is not None:
                del worker.waiting[worker.building.trainer, worker.building.ticket]
                self._later(self.build_s, self._finish, worker, worker.building)

    def _finish(self, worker: FleetWorker, want: m.Want) -> None:
        trainer = self.trainers[want.trainer]
        worker.tickets[want.trainer].answer(want.ticket)
        worker.building = None
        connection_id = next(
            connection_id for connection_id, number in trainer.connection_ids.items() if number == worker.number
        )
        build_us = int(1e6 * self.build_s)
        header = pushed(want, build_us=build_us, waiting=self._waiting(worker))
        self._later(_WAY_S, self._tell, trainer, e.WorkerSent(connection_id, header, "payload"))
        self._build(worker)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainers", type=int, default=64)
    parser.add_argument("--workers", type=int, default=100)
    parser.add_argument("--prefetch", type=int, default=16)
    parser.add_argument("--build-s", type=float, default=0.1)
    parser.add_argument("--seconds", type=int, default=12)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    fleet = Fleet(options.trainers, options.workers, prefetch=options.prefetch, build_s=options.build_s)
    fleet.run(options.seconds)
    most = options.workers / options.build_s
    shares = [
        round(sum(second <= at_s < second + 1 for at_s in fleet.delivered) / most, 3)
        for second in range(options.seconds)
    ]
    if not options.json:
        print("share of what the workers could carry, second by second:", *shares)
    steady = shares[2:]
    print(
        json.dumps({"prefetch": options.prefetch, "share": round(sum(steady) / len(steady), 3), "worst": min(steady)})
    )


if __name__ == "__main__":
    main()
