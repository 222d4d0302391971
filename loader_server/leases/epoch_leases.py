"""The numbers of one epoch in queue mode: fresh, leased, given back, settled.

Rules: pure. A number is fresh until it is leased for the first time, and numbers are leased in order, so `fresh` and
the few that are out say everything: what is below `fresh` and not out is settled, that is, done or given up. Each step
costs the same however long the epoch is, and memory grows with what is out only.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from itertools import pairwise

__all__ = ["EpochLeases", "OutNumber"]


@dataclass(slots=True)
class OutNumber:
    """A number that was leased and is not settled."""

    #: How often it was leased.
    nth: int = 0
    #: The trainer that has it; 0: nobody.
    holder: int = 0
    failures: int = 0
    #: Why somebody failed at it last.
    reason: str = ""

    @property
    def open(self) -> bool:
        """Whether it was given back, and can be leased again."""
        return not self.holder


class EpochLeases:
    """One epoch of `batches` numbers; those from `fresh` on were never leased."""

    def __init__(self, batches: int, fresh: int = 0) -> None:
        self.batches = batches
        self.fresh = fresh
        #: By number; to be changed only through the methods.
        self.out: dict[int, OutNumber] = {}
        #: Numbers that were given back; some of them may have been leased or done since.
        self._returned: list[int] = []
        self._open = 0

    @property
    def left(self) -> int:
        """How many can be leased now."""
        return self.batches - self.fresh + self._open

    @property
    def leased(self) -> int:
        """How many are with trainers."""
        return len(self.out) - self._open

    @property
    def settled(self) -> bool:
        """Whether all of it is."""
        return self.fresh >= self.batches and not self.out

    def put(self, number: int, one: OutNumber) -> None:
        """Set the state of a number."""
        self.remove(number)
        self.out[number] = one
        self._open += one.open
        if one.open:
            heapq.heappush(self._returned, number)

    def remove(self, number: int) -> None:
        """Remove a number: it is settled."""
        before = self.out.pop(number, None)
        if before is not None:
            self._open -= before.open

    def next(self) -> int | None:
        """The number to lease next: one that was given back, else a fresh one."""
        while self._returned:
            number = self._returned[0]
            one = self.out.get(number)
            if one is not None and one.open:
                return number
            heapq.heappop(self._returned)
        return self.fresh if self.fresh < self.batches else None

    def missing(self) -> tuple[int, ...]:
        """The numbers below `fresh` that are not settled, each as the distance to the one before."""
        return tuple(after - before for before, after in pairwise((0, *sorted(self.out))))
