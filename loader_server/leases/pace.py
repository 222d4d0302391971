"""How long a trainer may work on a batch: three times as long as the slowest recent one took, and never too short.

Pure. Only the time between taking a batch and reporting it counts, so that slow loaders do not make a trainer look
slow.
"""

from __future__ import annotations

from collections import deque

__all__ = ["Pace"]

#: How many of the latest durations count, and how many times the slowest of them a trainer may take.
_RECENT = 64
_TIMES = 3


class Pace:
    """Recent durations; `floor_s` is the shortest time that anybody gets."""

    def __init__(self, floor_s: float) -> None:
        self._floor_s = floor_s
        self._recent_s: deque[float] = deque(maxlen=_RECENT)
        #: How long a trainer may take now.
        self.deadline_s = floor_s

    def add(self, took_s: float) -> None:
        """A batch was done in this time."""
        self._recent_s.append(took_s)
        self.deadline_s = max(self._floor_s, _TIMES * max(self._recent_s))
