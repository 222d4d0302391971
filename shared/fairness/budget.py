"""An amount shared by several holders so that none of them takes all the room.

Rules: pure. A holder may take more while it holds less than what is left; so one alone may take half, two a third each,
and there is always something left for a newcomer. Amounts are not split: the last one may exceed the limit.
"""

from __future__ import annotations

from typing import Generic, TypeVar

__all__ = ["Budget"]

K = TypeVar("K")


class Budget(Generic[K]):
    """Account of the amount that each holder has, in bytes or in pieces."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: dict[K, int] = {}
        #: Sum over all holders.
        self.total = 0

    def has_room(self, holder: K) -> bool:
        """Return whether this holder may take more."""
        # Less than what is left, not than the limit: that keeps room for newcomers, however many holders there are.
        return self.held(holder) < self._most - self.total

    def held(self, holder: K) -> int:
        """Return the amount that this holder has."""
        return self._held.get(holder, 0)

    def take(self, holder: K, amount: int) -> None:
        """Add an amount to this holder, without checking for room."""
        self._held[holder] = self.held(holder) + amount
        self.total += amount

    def give_back(self, holder: K, amount: int) -> None:
        """Subtract an amount from this holder; raise KeyError if it holds nothing."""
        left = self._held.pop(holder) - amount
        self.total -= amount
        if left:  # entries of 0 would grow with every holder that ever came
            self._held[holder] = left
