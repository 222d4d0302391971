"""What one decision of the trainer's core costs, with few and with many workers in the fleet.

`python -m tests.benchmarks.decisions --json`: for each size of fleet a core with the usual settings is fed by workers
that answer one batch at a time; every answer is one decision, together with what the consumer did meanwhile and with
the ticks that fall due. A quarter of the batches is answered late, so that lines, takeovers and hedges are part of it.
Printed are the mean milliseconds of a decision (median of the rounds) and how far the rounds lie apart. Nothing but the
core runs inside the clock, which is the processor's: other work on the machine does not count. `--local` puts all
workers on the trainer's own host, where it talks to every one.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections import deque

from shared.wire import messages as m
from tests.support.lone_core import LoneCore, address, attached, pushed
from trainer_client.core import events as e
from trainer_client.core import instructions as i

FLEETS = (10, 100, 1000)

#: One batch arrives in so many seconds of the core's time.
_PACE_S = 0.002


class Fed(LoneCore):
    """A core whose workers answer; `spent_s` is what its decisions took."""

    def __init__(self, workers: int, *, local: bool, seed: int) -> None:
        super().__init__(slots=40, prefetch=32)
        self.random = random.Random(seed)
        self.pending: deque[m.Want] = deque()
        self.late: deque[m.Want] = deque()
        self.offered: dict[int, i.Offer] = {}
        self.head = 0
        self.decisions = 0
        self.spent_s = 0.0
        listed = tuple(address(one, local=local) for one in range(1, workers + 1))
        self.tell(e.AttachAsked(1, None))
        self.tell(e.CoordinatorSent(attached(workers=listed, batches=10**6, most_batches=10**6)))
        for endpoint in list(self.connection_ids):
            number = int(endpoint.rpartition(":")[2]) - 7000
            self.tell(e.ConnectionUp(self.connection_ids[endpoint]))
            self.welcome(number)

    def tell(self, *events: e.Event, after_s: float = 0.0) -> list[i.Instruction]:
        self.now_s += after_s
        orders, pending = [], list(events)
        while True:
            began_s = time.thread_time()
            made = self.core.handle(pending, self.now_s)
            self.spent_s += time.thread_time() - began_s
            orders += made
            pending = [event for order in made for event in self._carry_out(order)]
            if not pending:
                break
        self.orders = orders
        for one in orders:
            if isinstance(one, i.ToWorker) and isinstance(one.message, m.Want):
                late = self.random.random() < 0.25
                (self.late if late else self.pending).append(one.message)
            elif isinstance(one, i.ToWorker) and isinstance(one.message, m.Ping):
                self._answer(one.connection_id, one.message)
            elif isinstance(one, i.Offer):
                self.offered[one.seq] = one
        return orders

    def _answer(self, connection_id: int, ping: m.Ping) -> None:
        stream = self.core.stream
        assert stream is not None
        worker = stream.connections.worker_at(connection_id)
        held = tuple(worker.asks) if worker is not None else ()
        self.pending.append((connection_id, m.Pong(number=ping.number, tickets=held, sealed=0, waiting=0)))  # type: ignore[arg-type]

    def turn(self) -> None:
        """One answer comes, and the consumer takes what it may."""
        source = self.late if self.late and (not self.pending or self.random.random() < 0.2) else self.pending
        if not source:
            self.now_s += 0.05
            self.tell()
            return
        came = source.popleft()
        facts: list[e.Event] = []
        while self.head in self.offered and len(facts) < 8:
            offer = self.offered.pop(self.head)
            self.head += 1
            facts += [e.Took(offer.seq, offer.slot), e.HandedBack(offer.seq, offer.slot)]
        if isinstance(came, m.Want):
            connection_id = self.connection_ids[f"tcp://127.0.0.1:{7000 + came.worker}"]
            facts.append(e.WorkerSent(connection_id, pushed(came)))
            self.decisions += 1
        else:
            facts.append(e.WorkerSent(*came))
        self.tell(*facts, after_s=_PACE_S)


def measure(workers: int, *, local: bool, decisions: int, seed: int) -> float:
    """Mean milliseconds of a decision."""
    fed = Fed(workers, local=local, seed=seed)
    while fed.decisions < decisions // 4:
        fed.turn()
    fed.decisions, fed.spent_s = 0, 0.0
    while fed.decisions < decisions:
        fed.turn()
    return 1000 * fed.spent_s / fed.decisions


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--decisions", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--local", action="store_true", help="all workers on the trainer's host")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    times: dict[int, list[float]] = {workers: [] for workers in FLEETS}
    for seed in range(options.rounds):
        for workers in FLEETS:  # interleaved: the machine's moods meet all of them
            times[workers].append(measure(workers, local=options.local, decisions=options.decisions, seed=seed))
    medians = {str(workers): round(statistics.median(rounds), 4) for workers, rounds in times.items()}
    spread = max(max(rounds) / min(rounds) - 1 for rounds in times.values())
    if not options.json:
        for workers, rounds in times.items():
            print(
                f"{workers:5} workers: {statistics.median(rounds):.4f} ms a decision "
                f"({min(rounds):.4f} to {max(rounds):.4f})"
            )
    print(json.dumps({"decide_ms": medians, "spread_share": round(spread, 3)}))


if __name__ == "__main__":
    main()
