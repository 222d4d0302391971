"""An amount shared by several holders so that none of them takes all the room, and a rate limit for peers made of it.

Rules: pure. A holder may take more while it holds less than what is left; so one alone may take half, two a third each,
and there is always something left for a newcomer. Amounts are not split: the last one may exceed the limit.
"""

from __future__ import annotations

from collections import Counter
from typing import Generic, TypeVar

__all__ = ["Budget", "Patience"]

K = TypeVar("K")

#: Useless messages tolerated in a moment: of each peer always, and beyond these of all together, of which one alone
#: may take half. A trainer that starts, or that ends and cancels, sends fewer.
_FEW, _MOST = 8, 512
_MOMENT_S = 0.1


class Budget(Generic[K]):
    """Account of the amount that each holder has, in bytes or in pieces."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: dict[K, int] = {}
        #: Sum over all holders.
        self.total = 0

    def has_room(self, holder: K) -> bool:
        """Return whether this holder may take more: it holds less than what all holders together have left."""
        # Less than what is left, not than the limit: that keeps room for newcomers, however many holders there are.
        return self.held(holder) < self._most - self.total

    def held(self, holder: K) -> int:
        """Return the amount that this holder has, 0 if it is unknown."""
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


class Patience(Generic[K]):
    """Rate limit for peers: one that sends many useless messages is ignored for a moment.

    Taking in a message and refusing it costs twenty times as much as dropping it unread, and whatever a server does for
    one peer keeps the others waiting. A dropped message may be sent again: a want that is lost this way is missing from
    the next Pong, and a coordinator gets everything again with each heartbeat.
    """

    def __init__(self) -> None:
        self._few: Counter[K] = Counter()
        self._more: Budget[K] = Budget(_MOST)
        self._until_s = 0.0

    def hears(self, peer: K, now_s: float) -> bool:
        """Return whether to listen to this peer now; a new moment forgets all counts.

        That is so for a peer's first 8 useless messages of a moment, and beyond these while the budget shared by all
        has room for it.
        """
        if now_s >= self._until_s:  # a new moment: nothing is carried over, so no peer is silenced for long
            self._few, self._more = Counter(), Budget(_MOST)
            self._until_s = now_s + _MOMENT_S
        return self._few[peer] < _FEW or self._more.has_room(peer)

    def bear(self, peer: K) -> None:
        """Count a useless message of this peer: the first 8 of a moment as its own, others in a budget of all peers."""
        # A few of each peer are always heard, so that nobody is silenced by others. Further ones come from a budget
        # that all share: thirty peers together are not tolerated thirty times as much as one.
        if self._few[peer] < _FEW:
            self._few[peer] += 1
        else:
            self._more.take(peer, 1)
