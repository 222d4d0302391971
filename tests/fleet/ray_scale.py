"""How a job's number of workers follows a trainer that first is fast, and then slow.

A batch takes a worker as long to build as its transform sleeps, here longer than elsewhere, to be far above what a busy
machine adds. So the fewest workers with which a trainer hardly waits are known. The trainer reads epoch after epoch, at
its pace. The status says how many workers are wanted and how many are there, and how long trainers wait. The way back
has no bound of time, as the number goes down slowly on purpose.
"""

from __future__ import annotations

import math
import threading
import time
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import trainer_client
from tests.fleet.job import BUILD_S, SAMPLE_S
from tests.support.loaders import ask, wait_until

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["MOST_CHANGES", "RIGHT_WITHIN_S", "Looks", "measure_scale", "slow_down"]

#: How soon the right number of workers has to be there, once the trainer reads, and by how many changes.
RIGHT_WITHIN_S, MOST_CHANGES = 60.0, 3
#: How much longer a batch takes to build here.
_SLOWER = 4
#: How many workers a fast trainer keeps busy, and a slow one: between two numbers, not beside one.
_FAST, _SLOW = 3.4, 0.5
#: How long trainers may wait, in thousandths.
_MOST_WAITING = 20
#: How long the number has to stay.
_STAYS_S = 15.0


@dataclass
class Looks:
    """What was seen of the number of workers that are wanted."""

    #: The number at each look.
    seen: list[int] = field(default_factory=list)

    @property
    def changes(self) -> list[int]:
        """Return each number that differs from the one before it."""
        return [later for number, later in pairwise(self.seen) if later != number]

    @property
    def reversals(self) -> int:
        """Return how often the number went back after it had gone the other way."""
        numbers = self.seen[:1] + self.changes
        steps = [later - number for number, later in pairwise(numbers)]
        return sum(step * following < 0 for step, following in pairwise(steps))


class _Trainer(threading.Thread):
    """A trainer that reads until it is ended, and takes `step_s` for each batch."""

    def __init__(self, endpoint: str, keys: Path) -> None:
        super().__init__(daemon=True)
        self.step_s = _SLOWER * BUILD_S / _FAST
        self._endpoint, self._keys = endpoint, keys
        self._ends = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            with trainer_client.connect(self._endpoint, keys=str(self._keys), shared_memory=False) as feed:
                while not self._ends.is_set():
                    self._read_epoch(feed)
        except BaseException as error:
            self.error = error

    def _read_epoch(self, feed: trainer_client.Feed) -> None:
        with feed.open() as batches:
            for _ in batches:
                if self._ends.wait(self.step_s):
                    return
                feed.trained()

    def end(self) -> None:
        """End it, and raise what it has met."""
        self._ends.set()
        self.join(60)
        if self.error is not None:
            raise self.error


def slow_down(job: Path) -> Path:
    """Have the transform of a job take longer; return the job file."""
    module = job.parent / "features.py"
    before = module.read_text()
    after = before.replace(f"sleep({SAMPLE_S:g})", f"sleep({_SLOWER * SAMPLE_S:g})")
    assert after != before
    module.write_text(after)
    return job


def measure_scale(endpoint: str, keys: Path) -> dict[str, Any]:
    """Return how soon there is the right number for a fast trainer and then for a slow one, by how many changes."""
    trainer = _Trainer(endpoint, keys)
    trainer.start()
    try:
        up = _follow(endpoint, keys, math.ceil(_FAST))
        trainer.step_s = _SLOWER * BUILD_S / _SLOW
        down = _follow(endpoint, keys, math.ceil(_SLOW))
    finally:
        trainer.end()
    return up | {"back": down}


def _follow(endpoint: str, keys: Path, right: int) -> dict[str, Any]:
    """Look until the right number of workers is there and trainers hardly wait, and a while longer."""
    began_s, looks = time.monotonic(), Looks()
    right_s = math.inf

    def is_over() -> bool:
        nonlocal right_s
        report, now_s = ask(endpoint, keys=str(keys)), time.monotonic()
        workers = sum(worker["silent_s"] <= 2.0 for worker in report["workers"])
        # Before any is wanted, those that are there count.
        wanted = report.get("workers_wanted")
        looks.seen.append(max(1, workers) if wanted is None else wanted)
        waited = report["streams"]["train"]["waited_permille"]
        if workers != right:
            right_s = math.inf
        elif math.isinf(right_s):
            right_s = now_s
        return now_s - right_s >= _STAYS_S and waited is not None and waited < _MOST_WAITING

    wait_until(is_over, f"{right} workers", 240)
    return {
        "workers": right,
        "right_after_s": round(right_s - began_s, 1),
        "changes": len(looks.changes),
        "reversals": looks.reversals,
    }
