"""How long a run of several ranks in step has gone on, on which they agree: so all end at the same step.

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
    """`agree` waits for the times of all ranks and gives their mean; it is called by all ranks at the same steps."""

    def __init__(self, limit_s: float, agree: Callable[[float], float]) -> None:
        self._limit_s = limit_s
        self._agree = agree
        self.begin()

    def begin(self) -> None:
        """The run begins."""
        self._agreed_s = 0.0
        self._next_step = 1

    def after(self, steps: int, spent_s: float) -> float:
        """The time that all agree on, after so many steps since it began; here it was so much."""
        if steps >= self._next_step:
            self._agreed_s = self._agree(spent_s)
            steps_left = steps * (self._limit_s - self._agreed_s) / max(self._agreed_s, 1e-9)
            self._next_step = steps + max(1, int(steps_left / 2))
        return self._agreed_s
