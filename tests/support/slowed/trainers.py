"""Trainers in processes of their own that step for as long as the delays say, each alone or behind a barrier."""

from __future__ import annotations

import multiprocessing
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import BrokenBarrierError
from typing import TYPE_CHECKING, Any

import trainer_client
from tests.support.slowed.delays import Delays

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.synchronize import Barrier
    from pathlib import Path

__all__ = ["SlowedTrainers", "TrainerSettings", "slowed_trainers"]

_LONGEST_S = 60.0


class SlowedTrainers:
    """The running processes, and how many batches they have taken in all."""

    def __init__(self, processes: list[Any], counts: list[Any]) -> None:
        self.processes = processes
        self._counts = counts

    def taken(self) -> int:
        """Return the batches taken so far."""
        return sum(count.value for count in self._counts)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerSettings:
    """What all trainers share; `delays` is the file, and with `tells` it calls `computed` before it waits."""

    endpoint: str
    delays: Path
    ranks: int
    prefetch: int
    prefetch_bytes: int
    in_slots: bool
    tells: bool


@contextmanager
def slowed_trainers(settings: TrainerSettings, *, collective: bool) -> Iterator[SlowedTrainers]:
    """Trainers for the length of a block; with `collective` they wait for each other in each step."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(settings.ranks) if collective else None
    counts = [context.Value("q", 0, lock=False) for _ in range(settings.ranks)]
    processes = [
        context.Process(target=_train, args=(settings, rank, barrier, count), daemon=True)
        for rank, count in enumerate(counts)
    ]
    for process in processes:
        process.start()
    try:
        yield SlowedTrainers(processes, counts)
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.join(20)
            if process.is_alive():
                process.kill()
                process.join(20)


def _train(settings: TrainerSettings, rank: int, barrier: Barrier | None, count: Any) -> None:
    """Train until the process is ended: `rank-N-step_s` of sleep for each batch, and none while `pause` is set."""
    delays = Delays(settings.delays)
    with trainer_client.connect(
        settings.endpoint,
        rank=rank,
        world=settings.ranks,
        prefetch=settings.prefetch,
        prefetch_bytes=settings.prefetch_bytes,
        shared_memory=settings.in_slots,
    ) as feed:
        while True:
            for _ in feed:
                count.value += 1
                time.sleep(delays.get_s(f"rank-{rank}-step_s"))
                if settings.tells:
                    feed.computed()
                if barrier is not None:
                    with suppress(BrokenBarrierError):  # the other is being ended
                        barrier.wait(_LONGEST_S)
                while delays.get_s("pause"):
                    time.sleep(0.05)
