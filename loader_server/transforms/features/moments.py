"""Mean and deviation of features, gathered piece by piece.

Rules: pure; accurate for any number of pieces, in float64; merged in one order the result is the same to the last bit,
whoever gathered the pieces.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Moments"]

_Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Moments:
    """The moments of a number of steps: for each band the mean, and the sum of squared deviations from it."""

    steps: int
    mean: _Numbers
    squares: _Numbers

    @staticmethod
    def of(values: NDArray[np.generic]) -> Moments:
        """Return the moments of values `[steps, ...]`, with at least one step."""
        wide = values.astype(np.float64)
        mean: _Numbers = np.asarray(wide.mean(axis=0))
        squares: Any = np.square(wide - mean).sum(axis=0)
        return Moments(len(wide), mean, np.asarray(squares))

    def merged(self, other: Moments) -> Moments:
        """Return the moments of both, by the formula of Chan, Golub and LeVeque, accurate even if means are large."""
        steps = self.steps + other.steps
        # Sums of squares minus the squared mean would cancel if the mean is large; differences of means do not.
        apart = other.mean - self.mean
        mean = self.mean + apart * (other.steps / steps)
        squares = self.squares + other.squares + apart**2 * (self.steps * other.steps / steps)
        return Moments(steps, mean, squares)

    @property
    def deviation(self) -> _Numbers:
        """Standard deviation of all steps."""
        return np.sqrt(self.squares / self.steps)
