"""A building thread with all that it works with, in memory."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from loader_server.building.build_thread import Build, BuildThread, Outcome
from loader_server.building.builder import Builder
from loader_server.building.crash_trial import Conviction
from loader_server.building.quarantine import Quarantine
from loader_server.building.read_ahead import ReadAhead
from loader_server.building.send_buffers import SendBuffers
from shared.wire.payload import PayloadEncoding
from tests.support.in_memory import MemorySource, MemoryStream, Steps, memory_want

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

__all__ = ["Bench", "Verdicts"]


class Verdicts:
    """In a trial's place: convicts whom the test names, and notes who was tried."""

    def __init__(self) -> None:
        self.kill: set[int] = set()
        self.error: Exception | None = None
        self.tried: list[tuple[int, int, bytes]] = []
        self.after_each: Callable[[int], object] = bool
        self.closed = 0

    def try_samples(
        self, stream: MemoryStream, epoch: int, samples: Iterable[tuple[int, bytes]]
    ) -> Iterator[Conviction]:
        for sample, raw in samples:
            self.tried.append((epoch, sample, raw))
            if sample in self.kill:
                yield Conviction(sample, stream.identity(sample), "signal SIGSEGV, signal SIGSEGV")
            self.after_each(sample)
        if self.error is not None:
            raise self.error

    def close(self) -> None:
        self.closed += 1


class Bench:
    """A building thread with all that it works with."""

    def __init__(self, folder: Path, source: MemorySource, read_timeout_s: float) -> None:
        self.builder = Builder(MemoryStream(source), Quarantine(folder / "quarantine.jsonl"), Steps())
        self.trial = Verdicts()
        self.steps = Steps()
        self.woken = threading.Semaphore(0)
        self.buffers: list[np.ndarray] = []
        self.thread = BuildThread(
            {"train": self.builder},
            crash_trial=self.trial,
            buffers=SendBuffers(PayloadEncoding(), 0),
            readers=ReadAhead(read_timeout_s),
            deadline=self.steps,
            wake=self.woken.release,
        )

    def build(self, number: int = 1, **how: Any) -> Build:
        sealer = how.pop("sealer", None)
        return Build(b"trainer", memory_want(number, **how), self._buffer, sealer=sealer)

    def _buffer(self, nbytes: int) -> np.ndarray:
        self.buffers.append(np.full(nbytes, 0xA5, np.uint8))
        return self.buffers[-1]

    def outcomes(self, *builds: Build) -> list[Outcome]:
        """Of these builds."""
        for build in builds:
            self.thread.submit(build)
        done: list[Outcome] = []
        while len(done) < len(builds):
            assert self.woken.acquire(timeout=60)
            done += self.thread.take_outcomes()
        assert [outcome.build for outcome in done] == list(builds)
        assert self.thread.load == 0
        return done
