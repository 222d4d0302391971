"""How far a consumer is and where its time goes: written by its session, read for heartbeats."""

from __future__ import annotations

import time
from dataclasses import dataclass

__all__ = ["Standing"]


@dataclass(slots=True)
class Standing:
    """A consumer's progress and the sums of its times since the start."""

    #: (epoch, number) of the first batch not yet trained on.
    trained_to: tuple[int, int] = (0, 0)
    #: Seconds that it has waited for data.
    waited_s: float = 0.0
    #: Seconds that its own computation took, as far as it tells.
    computed_s: float = 0.0
    #: Host and port that its metrics are served at; empty if nowhere.
    metrics: str = ""
    #: Since when it has the data of the step in hand; None once its computation was counted.
    _since_s: float | None = None

    def begin_step(self) -> None:
        """Note that the data of a step are there."""
        self._since_s = time.perf_counter()

    def end_computation(self) -> None:
        """Count the time since the step began as computation; later calls in the same step count nothing."""
        if self._since_s is not None:
            self.computed_s += time.perf_counter() - self._since_s
            self._since_s = None
