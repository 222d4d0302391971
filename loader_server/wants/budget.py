"""An amount that several share, so that what one of them holds leaves the others room.

Rules: pure. Whoever holds less than what is left may take more; so one alone may take half, two a third each, and
there is always something left for a newcomer. Amounts are taken whole: the last one may go beyond.
"""

from __future__ import annotations

from typing import Generic, TypeVar

__all__ = ["Budget"]

K = TypeVar("K")


class Budget(Generic[K]):
    """What each holds of an amount, in bytes or in pieces."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: dict[K, int] = {}
        #: What all hold together.
        self.total = 0

    def has_room(self, holder: K) -> bool:
        """Whether this one may take more."""
        return self.held(holder) < self._most - self.total

    def held(self, holder: K) -> int:
        """What this one holds."""
        return self._held.get(holder, 0)

    def take(self, holder: K, amount: int) -> None:
        """It holds so much more."""
        self._held[holder] = self.held(holder) + amount
        self.total += amount

    def give_back(self, holder: K, amount: int) -> None:
        """It holds so much less."""
        left = self._held.pop(holder) - amount
        self.total -= amount
        if left:
            self._held[holder] = left
