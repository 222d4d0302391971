"""A peer that says a lot without bringing anything nearer is ignored for a moment.

Rules: pure. Taking in a message and refusing it costs twenty times as much as dropping it unread, and whatever a server
does for one peer keeps the others waiting. A few messages of each peer are always heard, so that nobody is silenced by
others; what is beyond these comes from a budget that all share, so that thirty peers together are not borne thirty
times as much as one. What is dropped may be said again: a want that is lost this way is missing from the next Pong, and
a coordinator is told everything with each heartbeat.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from shared.fairness.budget import Budget

__all__ = ["Patience"]

K = TypeVar("K")

#: How many useless messages in a moment are tolerated of each peer in any case, and beyond these of all together: one
#: alone may take half of them. A trainer that starts, or that ends and cancels, says fewer.
_FEW, _MOST = 8, 512
_MOMENT_S = 0.1


class Patience(Generic[K]):
    """How many useless messages each peer has sent in this moment."""

    def __init__(self) -> None:
        self._few: dict[K, int] = {}
        self._more: Budget[K] = Budget(_MOST)
        self._until_s = 0.0

    def hears(self, who: K, now_s: float) -> bool:
        """Return whether to listen to this peer now."""
        if now_s >= self._until_s:
            self._few, self._more = {}, Budget(_MOST)
            self._until_s = now_s + _MOMENT_S
        return self._few.get(who, 0) < _FEW or self._more.has_room(who)

    def bear(self, who: K) -> None:
        """Note that it said something useless."""
        few = self._few.get(who, 0)
        if few < _FEW:
            self._few[who] = few + 1
        else:
            self._more.take(who, 1)
