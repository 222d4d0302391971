"""Virtual time: a heap of what happens next, drawn from a seed.

Rules: nothing sleeps and nothing looks at a real clock, so the same seed gives the same world. One event is one step; a
timer that was set anew before it rang is none. What happened is noted as plain tuples and put into words only when
somebody wants to read them.
"""

from __future__ import annotations

import random
from collections import deque
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Broken", "Scheduler"]

#: The last notes that are kept for a failing seed.
_KEPT = 60


class Broken(AssertionError):
    """A promise does not hold."""


class Scheduler:
    """The clock, the dice and the diary of one world."""

    def __init__(self, seed: int, *, keep_all: bool = False) -> None:
        self.now_s = 0.0
        self.steps = 0
        self.random = random.Random(seed)
        self.notes: deque[tuple[Any, ...]] = deque(maxlen=None if keep_all else _KEPT)
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = 0

    def at(self, time_s: float, call: Callable[..., None], *args: Any) -> None:
        """Let something happen at this time; of equal times what was asked for first comes first."""
        self._order += 1
        heappush(self._heap, (time_s, self._order, call, args))

    def after(self, pause_s: float, call: Callable[..., None], *args: Any) -> None:
        """Let something happen after a while."""
        self._order += 1
        heappush(self._heap, (self.now_s + pause_s, self._order, call, args))

    def step(self) -> None:
        """Let the next thing happen."""
        self.now_s, _, call, args = heappop(self._heap)
        self.steps += 1
        call(*args)

    def forget_step(self) -> None:
        """This was a timer that had been overtaken: nothing happened."""
        self.steps -= 1

    def run_to(self, time_s: float) -> None:
        """Let happen what is due until then."""
        heap = self._heap
        while heap and heap[0][0] <= time_s:
            self.step()
        self.now_s = max(self.now_s, time_s)

    def chance(self, share: float) -> bool:
        """True so often."""
        return share > 0 and self.random.random() < share

    def between(self, low: float, high: float) -> float:
        """Any number in between."""
        return low + (high - low) * self.random.random()

    def note(self, *what: Any) -> None:
        """Write something into the diary."""
        self.notes.append((self.now_s, *what))

    def diary(self) -> str:
        """The last notes, one a line."""
        return "\n".join(f"{time_s:9.4f} s  {' '.join(map(str, what))}" for time_s, *what in self.notes)
