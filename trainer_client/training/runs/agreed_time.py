"""The time that a run of several ranks in lockstep has gone on; they agree on it, so all end at the same step.

Rules: pure. Clocks and starts differ, so ranks tell each other their times at certain steps, and all go by the mean.
From that each derives at which step they do so again: halfway to the limit, so that a run of hours takes some dozens of
questions, and most of them near its end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["AgreedTime"]


class AgreedTime:
    """The agreed time of a run; `agree` waits for the times of all ranks and returns their mean.

    All ranks call it at the same steps.
    """

    def __init__(self, limit_s: float, agree: Callable[[float], float]) -> None:
        self._limit_s = limit_s
        self._agree = agree
        self.begin()

    def begin(self) -> None:
        """Start from zero, as the run begins."""
        self._agreed_s = 0.0
        self._next_step = 1

    def after(self, steps: int, spent_s: float) -> float:
        """Return the time that all ranks agree on after `steps` steps; this rank has measured `spent_s`."""
        if steps >= self._next_step:
            self._agreed_s = self._agree(spent_s)
            # How many steps are left at the pace so far; all ranks derive the same from the time that they agreed on.
            steps_left = steps * (self._limit_s - self._agreed_s) / max(self._agreed_s, 1e-9)
            self._next_step = steps + max(1, int(steps_left / 2))
        return self._agreed_s
