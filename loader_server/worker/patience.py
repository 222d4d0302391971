"""A peer that says a lot without bringing any batch nearer is ignored for a moment.

Rules: pure. Taking in a message and refusing it costs twenty times as much as dropping it unread, and whatever a worker
does for one trainer keeps the others waiting. What is dropped may be said again; a want that is lost this way is
missing from the next Pong.
"""

from __future__ import annotations

from typing import Generic, TypeVar

__all__ = ["Patience"]

K = TypeVar("K")

#: How many useless messages in a moment are tolerated. A trainer that starts, or that ends and cancels, says fewer.
_MOST = 256
_MOMENT_S = 0.1


class Patience(Generic[K]):
    """How many useless messages each peer has sent in this moment."""

    def __init__(self) -> None:
        self._said: dict[K, int] = {}
        self._until_s = 0.0

    def hears(self, who: K, now_s: float) -> bool:
        """Whether to listen to this peer now."""
        if now_s >= self._until_s:
            self._said.clear()
            self._until_s = now_s + _MOMENT_S
        return self._said.get(who, 0) < _MOST

    def bear(self, who: K) -> None:
        """It said something useless."""
        self._said[who] = self._said.get(who, 0) + 1
