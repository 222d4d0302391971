"""One window of an epoch, planned: its samples in the order of batches, and where each group of batches starts.

Rules: pure; a window's groups depend only on the lengths of its samples and the keys of the pass. Must not know other
windows or batch numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from loader_server.planning.order import DataPass, group_order, sample_order
from loader_server.planning.windows.fill import groups_needed, spills_into

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from loader_server.planning.settings import Limits

    Integers = NDArray[np.int64]

__all__ = ["Candidates", "Filling", "WindowPlan", "in_buckets", "in_sequence"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """Samples of a window that take part: number, bucket, and the lengths of each padded key that is needed."""

    samples: Integers
    #: How often each sample's segment was used before: above 0 only where a mixed source starts over.
    cycles: Integers
    buckets: Integers
    lengths: Mapping[str, Integers]
    #: With carried state only: which samples are the first chunk of a recording.
    begins: NDArray[np.bool_] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Filling:
    """Parameters of filling a window: its pass, its number, the rows of each bucket, and settings."""

    data_pass: DataPass
    window: int
    #: Rows of a batch of each bucket.
    rows: Integers
    #: Batches of a group: all of them have one shape.
    group: int
    #: Sub-buckets of each bucket by a second key; 1 if there are none.
    subs: int
    laplace_samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowPlan:
    """Groups in the order in which they are served: each takes the rows from start to stop, `rows` a batch.

    A row is one sample, or, with packing, the samples from one of `row_starts` to the next.
    """

    samples: Integers
    #: The rows of each group; those of several groups follow one another in `samples`, but not in this order.
    starts: Integers
    stops: Integers
    #: Bucket of each group, and the rows of one of its batches.
    buckets: Integers
    rows: Integers
    #: Greatest length in each group by key, for batches that are padded to it.
    longest: Mapping[str, Integers]
    #: With packing: the first sample of each row (and at the end their number), and each sample's offset in its row.
    row_starts: Integers | None = None
    offsets: Integers | None = None
    #: With carried state: which samples begin a recording, or continue one after a dropped chunk.
    resets: NDArray[np.bool_] | None = None

    def largest_first(self) -> WindowPlan:
        """Return the plan with the first group of the largest bucket moved to the front; itself without groups."""
        if not len(self.buckets):
            return self
        # Served first as an early test of memory: a model that does not fit fails in the first step, not after hours.
        largest = int(np.argmax(self.buckets))
        turn = np.r_[largest, np.delete(np.arange(len(self.buckets)), largest)]
        return replace(
            self,
            starts=self.starts[turn],
            stops=self.stops[turn],
            buckets=self.buckets[turn],
            rows=self.rows[turn],
            longest={key: of[turn] for key, of in self.longest.items()},
        )

    def row_of(self, sample: int) -> int:
        """Return the row that holds the sample at this place of the window; its own place unless rows are packed."""
        return sample if self.row_starts is None else int(np.searchsorted(self.row_starts, sample, side="right")) - 1

    def first_of(self, row: int) -> int:
        """Return the index of the first sample of a row."""
        return row if self.row_starts is None else int(self.row_starts[row])


def in_buckets(filling: Filling, candidates: Candidates, key: str) -> WindowPlan:
    """Fill buckets by length, the longest samples spilling; within a bucket, samples keep the order of the pass."""
    order = sample_order(filling.data_pass, candidates.samples, candidates.cycles)
    by_length = order[_stable_order(candidates.lengths[key][order])]
    # From counts alone, as when the epoch was opened: the batch numbers depend on both giving the same groups.
    counts = np.bincount(candidates.buckets, minlength=len(filling.rows))
    groups = groups_needed(counts[None], filling.rows, filling.group, filling.subs)[0]
    capacity = groups * filling.rows * filling.group
    bucket, sizes = _filled(candidates.buckets, by_length, capacity, filling.subs)
    order = by_length if filling.data_pass.order == "sorted" else order
    return _served(filling, candidates, order[_stable_order(bucket[order])], (groups, sizes))


def _filled(own: Integers, by_length: Integers, capacity: Integers, subs: int) -> tuple[Integers, Integers]:
    """Return each sample's bucket after spilling, and the number of samples that each bucket takes."""
    in_own = by_length[_stable_order(own[by_length])]
    waiting = np.split(in_own, np.cumsum(np.bincount(own, minlength=len(capacity)))[:-1])
    bucket, sizes = np.empty(len(own), np.int64), np.empty(len(capacity), np.int64)
    for at, room in enumerate(capacity):
        bucket[waiting[at][:room]] = at
        sizes[at] = min(len(waiting[at]), room)
        if len(left := waiting[at][room:]):
            larger = spills_into(at, subs)
            # Leftovers go first, so that it is the larger bucket's own longest samples that spill on.
            waiting[larger] = np.concatenate([left, waiting[larger]])
    return bucket, sizes


