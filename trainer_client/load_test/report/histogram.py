"""Log-linear histogram of times: small, mergeable, and accurate to 1 part in 32 at any size.

Rules: pure; takes whole microseconds; values below 64 have a bin each, and every doubling above has 32 bins, so a
quantile reads at most 3.2 % too high and never too low.
"""

from __future__ import annotations

from collections import Counter
from typing import TypedDict

__all__ = ["Histogram", "Plain"]

_BITS = 5
_PLACES = 1 << _BITS


class Plain(TypedDict):
    """Histogram as plain values: the count in each bin, and the largest time."""

    counts: list[tuple[int, int]]
    max_us: int


class Histogram:
    """Counts of times by size."""

    def __init__(self) -> None:
        self.total = 0
        self.max_us = 0
        self._counts: Counter[int] = Counter()

    def record(self, time_us: int) -> None:
        """Count a time of this many whole microseconds, 0 or more, in its bin, and keep the longest."""
        # Keep the 6 leading bits: shift 0 has the places 0 to 63, and each further shift 32 more.
        shift = max(0, time_us.bit_length() - _BITS - 1)
        self._counts[shift * _PLACES + (time_us >> shift)] += 1
        self.total += 1
        self.max_us = max(self.max_us, time_us)

    def merge(self, other: Histogram) -> None:
        """Add all times of another histogram to this one, and the longest if it is longer."""
        self._counts.update(other._counts)
        self.total += other.total
        self.max_us = max(self.max_us, other.max_us)

    def quantile_us(self, share: float) -> int:
        """Return the time that this share of all times does not exceed; 0 if nothing was counted.

        It is at most 3.2 % too high.
        """
        wanted, counted = share * self.total, 0
        for place, count in sorted(self._counts.items()):
            counted += count
            if counted >= wanted:
                # The upper end of the bin, so that rounding never keeps a limit; but no more than was seen.
                return min(_largest_us(place), self.max_us)
        return self.max_us

    def curve(self) -> list[tuple[float, int]]:
        """Return quantiles as pairs of share and time, each share at half the distance of the one before to 1.

        The first is share 0, the last the first one above 1 - 1 / number of times. Without times it is (0.0, 0) alone.
        """
        shares, left = [0.0], 1.0
        while left * self.total >= 1:
            left /= 2
            shares.append(1 - left)
        return [(share, self.quantile_us(share)) for share in shares]

    def plain(self) -> Plain:
        """Return the histogram as plain values, for a message."""
        return {"counts": sorted(self._counts.items()), "max_us": self.max_us}

    @classmethod
    def of(cls, plain: Plain) -> Histogram:
        """Return the histogram that `plain` gave these values of; raise KeyError if one is missing."""
        histogram = cls()
        histogram._counts = Counter(dict(plain["counts"]))
        histogram.total = histogram._counts.total()
        histogram.max_us = plain["max_us"]
        return histogram


def _largest_us(place: int) -> int:
    """Return the largest time, in microseconds, that counts in the bin at this place."""
    shift = max(0, place // _PLACES - 1)
    return ((place - shift * _PLACES + 1) << shift) - 1
