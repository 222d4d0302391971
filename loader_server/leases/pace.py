"""The deadline for a batch in a trainer's hands: three times the slowest recent one, and never below a floor.

Pure. Only the time between taking a batch and reporting it counts, so that slow loaders do not make a trainer look
slow.
"""

from __future__ import annotations

from collections import deque

__all__ = ["Pace"]

#: The number of latest durations that count, and the multiple of the slowest of them that a trainer may take.
_RECENT = 64
_TIMES = 3


class Pace:
    """Recent durations; `floor_s` is the shortest deadline."""

    def __init__(self, floor_s: float) -> None:
        self._floor_s = floor_s
        self._recent_s: deque[float] = deque(maxlen=_RECENT)
        #: The present deadline.
        self.deadline_s = floor_s

    def add(self, took_s: float) -> None:
        """Add the duration of a finished batch, and update the deadline."""
        self._recent_s.append(took_s)
        self.deadline_s = max(self._floor_s, _TIMES * max(self._recent_s))
