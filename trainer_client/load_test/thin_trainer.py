"""Thin trainer: a thread that reads batches, and sleeps where a real trainer would compute.

Rules: the first step is not counted, because connections and batches are still being made; a step counts as its nominal
time, so that waking up late lowers utilisation; all other time is waiting or our own cost, and both count.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from shared.errors import StokerError
from trainer_client.connecting import connect
from trainer_client.core.heard_limits import limit_text
from trainer_client.load_test.delivery_audit import Lap
from trainer_client.load_test.report.histogram import Histogram

if TYPE_CHECKING:
    from trainer_client.batch import Batch
    from trainer_client.core.heard_limits import HeardLimits
    from trainer_client.feed import Feed
    from trainer_client.session.batch_iterator import Reading

__all__ = ["ThinRun", "ThinTrainer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ThinRun:
    """Settings of one trainer's run; `step_s` 0 means as fast as possible."""

    endpoint: str
    stream: str
    world: int
    step_s: float
    seconds: float
    prefetch: int
    shared_memory: bool
    keys: str
    connect_timeout_s: float = 60.0


@dataclass(slots=True)
class _Tally:
    """Counts of one trainer."""

    steps: int = 0
    rows: int = 0
    nbytes: int = 0
    compute_s: float = 0.0
    total_s: float = 0.0
    waits: Histogram = field(default_factory=Histogram)
    by_second: dict[int, Histogram] = field(default_factory=lambda: defaultdict(Histogram))


class ThinTrainer(threading.Thread):
    """Trainer that attaches when it is started, and trains from the moment given to `begin`.

    It ends after `seconds`, or at `stop`.
    """

    def __init__(self, run: ThinRun, rank: int, on_ready: threading.Semaphore) -> None:
        super().__init__(name=f"trainer-{rank}", daemon=True)
        self.rank = rank
        self.tally = _Tally()
        self.laps: list[Lap] = []
        self.error = ""
        #: Exit code that belongs to the error.
        self.exit_code = 1
        self._run = run
        self._on_ready = on_ready
        self._go = threading.Event()
        self._began_s = 0.0
        self._stopped = False
        self._first_end_s = 0.0
        self._feed: Feed | None = None
        #: What the coordinator said that limits the test.
        self._limits: HeardLimits | None = None

    def begin(self, at_s: float) -> None:
        """Train from this moment of the monotonic clock on."""
        self._began_s = at_s
        self._go.set()

    def stop(self) -> None:
        """Stop after the step in hand, and end a wait for a batch, but not for attaching; safe from any thread."""
        self._stopped = True
        self._go.set()
        if self._feed is not None:
            self._feed.interrupt(KeyboardInterrupt())

    def run(self) -> None:
        """Attach and train, in the thread; keep an error as text and exit code, unless `stop` caused it.

        Wait before the first lap until all trainers have attached. Release `on_ready` after attaching, and at an error.
        """
        order = self._run
        try:
            self._feed = connect(
                order.endpoint,
                stream=order.stream,
                work="measure",
                rank=self.rank,
                world=order.world,
                prefetch=order.prefetch,
                shared_memory=order.shared_memory,
                keys=order.keys,
                connect_timeout_s=order.connect_timeout_s,
            )
            self._on_ready.release()
            self._limits = self._feed._session.receiver.stream.limits
            with self._feed:
                # Until all trainers of all crews have attached: the first would have the loaders to themselves.
                self._go.wait()
                time.sleep(max(0.0, self._began_s - time.monotonic()))
                while not self._is_over():
                    self._lap(self._feed)
        except KeyboardInterrupt:
            pass  # `stop` raised it in our feed
        except Exception as error:  # in a thread nobody else would see it: the crew reports it, with its exit code
            self.error = f"rank {self.rank}: {error}"
            self.exit_code = error.exit_code if isinstance(error, StokerError) else 1
            self._on_ready.release()

    def _is_over(self) -> bool:
        return self._stopped or time.monotonic() >= self._began_s + self._run.seconds

    def _lap(self, feed: Feed) -> None:
        """Read an epoch to its end, or until time is up, and note which batches came.

        Raise the feed's errors, such as LostError and, after `stop`, KeyboardInterrupt; the lap is not noted then.
        Raise SettingsError if the stream is in queue mode.
        """
        group, left = int(feed.state()["group"]), feed.rounds_left()
        # The lap begins at the start of an epoch, and an epoch is whole groups: rounds over the rounds of a group.
        batches = left // -(-group // self._run.world) * group
        numbers: list[int] = []
        rounds, ended = 0, False
        with feed.open() as reading:
            while not self._is_over():
                batch = self._next(reading)
                if batch is None:
                    ended = True
                    break
                rounds += 1
                if not batch.empty:
                    numbers.append(batch.number)
                self._step(batch)
                feed.trained()
        self.laps.append(
            Lap(
                rank=self.rank,
                lap=len(self.laps),
                batches=batches,
                group=group,
                rounds=rounds,
                ended=ended,
                numbers=tuple(numbers),
            )
        )

    def _next(self, reading: Reading) -> Batch | None:
        """Return the next batch, or None at the end, and record how long it took to come, except before the first step.

        Raise the feed's errors, such as LostError and, after `stop`, KeyboardInterrupt.
        """
        began_s = time.perf_counter()
        batch = next(reading, None)
        waited_us = int(1e6 * (time.perf_counter() - began_s))
        if self._first_end_s and batch is not None:
            self.tally.waits.record(waited_us)
            self.tally.by_second[int(time.monotonic() - self._began_s)].record(waited_us)
        return batch

    def _step(self, batch: Batch) -> None:
        """Sleep as long as an accelerator would compute, and count the batch.

        The times count only from the end of the first step on.
        """
        tally = self.tally
        if self._run.step_s:
            time.sleep(self._run.step_s)
        now_s = time.perf_counter()
        tally.steps += 1
        tally.rows += batch.rows
        tally.nbytes += sum(array.nbytes for array in batch.values())
        if self._first_end_s:
            tally.compute_s += self._run.step_s
            tally.total_s = now_s - self._first_end_s
        else:
            self._first_end_s = now_s

    def _heard_limits(self) -> dict[str, tuple[float, str]]:
        """Return by limit for how many seconds it was heard, and in words what it is and what would help."""
        limits = self._limits
        if limits is None:
            return {}
        return {limit: (seconds, limit_text(limits.answers[limit])) for limit, seconds in limits.seconds.items()}

    def result(self) -> dict[str, Any]:
        """Return its counts and laps as plain values, with its error ("" if none) and exit code (1 even if none)."""
        tally = self.tally
        return {
            "rank": self.rank,
            "error": self.error,
            "exit_code": self.exit_code,
            "steps": tally.steps,
            "rows": tally.rows,
            "nbytes": tally.nbytes,
            "compute_s": tally.compute_s,
            "total_s": tally.total_s,
            "laps": [asdict(lap) for lap in self.laps],
            "limits": self._heard_limits(),
        }
