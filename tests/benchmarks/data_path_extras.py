"""What the data path benchmark measures beside throughput: memory over many batches, and many slow workers.

Rules: memory is looked at from outside, as the kernel counts it: of the trainer all resident pages, slots included; of
the worker what is its own, for the slots that it writes are the trainer's.
"""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

import trainer_client
from tests.benchmarks.data_path_payloads import PAYLOADS
from tests.benchmarks.data_path_stoker import loaders, make_job

if TYPE_CHECKING:
    from trainer_client import Feed

__all__ = ["grown_mb", "scaling"]

#: Memory grows at first, up to the slots and to what allocators keep.
_SETTLING = 500
_BATCHES = 10_000

_PAUSE_S = 0.05
_SCALING_S = 3.0


def grown_mb() -> dict[str, float]:
    """Megabytes that trainer and worker grew by over 10 000 batches of changing shape; slots the trainer's included."""
    with tempfile.TemporaryDirectory(prefix="stoker-growth-") as folder:
        job = make_job(Path(folder) / "job", PAYLOADS["dict_bucketed"].stream)
        with loaders(job) as endpoint, trainer_client.connect(endpoint) as feed:
            _read(feed, _SETTLING)
            trainer, worker = _resident_mb(), _worker_mb()
            _read(feed, _BATCHES)
            return {
                "trainer_growth_mb": round(_resident_mb() - trainer, 2),
                "worker_growth_mb": round(_worker_mb() - worker, 2),
            }


def _read(feed: Feed, batches: int) -> None:
    left = batches
    while left:
        with feed.open() as reading:
            for _ in reading:
                left -= 1
                if not left:
                    return


def _resident_mb() -> float:
    return psutil.Process().memory_info().rss / 1e6


def _worker_mb() -> float:
    (worker,) = (child for child in psutil.Process().children() if "worker" in child.cmdline())
    status = Path(f"/proc/{worker.pid}/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) / 1e3


def scaling() -> dict[str, float]:
    """Batches a second from 1, 2, 4 and 8 workers that sleep 50 ms for each."""
    stream = PAYLOADS["tokens_small"].stream.replace("6400000", "640000") + f'\npause = "{1000 * _PAUSE_S:g} ms"'
    with tempfile.TemporaryDirectory(prefix="stoker-scaling-") as folder:
        job = make_job(Path(folder) / "job", stream)
        return {str(workers): round(_rate(job, workers), 2) for workers in (1, 2, 4, 8)}


def _rate(job: Path, workers: int) -> float:
    with ExitStack() as stack:
        endpoint = stack.enter_context(loaders(job, workers))
        feed = stack.enter_context(trainer_client.connect(endpoint, prefetch=4 * workers))
        reading = stack.enter_context(feed.open())
        for _ in range(8 * workers):
            next(reading)
        batches, began_s = 0, time.perf_counter()
        while time.perf_counter() - began_s < _SCALING_S:
            next(reading)
            batches += 1
        return batches / (time.perf_counter() - began_s)
