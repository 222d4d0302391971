"""The numbers of one epoch in queue mode: fresh, leased, given back, settled.

Rules: pure. A number is fresh until it is leased for the first time, and fresh numbers are leased in order, so `fresh`
and the few numbers that are out say everything: what is below `fresh` and not out is settled, that is, done or given
up. Each step costs the same however long the epoch is, and memory grows only with what is out.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from itertools import pairwise

__all__ = ["EpochLeases", "OutNumber"]


@dataclass(slots=True)
class OutNumber:
    """A number that was leased and is not settled."""

    #: The number of times it was leased.
    nth: int = 0
    #: The trainer that has it; 0: none.
    holder: int = 0
    #: The number of failures that cost it a try.
    failures: int = 0
    #: The reason of the last failure.
    reason: str = ""

    @property
    def is_open(self) -> bool:
        """Return whether no trainer has the number, so that it can be leased again."""
        return not self.holder


class EpochLeases:
    """One epoch of `batches` numbers; those from `fresh` on were never leased."""

    def __init__(self, batches: int, fresh: int = 0) -> None:
        self.batches = batches
        self.fresh = fresh
        #: By number; changed only by `put` and `remove`, which keep the count of open ones.
        self.out: dict[int, OutNumber] = {}
        #: A heap of numbers that were given back. Entries are not removed when a number is leased or done; `next` skips
        #: these.
        self._returned: list[int] = []
        self._open = 0

    @property
    def left(self) -> int:
        """Return how many numbers can be leased now: those never leased, and those given back."""
        return self.batches - self.fresh + self._open

    @property
    def leased(self) -> int:
        """Return how many numbers trainers have."""
        return len(self.out) - self._open

    @property
    def is_settled(self) -> bool:
        """Return whether all numbers are done or given up."""
        return self.fresh >= self.batches and not self.out

    def put(self, number: int, out: OutNumber) -> None:
        """Set the state of a number that is out, replacing an earlier one."""
        self.remove(number)
        self.out[number] = out
        # Counted here and not by looking: each step has to cost the same however many numbers are out.
        self._open += out.is_open
        if out.is_open:
            heapq.heappush(self._returned, number)

    def remove(self, number: int) -> None:
        """Remove a number that is settled from those that are out; one that is not out is left alone."""
        before = self.out.pop(number, None)
        if before is not None:
            self._open -= before.is_open

    def next(self) -> int | None:
        """Return the number to lease next, the lowest given back or else a fresh one; None if there is none.

        The caller leases it with `put`; the same number is returned until then.
        """
        # What was given back goes first, or stragglers would hold up the end of the epoch.
        while self._returned:
            number = self._returned[0]
            out = self.out.get(number)
            if out is not None and out.is_open:
                return number
            # It was leased or done since it was pushed. Taking it out of the middle of the heap then would cost a
            # search.
            heapq.heappop(self._returned)
        return self.fresh if self.fresh < self.batches else None

    def missing(self) -> tuple[int, ...]:
        """Return the numbers below `fresh` that are not settled, in order, each as the distance to the one before.

        The first is given as its distance to 0. Empty if no number is out.
        """
        return tuple(after - before for before, after in pairwise((0, *sorted(self.out))))
