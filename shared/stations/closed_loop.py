"""A job played through in simulated time: how many batches a second its stations let through.

Wants circulate: a trainer asks for as many batches as its window holds, each of the worker that should be through
first by its pace; a worker reads several wants at a time and builds one at a time, in order; the trainer's connection
carries one batch at a time; the trainer takes batches in order, and each batch that it takes makes room for another
want. Times are given, so the rate is what follows from them.

Rules: pure. Large jobs are played at a smaller scale. It takes about 10 µs of CPU for each batch.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

from shared.stations.service_times import READ_AT_A_TIME, pace_s

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

T = TypeVar("T")

__all__ = ["Played", "Sample", "TrainerTimes", "WorkerTimes", "play", "sample"]

#: How many wants that are read a worker has at a time, the one that it builds included; it reads no further then.
_READ_AHEAD = 5

#: Batches played, of which the first half only fills the stations and windows.
_BATCHES = 240
_LEAST_OF_EACH, _MOST_OF_EACH = 40, 240

#: Most trainers and workers that are played; of more, this many stand for all.
_MOST_TRAINERS = 4
_MOST_WORKERS = 16

#: The least pace that counts for whom a trainer asks.
_QUICKEST_S = 0.001


@dataclass(frozen=True, slots=True)
class WorkerTimes:
    """Seconds that a worker takes for each batch."""

    #: In a reader thread.
    read_s: float
    #: In its building thread, without waiting for reads.
    build_s: float


@dataclass(frozen=True, slots=True)
class TrainerTimes:
    """Seconds that a trainer takes for each batch, and how many it asks for ahead."""

    #: Between taking a batch and wanting the next.
    step_s: float
    window: int
    #: For which a batch occupies its connection.
    wire_s: float = 0.0
    #: For the way to a worker and back, which several batches may be on at a time.
    delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Played:
    """The outcome: batches a second of all trainers, and the share of its time that a trainer waits, on average."""

    rate: float
    waited: float


@dataclass(frozen=True, slots=True)
class Sample:
    """Workers and trainers that stand for all of a job, and their part of its rate; workers are paced to fit."""

    workers: Sequence[WorkerTimes]
    trainers: Sequence[TrainerTimes]
    scale: float


def play(workers: Sequence[WorkerTimes], trainers: Sequence[TrainerTimes], *, in_step: bool) -> Played:
    """Return how a job with these workers and trainers goes on once it has begun.

    Trainers `in_step` begin each step together, once all have a batch. Without a worker or a trainer the rate is 0 and
    all waiting; if nothing takes any time, it is infinite, without waiting.
    """
    if not workers or not trainers:
        return Played(rate=0.0, waited=1.0)
    few = sample(workers, trainers)
    played = _Loop(few.workers, few.trainers, in_step=in_step).run()
    return replace(played, rate=played.rate / few.scale)


def sample(workers: Sequence[WorkerTimes], trainers: Sequence[TrainerTimes]) -> Sample:
    """Return at most 4 trainers and 16 workers that stand for all, of which there is at least one each.

    A sample of a sample is the same again.
    """
    few_trainers = _thinned(trainers, _MOST_TRAINERS)
    scale = len(few_trainers) / len(trainers)
    few_workers = _thinned(workers, max(1, min(_MOST_WORKERS, round(len(workers) * scale))))
    # Whole workers only: the rest of the scale goes into their pace.
    slower = len(few_workers) / (len(workers) * scale)
    paced = [WorkerTimes(worker.read_s * slower, worker.build_s * slower) for worker in few_workers]
    return Sample(paced, few_trainers, scale)


def _thinned(many: Sequence[T], most: int) -> list[T]:
    """Return at most `most` of them, evenly spread."""
    if len(many) <= most:
        return list(many)
    return [many[(2 * at + 1) * len(many) // (2 * most)] for at in range(most)]


@dataclass(slots=True, eq=False)
class _PlayedWant:
    """A batch on its way."""

    trainer: _PlayedTrainer
    worker: _PlayedWorker
    #: The worker's place among all.
    at: int
    number: int
    is_read: bool = False


@dataclass(slots=True, eq=False)
class _PlayedWorker:
    """A worker in play: its wants wait, are read and are built."""

    times: WorkerTimes
    waiting: deque[_PlayedWant] = field(default_factory=deque)
    #: Wants that are being read or have been, in the order in which they are built.
    at_hand: deque[_PlayedWant] = field(default_factory=deque)
    #: How many of them are being read.
    unread: int = 0
    is_building: bool = False


@dataclass(slots=True, eq=False)
class _PlayedTrainer:
    """A trainer in play: it asks, receives, takes and steps."""

    times: TrainerTimes
    #: Its place among all, and how many batches each worker owes.
    at: int
    owed: list[int]
    asked: int = 0
    taken: int = 0
    arrived: set[int] = field(default_factory=set)
    is_stepping: bool = False
    wire_free_s: float = 0.0
    #: Since when it waits, and for how long it has waited.
    idle_s: float = 0.0
    waited_s: float = 0.0


class _Loop:
    """The events in order of time, until as many batches were taken as are played."""

    def __init__(self, workers: Sequence[WorkerTimes], trainers: Sequence[TrainerTimes], *, in_step: bool) -> None:
        self._in_step = in_step
        self._workers = [_PlayedWorker(times) for times in workers]
        self._paces_s = [max(pace_s(times.read_s, times.build_s), _QUICKEST_S) for times in workers]
        self._trainers = [_PlayedTrainer(times, at, [0] * len(workers)) for at, times in enumerate(trainers)]
        #: Time, order of making, and what happens then.
        self._events: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._made = 0
        self._now_s = 0.0
        #: Trainers in step that have finished the step, and batches that all trainers have taken.
        self._finished = self._taken = 0

    def run(self) -> Played:
        """Play and return the outcome of the second half; the rate is infinite if nothing takes any time."""
        window = max(trainer.times.window for trainer in self._trainers)
        of_each = max(_LEAST_OF_EACH, _BATCHES // len(self._trainers), min(_MOST_OF_EACH, 4 * window))
        most = of_each * len(self._trainers)
        for trainer in self._trainers:
            self._ask(trainer)
        self._go_on(most // 2)
        began_s, taken, waited_s = self._now_s, self._taken, self._waited_s()
        self._go_on(most)
        over_s = self._now_s - began_s
        if not over_s:  # nothing takes any time
            return Played(rate=float("inf"), waited=0.0)
        waited = (self._waited_s() - waited_s) / over_s / len(self._trainers)
        return Played(rate=(self._taken - taken) / over_s, waited=waited)

    def _waited_s(self) -> float:
        return sum(
            trainer.waited_s + (0.0 if trainer.is_stepping else self._now_s - trainer.idle_s)
            for trainer in self._trainers
        )

    def _go_on(self, until: int) -> None:
        while self._taken < until:
            self._now_s, _, happen, subjects = heapq.heappop(self._events)
            happen(*subjects)

    def _after(self, delay_s: float, happen: Callable[..., None], *subjects: object) -> None:
        self._made += 1
        heapq.heappush(self._events, (self._now_s + delay_s, self._made, happen, subjects))

    # --- wants ---

    def _ask(self, trainer: _PlayedTrainer) -> None:
        owed, paces_s = trainer.owed, self._paces_s
        # Each trainer breaks ties in an order of its own.
        order = [*range(trainer.at % len(owed), len(owed)), *range(trainer.at % len(owed))]
        while trainer.asked < trainer.taken + trainer.times.window:
            at = min(order, key=lambda at: ((owed[at] + 1) * paces_s[at], owed[at]))
            owed[at] += 1
            want = _PlayedWant(trainer, self._workers[at], at, trainer.asked)
            trainer.asked += 1
            self._after(trainer.times.delay_s / 2, self._receive, want)

    def _receive(self, want: _PlayedWant) -> None:
        want.worker.waiting.append(want)
        self._feed(want.worker)

    def _feed(self, worker: _PlayedWorker) -> None:
        while worker.waiting and worker.unread < READ_AT_A_TIME and len(worker.at_hand) - worker.unread < _READ_AHEAD:
            want = worker.waiting.popleft()
            worker.at_hand.append(want)
            worker.unread += 1
            self._after(worker.times.read_s, self._finish_reading, want)
        if not worker.is_building and worker.at_hand and worker.at_hand[0].is_read:
            worker.is_building = True
            self._after(worker.times.build_s, self._push, worker.at_hand[0])

    def _finish_reading(self, want: _PlayedWant) -> None:
        want.is_read = True
        want.worker.unread -= 1
        self._feed(want.worker)

    def _push(self, want: _PlayedWant) -> None:
        worker, trainer = want.worker, want.trainer
        worker.at_hand.popleft()
        worker.is_building = False
        self._feed(worker)
        trainer.wire_free_s = max(trainer.wire_free_s, self._now_s) + trainer.times.wire_s
        self._after(trainer.wire_free_s - self._now_s + trainer.times.delay_s / 2, self._arrive, want)

    # --- batches ---

    def _arrive(self, want: _PlayedWant) -> None:
        trainer, at = want.trainer, want.at
        trainer.owed[at] -= 1
        trainer.arrived.add(want.number)
        self._take(trainer)

    def _take(self, trainer: _PlayedTrainer) -> None:
        if trainer.is_stepping or trainer.taken not in trainer.arrived:
            return
        trainer.arrived.remove(trainer.taken)
        trainer.taken += 1
        self._taken += 1
        trainer.waited_s += self._now_s - trainer.idle_s
        trainer.is_stepping = True
        self._ask(trainer)
        self._after(trainer.times.step_s, self._finish_step, trainer)

    def _finish_step(self, trainer: _PlayedTrainer) -> None:
        self._finished += 1
        if not self._in_step:
            self._want_next([trainer])
        elif self._finished == len(self._trainers):
            self._finished = 0
            self._want_next(self._trainers)

    def _want_next(self, trainers: Sequence[_PlayedTrainer]) -> None:
        for trainer in trainers:
            trainer.is_stepping, trainer.idle_s = False, self._now_s
        for trainer in trainers:
            self._take(trainer)