def _served(filling: Filling, candidates: Candidates, order: Integers, filled: tuple[Integers, Integers]) -> WindowPlan:
    """Cut the filled buckets into groups, in the order in which they are served."""
    groups, sizes = filled
    buckets = np.repeat(np.arange(len(groups)), groups)
    within = np.arange(len(buckets)) - np.repeat(np.cumsum(groups) - groups, groups)
    full = (filling.rows * filling.group)[buckets]
    ends = np.cumsum(sizes)[buckets]
    starts = np.repeat(np.cumsum(sizes) - sizes, groups) + within * full
    samples = candidates.samples[order]
    runs = max(1, len(samples) // filling.laplace_samples)
    turn = group_order(filling.data_pass, filling.window, buckets, samples[starts], runs)
    return WindowPlan(
        samples=samples,
        starts=starts[turn],
        stops=np.minimum(starts + full, ends)[turn],
        buckets=buckets[turn],
        rows=filling.rows[buckets[turn]],
        longest={of: np.maximum.reduceat(lengths[order], starts)[turn] for of, lengths in candidates.lengths.items()},
    )


def in_sequence(filling: Filling, candidates: Candidates, limits: Limits, edges: Integers) -> WindowPlan:
    """Batch in plain order: a group ends where one more sample would exceed the budget; buckets only name its shape."""
    order = _laplace_or_plain(filling, candidates, limits.key)
    lengths = {key: limits.padded(of[order]) for key, of in candidates.lengths.items()}
    starts, rows = [], []
    start = 0
    while start < len(order):
        samples, batch_rows = _next_group(lengths, start, filling.group, limits)
        starts.append(start)
        rows.append(batch_rows)
        start += samples
    first = np.array(starts, np.int64)
    longest = {key: np.maximum.reduceat(candidates.lengths[key][order], first) if starts else first for key in lengths}
    return WindowPlan(
        samples=candidates.samples[order],
        starts=first,
        stops=np.append(first[1:], len(order)),
        buckets=np.searchsorted(edges, limits.padded(longest[limits.key])),
        rows=np.array(rows, np.int64),
        longest=longest,
    )


def _next_group(lengths: Mapping[str, Integers], start: int, group: int, limits: Limits) -> tuple[int, int]:
    """Return how many samples from `start` fit into `group` batches padded to their longest, and each batch's rows."""
    # No more than if all were as short as the first; then the running maximum of lengths gives the rows that would fit
    # if the group ended at each sample. Rows only fall with it, so the first sample that does not fit ends the group.
    most = group * int(limits.rows({key: of[start : start + 1] for key, of in lengths.items()})[0])
    running = {key: np.maximum.accumulate(of[start : start + most]) for key, of in lengths.items()}
    rows = limits.rows(running)
    count = np.arange(1, len(rows) + 1)
    # The appended False is where `argmin` ends if all of them fit.
    fits = int(np.argmin(np.append(count <= rows * group, False)))
    needed = -(-fits // (group * limits.rows_multiple)) * limits.rows_multiple
    return fits, min(int(rows[fits - 1]), needed)


def _laplace_or_plain(filling: Filling, candidates: Candidates, key: str) -> Integers:
    """Return the order of samples: sorted, in runs of alternately rising and falling length, or as in the pass."""
    order = sample_order(filling.data_pass, candidates.samples, candidates.cycles)
    lengths = candidates.lengths[key][order]
    if filling.data_pass.order == "sorted":
        return order[_stable_order(lengths)]
    if filling.data_pass.order == "laplace":
        run = np.arange(len(order)) // filling.laplace_samples
        return order[np.lexsort((np.where(run % 2 == 1, -lengths, lengths), run))]
    return order


def _stable_order(values: Integers) -> Integers:
    """Return a stable argsort; numbers below 65 536 take numpy's radix sort, five times as fast."""
    small = values.size and int(values.max()) < 2**16
    return np.argsort(values.astype(np.uint16) if small else values, kind="stable")
