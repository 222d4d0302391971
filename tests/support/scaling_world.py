"""A small world of queues for the number of workers: builds, a wire, windows and steps, in simulated time.

Trainers have up to `window` batches asked for or ready. Workers build one at a time, first come first served; built
batches cross one wire, one after the other. `run` looks at the rule twice a second and carries out what it wants:
workers come `comes_after_s` later, within the bounds, and go as soon as they have built what they have in hand.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count, pairwise

from loader_server.coordinator.pace.pace_record import JobPace
from loader_server.coordinator.pace.workers_wanted import WorkersWanted

__all__ = ["ScalingWorld"]

LOOK_S = 0.5

#: Seconds that something takes in this world as it is now.
Seconds = Callable[["ScalingWorld"], float]


@dataclass(slots=True)
class _Trainer:
    ready: int = 0
    #: Since when it waits; None while it trains, or pauses.
    waits_since_s: float | None = None


@dataclass
class ScalingWorld:
    """The world, and in `history` the (time, number) of each change of what is wanted."""

    build_s: Seconds
    step_s: Seconds
    seed: int = 0
    workers: int = 1
    least: int = 1
    most: int = 1000
    trainers: int = 1
    window: int = 64
    #: Time of a batch on the wire, which carries one at a time.
    wire_s: float = 0.0
    comes_after_s: float = 0.0
    rule: WorkersWanted = field(default_factory=WorkersWanted)

    def __post_init__(self) -> None:
        self.now_s = 0.0
        self.random = random.Random(self.seed)
        self.history: list[tuple[float, int]] = []
        #: Read batches and waited seconds of all trainers together, and worker-seconds of building.
        self.read, self.waited_s, self.busy_s = 0, 0.0, 0.0
        self._serial = count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._fleet = [_Trainer() for _ in range(self.trainers)]
        self._idle, self.building, self._coming = self.workers, 0, 0
        #: Builds whose workers were lost and that are not begun again yet.
        self._lost = 0
        self._busy_at_s = 0.0
        self._wants: deque[_Trainer] = deque()
        self._wire_free_s = 0.0
        self._looked = (0, 0.0, 0.0)
        for trainer in self._fleet:
            trainer.waits_since_s = 0.0
            self._wants.extend([trainer] * self.window)
        self._start()
        self._after(LOOK_S, self._look)

    # --- what tests ask ---

    @property
    def there(self) -> int:
        return self._idle + self.building

    @property
    def numbers(self) -> list[int]:
        return [number for _, number in self.history]

    @property
    def reversals(self) -> int:
        """How often a change went the other way than the one before."""
        steps = [after - before for before, after in pairwise(self.numbers)]
        return sum(first * second < 0 for first, second in pairwise(steps))

    def waiting(self, over_s: float) -> float:
        """Run on, and return the share of that time which trainers waited."""
        before_s = self._all_waited_s()
        self.run(over_s)
        return (self._all_waited_s() - before_s) / over_s / max(1, len(self._fleet))

    def rate(self, over_s: float) -> float:
        """Run on, and return how many batches were read a second."""
        before = self.read
        self.run(over_s)
        return (self.read - before) / over_s

    def run(self, over_s: float) -> None:
        """Go on for so long."""
        end_s = self.now_s + over_s
        while self._events[0][0] <= end_s:
            self.now_s, _, act = heapq.heappop(self._events)
            act()
        self.now_s = end_s

    def lose(self, workers: int) -> None:
        """Lose idle and building workers at once; what they had in hand others begin anew, when it would have come."""
        idle = min(workers, self._idle)
        self._idle -= idle
        self._count_busy()
        self.building -= workers - idle
        self._lost += workers - idle

    def comes_again(self) -> None:
        """Start as many workers as were lost."""
        self._fit()

    def forget(self) -> None:
        """Let the coordinator begin anew."""
        self.rule = WorkersWanted()

    def leave(self) -> None:
        """Let one trainer leave."""
        self._fleet.pop().waits_since_s = None

    # --- what happens ---

    def _after(self, over_s: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now_s + over_s, next(self._serial), act))

    def _count_busy(self) -> None:
        self.busy_s += self.building * (self.now_s - self._busy_at_s)
        self._busy_at_s = self.now_s

    def _start(self) -> None:
        while self._idle > 0 and self._wants:
            trainer = self._wants.popleft()
            self._count_busy()
            self._idle -= 1
            self.building += 1
            self._after(self.build_s(self), lambda trainer=trainer: self._built(trainer))

    def _built(self, trainer: _Trainer) -> None:
        if self._lost:
            self._lost -= 1
            self._wants.appendleft(trainer)
            self._start()
            return
        self._count_busy()
        self.building -= 1
        self._idle += 1
        self._fit()
        self._start()
        self._wire_free_s = max(self._wire_free_s, self.now_s) + self.wire_s
        self._after(self._wire_free_s - self.now_s, lambda: self._arrived(trainer))

    def _arrived(self, trainer: _Trainer) -> None:
        trainer.ready += 1
        if trainer.waits_since_s is not None:
            self.waited_s += self.now_s - trainer.waits_since_s
            trainer.waits_since_s = None
            self._begin_step(trainer)

    def _begin_step(self, trainer: _Trainer) -> None:
        trainer.ready -= 1
        self.read += 1
        self._wants.append(trainer)
        self._start()
        self._after(self.step_s(self), lambda: self._end_step(trainer))

    def _end_step(self, trainer: _Trainer) -> None:
        if trainer not in self._fleet:
            return
        if trainer.ready:
            self._begin_step(trainer)
        else:
            trainer.waits_since_s = self.now_s

    def _all_waited_s(self) -> float:
        since = (trainer.waits_since_s for trainer in self._fleet if trainer.waits_since_s is not None)
        return self.waited_s + sum(self.now_s - since_s for since_s in since)

    # --- the rule ---

    def _look(self) -> None:
        self._count_busy()
        now = (self.read, self._all_waited_s(), self.busy_s)
        read, waited_s, busy_s = (after - before for after, before in zip(now, self._looked, strict=True))
        self._looked = now
        trainers = len(self._fleet)
        # Thousandths, as on the wire.
        waited = round(1000 * max(0.0, waited_s) / LOOK_S / trainers) / 1000 if trainers else 0.0
        pace = JobPace(workers=self.there, busy=busy_s / LOOK_S, trainers=trainers, read=int(read), waited=waited)
        wanted = self.rule.look(pace, self.now_s)
        if wanted is not None and (not self.history or self.history[-1][1] != wanted):
            self.history.append((self.now_s, wanted))
            self._fit()
        self._after(LOOK_S, self._look)

    def _target(self) -> int:
        return min(self.most, max(self.least, self.history[-1][1])) if self.history else self.workers

    def _fit(self) -> None:
        for _ in range(self._target() - self.there - self._coming):
            self._coming += 1
            self._after(self.comes_after_s, self._come)
        while self._idle > 0 and self.there > self._target():
            self._idle -= 1

    def _come(self) -> None:
        self._coming -= 1
        if self.there < self._target():
            self._idle += 1
            self._start()
