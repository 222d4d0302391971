"""Silence of a connection: how long it has lasted, and whether to reconnect.

Rules: pure. One side may not know that a connection is gone: what it sends is accepted, and nobody receives it. So
after a heartbeat timeout without a message the connection is made anew, and then again with exponential back-off, until
something is heard.
"""

from __future__ import annotations

__all__ = ["GONE_AFTER", "Silence"]

#: A worker or trainer counts as gone after this many heartbeat timeouts of silence.
GONE_AFTER = 5

#: Longest back-off between two reconnects, in heartbeat timeouts.
_LONGEST = 8


class Silence:
    """Silence of one peer, whichever connection it is on."""

    def __init__(self) -> None:
        self._since_s: float | None = None
        #: When the last message came, and whether patience was lost since.
        self._heard_s: float | None = None
        self._is_long = False
        #: Back-off before the next reconnect, in heartbeat timeouts.
        self._borne = 1

    def hear(self, now_s: float) -> float | None:
        """Note that a message came, which resets the back-off; return how long the silence was that cost patience.

        Return None if it cost none.
        """
        silent_s = now_s - (self._heard_s or 0.0) if self._is_long and self._heard_s is not None else None
        self._since_s, self._heard_s, self._borne, self._is_long = now_s, now_s, 1, False
        return silent_s

    def begins(self) -> bool:
        """Return whether a silence after messages was just found to be long: true once, then false until it is over.

        To be asked after patience was lost. A peer that was never heard is not silent, but not there yet.
        """
        is_new, self._is_long = not self._is_long and self._heard_s is not None, True
        return is_new

    def excuse(self, since_s: float) -> None:
        """Count the silence from `since_s` on only, because nothing could be heard before; the back-off stays."""
        # After this process was stopped or held up: the peer may have spoken, and its words still wait on the socket.
        self._since_s = since_s

    def due_s(self, timeout_s: float) -> float:
        """Return when to reconnect if nothing is heard; infinity before the clock has started.

        That is the back-off, 1 to 8 times `timeout_s`, after the silence began or the last reconnect.
        """
        return float("inf") if self._since_s is None else self._since_s + self._borne * timeout_s

    def lose_patience(self, now_s: float, timeout_s: float) -> bool:
        """Return whether to reconnect now, and if so double the back-off; the first call starts the clock."""
        if self._since_s is None:
            self._since_s = now_s
        if now_s <= self.due_s(timeout_s):
            return False
        # From now on, not from the last message: the new connection gets the whole back-off to answer.
        self._since_s, self._borne = now_s, min(2 * self._borne, _LONGEST)
        return True
