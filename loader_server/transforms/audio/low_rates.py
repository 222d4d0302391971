"""Bands left empty by recordings whose sample rate is below the one that a transform resamples to.

Resampling adds no frequencies: above half a recording's own rate (the Nyquist frequency) there is nothing, at whatever
rate a transform wants it. Rules: pure; bands are counted by the filters that the transform uses.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from loader_server.transforms.on_columns import OfColumns

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from loader_server.transforms.chain import Chain

__all__ = ["LowRate", "ResamplingTransform", "low_rates"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LowRate:
    """Samples of one rate that a transform upsamples; `bands` is 0 if it makes no bands."""

    transform: str
    rate: int
    own_rate: int
    samples: int
    #: Highest frequency left after the transforms before it.
    highest_hz: float
    empty_bands: int
    bands: int


class ResamplingTransform(OfColumns):
    """Transform that resamples audio to `rate`."""

    rate: int

    @abc.abstractmethod
    def empty_bands(self, highest_hz: float) -> tuple[int, int]:
        """Return how many bands get nothing from audio without frequencies above `highest_hz`, and how many there are.

        A transform that makes no bands returns 0 and 0.
        """


def low_rates(chain: Chain, rates: NDArray[np.int64]) -> Iterator[LowRate]:
    """Yield the samples that a transform upsamples, if bands stay empty or if it makes none; lowest rate first.

    They are counted by rate, for one transform after another; samples of rate 0 do not count.
    """
    own_rates, counts = np.unique(rates[rates > 0], return_counts=True)
    reached = own_rates.copy()
    for step in chain.steps:
        if not isinstance(step.call, ResamplingTransform):
            continue
        for own, samples, rate in zip(own_rates.tolist(), counts.tolist(), reached.tolist(), strict=True):
            empty, bands = step.call.empty_bands(rate / 2) if rate < step.call.rate else (0, -1)
            if empty or not bands:
                yield LowRate(
                    transform=step.name,
                    rate=step.call.rate,
                    own_rate=own,
                    samples=samples,
                    highest_hz=rate / 2,
                    empty_bands=empty,
                    bands=bands,
                )
        # A transform that lowers the rate also removes frequencies for those after it.
        reached = np.minimum(reached, step.call.rate)
