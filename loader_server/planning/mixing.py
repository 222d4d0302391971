"""Mixing of several sources by weight: which segments a pass takes, and in which order.

Rules: pure; whole segments are interleaved in proportion to the weights, so that every window has its share of each
source and batches mix samples of all; a source that does not cycle ends the pass when it runs out, one that cycles
starts over in a new order; the part of a source that a pass does not reach is not trained on. Must not know lengths or
samples.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from shared.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from loader_server.planning.settings import PlanSettings

    Integers = NDArray[np.int64]

__all__ = ["Mixture", "Turns", "mixture_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """Segments of a pass in order, and how many times each has already been used."""

    segments: Integers
    cycles: Integers


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """Sources, each a range of segments, with the weight of each and whether it starts over when it runs out."""

    segments: tuple[tuple[int, int], ...]
    weights: tuple[float, ...]
    cycle: tuple[bool, ...]

    def turns(self, sizes: Integers, shuffle: Callable[[Integers, int], Integers]) -> Turns:
        """Interleave the sources' segments; `shuffle` gives the order of a source's segments in a cycle."""
        end = self._end(sizes)
        taken, cycles, at = [], [], []
        for (first, stop), weight, times in self._uses(sizes):
            rounds = math.ceil(times)
            order = np.concatenate([shuffle(np.arange(first, stop), cycle) for cycle in range(rounds)])
            # A segment's time is when its source has given all segments before it; sorting all sources' segments by
            # time mixes them in proportion to the weights.
            begins = (np.cumsum(sizes[order]) - sizes[order]) / weight
            reached = begins < end
            taken.append(order[reached])
            cycles.append(np.repeat(np.arange(rounds), stop - first)[reached])
            at.append(begins[reached])
        # Stable, so that segments due at the same time keep the order of the sources on every machine.
        turn = np.argsort(np.concatenate(at), kind="stable")
        return Turns(segments=np.concatenate(taken)[turn], cycles=np.concatenate(cycles)[turn])

    def most_turns(self, sizes: Integers) -> Integers:
        """Return the most times that a pass uses each segment."""
        most = np.zeros(len(sizes), np.int64)
        for (first, stop), _, times in self._uses(sizes):
            most[first:stop] = math.ceil(times)
        return most

    def fewest_turns(self, sizes: Integers) -> Integers:
        """Return the fewest times that a pass uses each segment: as often as it uses the whole source."""
        fewest = np.zeros(len(sizes), np.int64)
        for (first, stop), _, times in self._uses(sizes):
            # The source that ends the pass is used exactly once, but the division may give slightly less than 1.
            fewest[first:stop] = int(times + 1e-9)
        return fewest

    def _uses(self, sizes: Integers) -> Iterator[tuple[tuple[int, int], float, float]]:
        """Yield each source's range of segments, its weight, and how many times a pass goes through it."""
        end = self._end(sizes)
        for (first, stop), weight in zip(self.segments, self.weights, strict=True):
            yield (first, stop), weight, end * weight / max(int(sizes[first:stop].sum()), 1)

    def _end(self, sizes: Integers) -> float:
        """Return when the pass ends, on a clock by which a source gives `weight` samples a tick."""
        sources = zip(self.segments, self.weights, self.cycle, strict=True)
        # `mixture_of` refuses a mixture in which all sources cycle, so there is at least one.
        return min(int(sizes[slice(*own)].sum()) / weight for own, weight, cycles in sources if not cycles)


def mixture_of(settings: PlanSettings, sources: Sequence[int], segments: Integers) -> Mixture | None:
    """Return the mixture that the settings ask for, or None without weights; `sources` are the sources' first samples.

    Raise SettingsError if weights, cycles and sources differ in number, or if all sources cycle, so that no pass ends.
    """
    if not settings.weights:
        return None
    cycle = settings.cycle or (False,) * len(sources)
    if not len(settings.weights) == len(cycle) == len(sources) or all(cycle):
        raise SettingsError(
            expected=f"{len(sources)} weights, one a source, and as many of cycle, not all of them true",
            got=f"weights = {list(settings.weights)}, cycle = {list(cycle)}",
            where="weights",
            remedy="Name one weight a source; a source that does not cycle ends the epoch, so one at least must not.",
        )
    starts = [int(start) for start in np.searchsorted(segments, [*sources, segments[-1]])]
    ranges = tuple(itertools.pairwise(starts))
    return Mixture(segments=ranges, weights=settings.weights, cycle=cycle)
