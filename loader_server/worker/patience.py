"""Who says much that brings no batch nearer is not listened to for the rest of a moment.

Rules: pure. To take in a message and refuse it costs twenty times what dropping it unread does, and all that a worker
does for one trainer keeps the others waiting. What is dropped may be said again; a want that is lost that way is
missing from the next Pong.
"""

from __future__ import annotations

from typing import Generic, TypeVar

__all__ = ["Patience"]

K = TypeVar("K")

#: So many messages in a moment are borne. A trainer that starts, or ends and takes back all its wants, says fewer.
_MOST = 256
_MOMENT_S = 0.1


class Patience(Generic[K]):
    """What was said in vain in this moment, by whom."""

    def __init__(self) -> None:
        self._said: dict[K, int] = {}
        self._until_s = 0.0

    def hears(self, who: K, now_s: float) -> bool:
        """Whether to listen."""
        if now_s >= self._until_s:
            self._said.clear()
            self._until_s = now_s + _MOMENT_S
        return self._said.get(who, 0) < _MOST

    def bear(self, who: K) -> None:
        """It said something in vain."""
        self._said[who] = self._said.get(who, 0) + 1
