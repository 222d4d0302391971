"""An amount that several holders share, so that none of them takes all the room.

Rules: pure. A holder that has less than what is left may take more; so one alone may take half, two a third each, and
there is always something left for a newcomer. Amounts are not split: the last one may exceed the limit.
"""

from __future__ import annotations

from typing import Generic, TypeVar

__all__ = ["Budget"]

K = TypeVar("K")


class Budget(Generic[K]):
    """How much of an amount each holder has, in bytes or in pieces."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: dict[K, int] = {}
        #: What all holders have together.
        self.total = 0

    def has_room(self, holder: K) -> bool:
        """Whether this holder may take more."""
        return self.held(holder) < self._most - self.total

    def held(self, holder: K) -> int:
        """What this holder has."""
        return self._held.get(holder, 0)

    def take(self, holder: K, amount: int) -> None:
        """Let it have this much more."""
        self._held[holder] = self.held(holder) + amount
        self.total += amount

    def give_back(self, holder: K, amount: int) -> None:
        """Take this much back from it."""
        left = self._held.pop(holder) - amount
        self.total -= amount
        if left:
            self._held[holder] = left
