"""For how long batches are on their way to us by TCP.

Rules: pure. Several batches may be on their way at a time, and the time counts once. Clocks of two hosts are never
compared: a worker reports how long it held a want, and the way there and back is known from the answer to Hello.
"""

from __future__ import annotations

__all__ = ["WireTime"]


class WireTime:
    """The sum of the times in which at least one pushed batch had not arrived yet."""

    def __init__(self) -> None:
        self.busy_s = 0.0
        self._arrived_s = 0.0

    def arrive(self, pushed_s: float, now_s: float) -> None:
        """Add the time since `pushed_s`, when it could have been here at best, or since the last arrival if later."""
        # A connection carries one batch after another: a batch is only begun once the one before it has arrived.
        self.busy_s += max(0.0, now_s - max(self._arrived_s, pushed_s))
        self._arrived_s = now_s
