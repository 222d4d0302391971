"""How long a connection has been silent, and whether it is time to make it anew.

Rules: pure. One side may not know that a connection is gone: what it sends is accepted, and nobody receives it. So
after a heartbeat timeout without a word the connection is made anew, and then again after pauses that double, until
something is heard.
"""

from __future__ import annotations

__all__ = ["GONE_AFTER", "Silence"]

#: A worker or trainer that has been silent for so many heartbeat timeouts is gone.
GONE_AFTER = 5

#: A silent connection is made anew at most this many heartbeat timeouts apart.
_LONGEST = 8


class Silence:
    """The silence of one peer, whichever connection it is on."""

    def __init__(self) -> None:
        self._since_s: float | None = None
        #: For how many heartbeat timeouts it is tolerated.
        self._borne = 1

    def hear(self, now_s: float) -> None:
        """Something came."""
        self._since_s, self._borne = now_s, 1

    def excuse(self, since_s: float) -> None:
        """Nothing could be heard before then."""
        self._since_s = since_s

    def due_s(self, timeout_s: float) -> float:
        """Until when it is tolerated."""
        return float("inf") if self._since_s is None else self._since_s + self._borne * timeout_s

    def lose_patience(self, now_s: float, timeout_s: float) -> bool:
        """Whether to connect anew now; the first call starts the clock."""
        if self._since_s is None:
            self._since_s = now_s
        if now_s <= self.due_s(timeout_s):
            return False
        self._since_s, self._borne = now_s, min(2 * self._borne, _LONGEST)
        return True
