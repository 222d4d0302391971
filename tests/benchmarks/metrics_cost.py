"""What metrics cost: CPU a batch with and without the counting on each side, and a scrape.

    python -m tests.benchmarks.metrics_cost

Rules: CPU time of this process, the best of several runs, for what is wanted is the cost of the code and not the load
of the machine. "With" runs the real counting code in a loop, "without" the loop alone. Budget: 50 us a batch and side.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from loader_server.building.build_counts import BuildCounts, Built, Effort
from shared.wire.batch_layout import Field, fields_of_batch
from shared.wire.message_parts import Ticket, WireShape
from shared.wire.messages import Pushed
from trainer_client.session.epoch_account import Accounts

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["BUDGET_US", "trainer_us", "worker_us"]

BUDGET_US = 50.0
_BATCHES = 2000
_RUNS = 5


def _cpu_us(once: Callable[[int], None]) -> float:
    """CPU of one call, in microseconds."""
    best = float("inf")
    for _ in range(_RUNS):
        began_ns = time.process_time_ns()
        for number in range(_BATCHES):
            once(number)
        best = min(best, (time.process_time_ns() - began_ns) / _BATCHES / 1000)
    return best


def _nothing(_number: int) -> None:
    pass


def trainer_us(rows: int) -> float:
    """A batch's cost in the trainer: clocks, waits, rows and padding of two padded keys."""
    fields = (Field(key="audio", dtype="float32", shape=(None, 80)), Field(key="text", dtype="int32", shape=(None,)))
    accounts = Accounts(fields_of_batch(fields))
    shapes = [WireShape(rows, (("audio", 100 * (bucket + 1)), ("text", 20))) for bucket in range(16)]
    arrays = {"audio_length": np.full(rows, 90, np.int32), "text_length": np.full(rows, 15, np.int32)}
    headers = [_header(shape) for shape in shapes]

    def once(number: int) -> None:
        began_s = time.perf_counter()
        taken_s = time.perf_counter()
        conversion_s = time.perf_counter() - taken_s
        waited = {"at_s": taken_s, "wait_s": taken_s - began_s, "conversion_s": conversion_s}
        accounts.count_read([headers[number % 16]], arrays, **waited)
        accounts.count_step_wait(0, 0.001)
        accounts.count_trained(0, number)

    return _cpu_us(once) - _cpu_us(_nothing)


def _header(shape: WireShape) -> Pushed:
    return Pushed(
        ticket=Ticket(0, 1),
        epoch=0,
        number=0,
        empty=False,
        in_slot=True,
        shape=shape,
        nbytes=10**6,
        digest=1,
        rows=shape.rows - 1,
        masked=1,
        reason="",
        reasons=(),
        build_us=20_000,
        read_us=0,
        held_us=30_000,
        waiting=0,
    )


def worker_us(rows: int) -> float:
    """A batch's cost in a worker: two clocks a row, the cells, the sums, and the clocks of what the want took."""
    counts, lengths = BuildCounts(), np.full(rows, 90, np.int32)

    def once(_number: int) -> None:
        decode_ns = 0
        for _ in range(rows):
            began_ns = time.perf_counter_ns()
            decode_ns += time.perf_counter_ns() - began_ns
        built = Built(
            rows=rows,
            masked=0,
            digest=1,
            build_us=20_000,
            decode_us=decode_ns // 1000,
            read_us=10,
            cells=rows * 100,
            sample_cells=int(lengths.sum()),
            masked_cells=0,
        )
        counts.add(built, 10**6)
        began_s, effort = time.thread_time(), Effort(queued_s=0.01)
        effort.build_cpu_s += time.thread_time() - began_s
        effort.send_cpu_s += time.thread_time() - began_s
        counts.add_effort(effort)

    def without(_number: int) -> None:
        for _ in range(rows):
            pass
        Built(rows=rows, masked=0, digest=1, build_us=20_000)

    return _cpu_us(once) - _cpu_us(without)


def main() -> None:
    """Print the costs."""
    for rows in (8, 32, 100, 250):
        print(f"{rows:4} rows: trainer {trainer_us(rows):5.1f} us, worker {worker_us(rows):5.1f} us a batch")


if __name__ == "__main__":
    main()
