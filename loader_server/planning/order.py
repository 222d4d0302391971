"""The order in which segments make windows, samples fill buckets, and groups leave a window.

Rules: pure; shuffles are sorts by keyed hashes, so they are the same everywhere; segments are permuted whole, and
consecutive ones make a window; all windows of a pass are about equally large. `DataPass` stands for one pass through
all data. Must not know lengths or shapes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from loader_server.planning.mixing import Turns
from shared.hashing import hashed, key_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from loader_server.planning.mixing import Mixture

    Integers = NDArray[np.int64]

#: Orders that a keyed hash decides; the others follow the data.
SHUFFLING = ("shuffled", "laplace")
#: Bits that a sample number fits into; the cycle is hashed in the bits above, so that repeats are shuffled anew.
_SAMPLE_BITS = 40

__all__ = ["Arrangement", "DataPass", "arranged", "group_order", "row_order", "sample_order", "window_count"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataPass:
    """One pass through all data: its number, its order, the job's seed, and a text that tells streams apart."""

    number: int
    order: str
    seed: int
    stream: str

    def key(self, shuffle: str, *place: int) -> int:
        """Return the hash key of one of the pass's shuffles, for one cycle or window of it."""
        return key_of(self.seed, self.stream, self.number, shuffle, *place)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrangement:
    """Segments of a pass in order, and the first segment of each window."""

    turns: Turns
    starts: Integers

    def of_window(self, window: int) -> Turns:
        """Return the segments of one window."""
        stop = self.starts[window + 1] if window + 1 < len(self.starts) else len(self.turns.segments)
        own = slice(int(self.starts[window]), int(stop))
        return Turns(segments=self.turns.segments[own], cycles=self.turns.cycles[own])


def window_count(samples: int, window: int, order: str) -> int:
    """Return how many windows a pass has: one if it is sorted by length, which takes all samples at once."""
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
    """Return the order in which a window's samples fill buckets, as indices; `cycles` tells repeated samples apart."""
    if data_pass.order not in SHUFFLING:
        return np.arange(len(samples))
    return np.argsort(hashed(samples + (cycles << _SAMPLE_BITS), data_pass.key("samples")), kind="stable")


def row_order(data_pass: DataPass, window: int, rows: int) -> Integers:
    """Return the order in which a window's packed rows are dealt to groups."""
    if data_pass.order not in SHUFFLING:
        return np.arange(rows)
    return np.argsort(hashed(np.arange(rows), data_pass.key("rows", window)), kind="stable")


def group_order(
    data_pass: DataPass, window: int, buckets: Integers, first_samples: Integers, laplace_runs: int
) -> Integers:
    """Return the order in which a window's groups are served, given each group's bucket and first sample."""
    if data_pass.order == "sorted":
        return np.arange(len(buckets))
    if data_pass.order == "as_is":
        return np.argsort(first_samples, kind="stable")
    mixed = np.argsort(hashed(np.arange(len(buckets)), data_pass.key("groups", window)), kind="stable")
    return mixed if data_pass.order == "shuffled" else _in_runs(mixed, buckets, laplace_runs)


def _in_runs(mixed: Integers, buckets: Integers, runs: int) -> Integers:
    """Cut the order into runs, and sort each by bucket: rising, falling, rising and so on."""
    run = np.arange(len(mixed)) * runs // max(len(mixed), 1)
    falling = run % 2 == 1
    size = np.where(falling, -buckets[mixed], buckets[mixed])
    return mixed[np.lexsort((size, run))]
