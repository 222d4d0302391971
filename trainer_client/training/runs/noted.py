"""Means over the batches of an epoch, each weighted by its rows.

Rules: pure. Its state is part of a run's, so an epoch that was resumed in its middle has the same means.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["NotedMeans"]


class NotedMeans:
    """Sums so far, each with the number of rows in it."""

    def __init__(self) -> None:
        #: The largest number of rows in any of them.
        self.rows = 0
        #: By name, the sum over rows and the number of rows.
        self._sums: dict[str, tuple[float, int]] = {}

    def add(self, means: Mapping[str, float], rows: int) -> None:
        """Add the means of a batch with this many rows; without rows, values that are not numbers are ignored."""
        for name, mean in means.items():
            total, over = self._sums.get(name, (0.0, 0))
            # Not `rows * mean` without rows: zero times NaN would make the whole sum NaN.
            self._sums[name] = (total + rows * float(mean) if rows else total, over + rows)
            self.rows = max(self.rows, over + rows)

    def means(self) -> dict[str, float]:
        """Return the means by name; a value without rows has none."""
        return {name: total / rows for name, (total, rows) in self._sums.items() if rows}

    def state(self) -> dict[str, Any]:
        """Return the state as plain values."""
        return {name: [total, rows] for name, (total, rows) in self._sums.items()}

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> NotedMeans:
        """Return the means from what `state` returned."""
        made = cls()
        made._sums = {name: (float(total), int(rows)) for name, (total, rows) in state.items()}
        made.rows = max((rows for _, rows in made._sums.values()), default=0)
        return made
