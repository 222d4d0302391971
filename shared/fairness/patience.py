"""Rate limit for peers: one that sends many useless messages is ignored for a moment.

Rules: pure. Taking in a message and refusing it costs twenty times as much as dropping it unread, and whatever a server
does for one peer keeps the others waiting. A few messages of each peer are always heard, so that nobody is silenced by
others; further ones come from a budget that all share, so that thirty peers together are not tolerated thirty times as
much as one. A dropped message may be sent again: a want that is lost this way is missing from the next Pong, and a
coordinator gets everything again with each heartbeat.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from shared.fairness.budget import Budget

__all__ = ["Patience"]

K = TypeVar("K")

#: Useless messages tolerated in a moment: of each peer always, and beyond these of all together, of which one alone
#: may take half. A trainer that starts, or that ends and cancels, sends fewer.
_FEW, _MOST = 8, 512
_MOMENT_S = 0.1


class Patience(Generic[K]):
    """Count of the useless messages that each peer has sent in the current moment."""

    def __init__(self) -> None:
        self._few: dict[K, int] = {}
        self._more: Budget[K] = Budget(_MOST)
        self._until_s = 0.0

    def hears(self, who: K, now_s: float) -> bool:
        """Return whether to listen to this peer now; a new moment forgets all counts."""
        if now_s >= self._until_s:  # a new moment: nothing is carried over, so no peer is silenced for long
            self._few, self._more = {}, Budget(_MOST)
            self._until_s = now_s + _MOMENT_S
        return self._few.get(who, 0) < _FEW or self._more.has_room(who)

    def bear(self, who: K) -> None:
        """Count a useless message of this peer."""
        few = self._few.get(who, 0)
        if few < _FEW:
            self._few[who] = few + 1
        else:
            self._more.take(who, 1)
