"""What the stamps of a batch cost: `python -m tests.benchmarks.batch_stamps`.

Each side stamps a batch as its real code does, over and over; the least of seven rounds counts. `--json` prints one
object: µs a batch at a trainer and at a worker.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import TYPE_CHECKING

from loader_server.tracing.want_stamps import WantStamps
from shared.tracing.ring import StampKind, StampRing, bare_key, stamp_key
from shared.wire.message_parts import Ticket, WireShape
from shared.wire.messages import Pushed, Want

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["cost_at_trainer_us", "cost_at_worker_us", "main"]

_ROUNDS = 7
_BATCHES = 2_000

_WANT = Want(
    job="digits", stream="train", epoch=3, number=4217, empty=False, group=8, plan_digest="p", attempt=0,
    trainer=2**62, worker=2**61, ticket=Ticket(3, 17), in_slot=True, urgent=False,
)  # fmt: skip
_PUSHED = Pushed(
    ticket=Ticket(3, 17), epoch=3, number=4217, empty=False, in_slot=True, shape=WireShape(8, ()), nbytes=4096,
    digest=0, rows=8, masked=0, reason="", reasons=(), build_us=900, read_us=0, held_us=1000, waiting=0,
)  # fmt: skip
_AT_WORKER = (
    StampKind.RECEIVED, StampKind.READ, StampKind.BEGUN, StampKind.BUILT, StampKind.WRITTEN, StampKind.PUSHED,
)  # fmt: skip


def _least_us(stamp_batch: Callable[[], None]) -> float:
    """Return the least time that one call takes, in µs, over seven rounds of many."""
    best_s = float("inf")
    for _ in range(_ROUNDS):
        began_s = time.perf_counter()
        for _ in range(_BATCHES):
            stamp_batch()
        best_s = min(best_s, time.perf_counter() - began_s)
    return 1e6 * best_s / _BATCHES


def cost_at_worker_us() -> float:
    """Return what the six stamps of a want cost a worker, in µs."""
    stamps = WantStamps()

    def stamp_batch() -> None:
        key = stamps.key(_WANT)
        for kind in _AT_WORKER:
            stamps.stamp(kind, time.monotonic_ns(), key)

    return _least_us(stamp_batch)


def cost_at_trainer_us() -> float:
    """Return what the five stamps of a batch cost a trainer, in µs."""
    stamp, want = StampRing().stamp, _WANT

    def stamp_batch() -> None:
        key = stamp_key(want.number, want.epoch, want.ticket, want.attempt, want.worker)
        stamp(StampKind.ASKED, time.monotonic_ns(), key)
        stamp(StampKind.ARRIVED, time.monotonic_ns(), stamp_key(_PUSHED.number, _PUSHED.epoch, _PUSHED.ticket))
        key = stamp_key(_PUSHED.number, _PUSHED.epoch, _PUSHED.ticket)
        stamp(StampKind.OFFERED, time.monotonic_ns(), key)
        stamp(StampKind.TAKEN, time.monotonic_ns(), key, 0)
        stamp(StampKind.TRAINED, time.monotonic_ns(), bare_key(want.number, want.epoch), want.number + 1)

    return _least_us(stamp_batch)


def main() -> int:
    """Print what stamps cost each side; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    costs = {"trainer_us": round(cost_at_trainer_us(), 2), "worker_us": round(cost_at_worker_us(), 2)}
    print(json.dumps(costs) if options.json else f"trainer {costs['trainer_us']} µs, worker {costs['worker_us']} µs")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
