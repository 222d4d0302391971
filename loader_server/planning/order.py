"""The order in which segments make windows, samples fill buckets, and groups leave a window; and mixing by weight.

Rules: pure; shuffles are sorts by keyed hashes, so they are the same everywhere; segments are permuted whole, and
consecutive ones make a window; all windows of a pass are about equally large. `DataPass` stands for one pass through
all data. Must not know lengths or shapes.

Sources that are mixed by weight are interleaved by whole segments in proportion to the weights, so that every window
has its share of each source and batches mix samples of all. A source that does not cycle ends the pass when it runs
out, and one that cycles starts over in a new order; the part of a source that a pass does not reach is not trained on.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from shared.errors import SettingsError
from shared.hashing import hashed, key_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from loader_server.planning.settings import PlanSettings

    Integers = NDArray[np.int64]

#: Orders that a keyed hash decides; the others follow the data.
SHUFFLING = ("shuffled", "laplace")
#: Bits that a sample number fits into; the cycle is hashed in the bits above, so that repeats are shuffled anew.
_SAMPLE_BITS = 40

__all__ = [
    "Arrangement",
    "DataPass",
    "MixedSource",
    "Mixture",
    "Turns",
    "arranged",
    "group_order",
    "mixture_of",
    "row_order",
    "sample_order",
    "window_count",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataPass:
    """One pass through all data: its number, its order, the job's seed, and a text that tells streams apart."""

    number: int
    order: str
    seed: int
    #: The index's fingerprint, so that streams of other data are shuffled in other ways.
    stream: str

    def key(self, shuffle: str, *place: int) -> int:
        """Return the hash key of one of the pass's shuffles, for one cycle or window of it."""
        return key_of(self.seed, self.stream, self.number, shuffle, *place)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """Segments of a pass in order, and how many times each has already been used."""

    segments: Integers
    cycles: Integers


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedSource:
    """What one source of a mixture gives to a pass: of its samples, which are `samples`, `given` with repeats."""

    weight: float
    cycles: bool
    samples: int
    given: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """Sources, each a range of segments, with the weight of each and whether it starts over when it runs out."""

    #: First segment of each source, and the one after its last.
    segments: tuple[tuple[int, int], ...]
    weights: tuple[float, ...]
    cycle: tuple[bool, ...]

    def turns(self, sizes: Integers, shuffle: Callable[[Integers, int], Integers]) -> Turns:
        """Return a pass's segments, the sources interleaved; `shuffle` orders a source's segments for each cycle."""
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

    def given(self, turns: Turns, samples: Integers) -> list[MixedSource]:
        """Return what each source gives to a pass with these turns, by the planned samples of each segment."""
        planned = samples[turns.segments]
        own = [(turns.segments >= first) & (turns.segments < stop) for first, stop in self.segments]
        sources = zip(self.segments, self.weights, self.cycle, own, strict=True)
        return [
            MixedSource(
                weight=weight,
                cycles=cycles,
                samples=int(samples[first:stop].sum()),
                given=int(planned[taken].sum()),
            )
            for (first, stop), weight, cycles, taken in sources
        ]

    def most_turns(self, sizes: Integers) -> Integers:
        """Return, for each segment, the most times that a pass may use it: how often its source begins."""
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
    return Mixture(segments=tuple(itertools.pairwise(starts)), weights=settings.weights, cycle=cycle)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrangement:
    """Segments of a pass in order, and the first segment of each window."""

    turns: Turns
    #: Positions in `turns`, not segment numbers.
    starts: Integers

    def of_window(self, window: int) -> Turns:
        """Return the segments of one window, in their order, each with its cycle."""
        stop = self.starts[window + 1] if window + 1 < len(self.starts) else len(self.turns.segments)
        own = slice(int(self.starts[window]), int(stop))
        return Turns(segments=self.turns.segments[own], cycles=self.turns.cycles[own])


def window_count(samples: int, window: int, order: str) -> int:
    """Return how many windows a pass has: samples / window, rounded, at least 1; always 1 if sorted by length."""
    return 1 if order == "sorted" else max(1, round(samples / window))


def arranged(data_pass: DataPass, sizes: Integers, window: int, mixture: Mixture | None) -> Arrangement:
    """Put the segments of these sizes in the order of the pass, and cut them into windows of about equal size."""

    def shuffle(segments: Integers, cycle: int) -> Integers:
        if data_pass.order not in SHUFFLING:
            return segments
        # Stable, here and below: equal hashes keep their order, whichever sort the machine's numpy takes.
        return segments[np.argsort(hashed(segments, data_pass.key("segments", cycle)), kind="stable")]

    all_segments = np.arange(len(sizes))
    plain = Turns(segments=shuffle(all_segments, 0), cycles=np.zeros_like(all_segments))
    turns = mixture.turns(sizes, shuffle) if mixture else plain
    taken = sizes[turns.segments]
    before, total = np.cumsum(taken) - taken, int(taken.sum())
    # The window of each segment, by the samples before it: integers, so that no machine rounds otherwise. A number
    # that no segment has makes no window.
    at = before * window_count(total, window, data_pass.order) // max(total, 1)
    return Arrangement(turns=turns, starts=np.flatnonzero(np.diff(at, prepend=-1)))


def sample_order(data_pass: DataPass, samples: Integers, cycles: Integers) -> Integers:
    """Return the order in which a window's samples fill buckets, as indices; `cycles` tells repeated samples apart.

    They are shuffled if the pass is "shuffled" or "laplace", and stay as they are otherwise.
    """
    if data_pass.order not in SHUFFLING:
        return np.arange(len(samples))
    return np.argsort(hashed(samples + (cycles << _SAMPLE_BITS), data_pass.key("samples")), kind="stable")


def row_order(data_pass: DataPass, window: int, rows: int) -> Integers:
    """Return the order in which a window's packed rows are dealt to groups, as indices.

    They are shuffled if the pass is "shuffled" or "laplace", and stay as they are otherwise.
    """
    if data_pass.order not in SHUFFLING:
        return np.arange(rows)
    return np.argsort(hashed(np.arange(rows), data_pass.key("rows", window)), kind="stable")


def group_order(
    data_pass: DataPass, window: int, buckets: Integers, first_samples: Integers, laplace_runs: int
) -> Integers:
    """Return the order in which a window's groups are served, as indices, given each group's bucket and first sample.

    Sorted groups stay as they are, those of "as_is" are served by first sample, and others are shuffled; with "laplace"
    the shuffled order is cut into runs of alternately rising and falling buckets.
    """
    if data_pass.order == "sorted":
        return np.arange(len(buckets))
    if data_pass.order == "as_is":
        return np.argsort(first_samples, kind="stable")
    mixed = np.argsort(hashed(np.arange(len(buckets)), data_pass.key("groups", window)), kind="stable")
    return mixed if data_pass.order == "shuffled" else _in_runs(mixed, buckets, laplace_runs)


def _in_runs(mixed: Integers, buckets: Integers, runs: int) -> Integers:
    """Cut the order into runs, and sort each by bucket: rising, falling, rising and so on."""
    run = np.arange(len(mixed)) * runs // max(len(mixed), 1)
    size = np.where(run % 2 == 1, -buckets[mixed], buckets[mixed])
    return mixed[np.lexsort((size, run))]
