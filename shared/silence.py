"""How long nothing has come on a connection, and whether it is to be made anew for that.

Rules: pure. One side may not know that a connection is gone: what it sends is taken, and nobody gets it. So after a
heartbeat timeout without a word the connection is made anew, and again after pauses that double. To hear something
ends that.
"""

from __future__ import annotations

__all__ = ["Silence"]

#: A silent connection is made anew at most this many heartbeat timeouts apart.
_LONGEST = 8


class Silence:
    """Of one peer, over whichever connection."""

    def __init__(self) -> None:
        self._since_s: float | None = None
        #: How many heartbeat timeouts of it are borne.
        self._borne = 1

    def hear(self, now_s: float) -> None:
        """Something came."""
        self._since_s, self._borne = now_s, 1

    def excuse(self, since_s: float) -> None:
        """Nothing was to be heard before then."""
        self._since_s = since_s

    def due_s(self, timeout_s: float) -> float:
        """Until when it is borne."""
        return float("inf") if self._since_s is None else self._since_s + self._borne * timeout_s

    def lose_patience(self, now_s: float, timeout_s: float) -> bool:
        """Whether to connect anew; asked for the first time, it begins now."""
        if self._since_s is None:
            self._since_s = now_s
        if now_s <= self.due_s(timeout_s):
            return False
        self._since_s, self._borne = now_s, min(2 * self._borne, _LONGEST)
        return True
