"""The reading of all lengths before a plan is made: once to choose buckets, once to count each segment by bucket.

Rules: pure; linear in the number of samples, with one block of segments in memory at a time; the result is a handful of
arrays that can be kept on disk, so that a plan can be opened without reading lengths. Every sample that is dropped is
counted by reason. Must not know epochs, groups or shuffles.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np

from loader_server.planning.buckets import Costs, LengthHistogram, best_boundaries, chosen_boundaries
from loader_server.planning.order import window_count
from loader_server.planning.settings import MOST_SHAPES
from shared.errors import DataError, SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from loader_server.planning.settings import Limits, PlanSettings

    Integers = NDArray[np.int64]

__all__ = ["LEFT_OUT", "LengthTable", "LengthTally", "Progress", "bucket_of", "narrowed", "tally_lengths"]

Progress = Callable[[int, int], None]

#: Stands in place of a length: the stream's filter drops the sample.
LEFT_OUT = -1

#: Samples whose lengths are in memory at once; a segment that is larger is read whole.
_BLOCK = 2**18
#: Reasons to drop samples. "filtered" is last so that kept tallies, which store counts by position, stay valid, but it
#: is checked first.
_REASONS = ("empty", "too_short", "too_long", "filtered")
_FILTERED = _REASONS.index("filtered")
#: Arrays of a tally that are kept under their own names.
_KEPT = ("edges", "counts", "dropped", "lengths", "samples", "sums", "above", "run")


class LengthTable(Protocol):
    """The planner's view of an index."""

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the index that the lengths are from: equal ones have equal samples and lengths."""

    @property
    def keys(self) -> tuple[str, ...]:
        """Padded keys of a sample, after transforms, the bucketed one among them."""

    @property
    def segments(self) -> NDArray[np.int64]:
        """First sample of each segment, and the number of samples at the end."""

    def lengths(self, key: str, start: int, stop: int) -> NDArray[np.int64]:
        """Return the lengths, after transforms, of samples `start` to `stop` (excluded).

        The bucketed length of a sample that the stream's filter drops is `LEFT_OUT`.
        """

    def begins(self, start: int, stop: int) -> NDArray[np.bool_]:
        """Return which of these samples are the first chunk of a recording; no segment begins within one.

        Called only if state is carried.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthTally:
    """Results of reading all lengths: all that a plan needs to number its batches."""

    #: Padded length of the bucketed key in each bucket, ascending.
    edges: Integers
    #: For each other key, its greatest length in each bucket and all smaller ones, whose samples may spill into it.
    others: Mapping[str, Integers]
    #: Samples of each segment in each bucket.
    counts: NDArray[np.int32]
    #: Numbers of dropped samples in the order of `_REASONS`: empty, too_short, too_long, filtered.
    dropped: Integers
    #: The lengths that occur among planned samples, and how many samples have each; long ones share bins.
    lengths: Integers
    samples: Integers
    #: Sum of planned samples' lengths in each segment.
    sums: Integers
    #: How many planned samples are longer than the budget, as an array of one.
    above: Integers
    #: With carried state, the most chunks of a recording, as an array of one; else 0.
    run: Integers = field(default_factory=lambda: np.zeros(1, np.int64))

    def arrays(self) -> dict[str, NDArray[np.integer]]:
        """Return all arrays of the tally by name, from which a keeper's copy can be made into a tally again."""
        others = {f"other.{key}": longest for key, longest in self.others.items()}
        return {name: getattr(self, name) for name in _KEPT} | others

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, NDArray[np.integer]]) -> LengthTally:
        """Return the tally that gave these arrays; one kept before `run` existed has a run of 0."""
        return cls(
            edges=arrays["edges"].astype(np.int64),
            others={
                name.removeprefix("other."): longest.astype(np.int64)
                for name, longest in arrays.items()
                if name.startswith("other.")
            },
            counts=arrays["counts"].astype(np.int32, copy=False),
            dropped=arrays["dropped"].astype(np.int64),
            lengths=arrays["lengths"].astype(np.int64),
            samples=arrays["samples"].astype(np.int64),
            sums=arrays["sums"].astype(np.int64),
            above=arrays["above"].astype(np.int64),
            run=arrays["run"].astype(np.int64) if "run" in arrays else np.zeros(1, np.int64),
        )

    def dropped_by_reason(self) -> dict[str, int]:
        """Return how many samples were dropped for each reason that occurred; empty if none was."""
        return {reason: int(count) for reason, count in zip(_REASONS, self.dropped, strict=False) if count}


def tally_lengths(
    table: LengthTable, settings: PlanSettings, limits: Limits, progress: Progress | None = None
) -> LengthTally:
    """Read all lengths twice, for the histogram and for each segment's bucket counts; once more for sub-buckets.

    Raise DataError if no sample is left, SettingsError if one is longer than the boundaries that the settings name.
    Errors of the table pass through.
    """
    passes = 2 if limits.sub_key is None else 3
    reading = _LengthPasses(table, limits, progress or _show_nothing, passes * int(table.segments[-1]))
    first_look, total = _look_first(reading)
    edges = _edges(reading, settings, first_look, total)
    subs: dict[str, Integers] = {}
    if limits.sub_key is not None:
        subs[limits.sub_key] = _sub_edges(reading, edges)
        edges = np.repeat(edges, limits.subs)
    counts, sums, others = _count_buckets(reading, edges, subs)
    return LengthTally(
        edges=edges,
        others=others,
        counts=counts,
        sums=sums,
        **first_look,
        run=_longest_run(table) if settings.carry else np.zeros(1, np.int64),
    )


def narrowed(table: LengthTable, limits: Limits, tally: LengthTally) -> LengthTally:
    """Return the tally of the samples within narrower limits, in the same buckets up to the last that has any.

    Larger buckets are cut off so that leftovers of short samples do not spill into shapes of longer ones. Raise
    DataError if no sample is within the limits. Errors of the table pass through.
    """
    reading = _LengthPasses(table, limits, _show_nothing, 0)
    first_look, _ = _look_first(reading)
    subs = {} if limits.sub_key is None else {limits.sub_key: tally.others[limits.sub_key]}
    counts, sums, _ = _count_buckets(reading, tally.edges, subs)
    last = int(np.flatnonzero(counts.any(axis=0))[-1])
    # Whole buckets only: spilling counts on each bucket having all its sub-buckets.
    used = (last // limits.subs + 1) * limits.subs
    return LengthTally(
        edges=tally.edges[:used],
        others={key: longest[:used] for key, longest in tally.others.items()},
        counts=counts[:, :used],
        sums=sums,
        **first_look,
        run=tally.run,
    )


def _show_nothing(done: int, total: int) -> None:
    """Do nothing: this is the progress of a tally that shows none."""


@dataclass(slots=True)
class _LengthPasses:
    """The reading of all lengths, several times; `progress` gets how many are read, of `total` in all passes."""

    table: LengthTable
    limits: Limits
    progress: Progress
    total: int
    _done: int = 0

    def blocks(self) -> Iterator[tuple[int, int, dict[str, Integers]]]:
        """Yield each block's first sample, the one after its last, and the lengths that decide; table errors pass."""
        for start, stop in _blocks(self.table.segments):
            limits, table = self.limits, self.table
            yield start, stop, {key: limits.counted(key, table.lengths(key, start, stop)) for key in limits.deciding}
            self._done += stop - start
            self.progress(self._done, self.total)


def _look_first(reading: _LengthPasses) -> tuple[dict[str, Integers], int]:
    """Return what the first pass over all lengths gives: the arrays of a tally, and the sum of planned lengths.

    Raise DataError if no sample is left. Errors of the table and of `progress` pass through.
    """
    limits, histogram, total = reading.limits, LengthHistogram(), 0
    dropped, above = np.zeros(len(_REASONS) + 1, np.int64), np.zeros(1, np.int64)
    for _, _, lengths in reading.blocks():
        reason = _reason(lengths, limits)
        # The last count, of samples without a reason, is cut off at the end.
        dropped += np.bincount(reason, minlength=len(dropped))
        kept = lengths[limits.key][reason == len(_REASONS)]
        histogram.add(kept)
        total += int(kept.sum())
        above += (kept > limits.longest_within).sum()
    occurring, samples = histogram.table()
    if not samples.size:
        raise _nothing_left(reading.table, dropped, limits)
    return {"lengths": occurring, "samples": samples, "dropped": dropped[:-1], "above": above}, total


def _longest_run(table: LengthTable) -> Integers:
    """Return the most chunks of any recording, as an array of one; 0 without samples. Errors of the table pass."""
    most = np.zeros(1, np.int64)
    for start, stop in _blocks(table.segments):
        # A block is whole segments, and no segment begins within a recording, so no recording is cut in two here.
        firsts = np.flatnonzero(table.begins(start, stop))
        most = np.maximum(most, np.diff(np.append(firsts, stop - start)).max(initial=0))
    return most


def bucket_of(
    lengths: Mapping[str, Integers], limits: Limits, edges: Integers, others: Mapping[str, Integers]
) -> Integers:
    """Return the bucket of each sample, -1 if it is dropped; that the last edge covers it is not checked."""
    bucket = np.searchsorted(edges[:: limits.subs], lengths[limits.key]) * limits.subs
    if limits.sub_key is not None:
        for sub in range(limits.subs - 1):
            # A sample too long for any bucket is dropped below, so any edge will do for it.
            edge = others[limits.sub_key][np.minimum(bucket // limits.subs * limits.subs + sub, len(edges) - 1)]
            bucket += lengths[limits.sub_key] > edge
    return np.where(_reason(lengths, limits) == len(_REASONS), bucket, -1)


def _blocks(segments: Integers) -> Iterator[tuple[int, int]]:
    """Yield ranges of samples of about one block, each made of whole segments."""
    first = 0
    while first < len(segments) - 1:
        # At least one segment, even if it is larger than a block.
        after = max(int(np.searchsorted(segments, segments[first] + _BLOCK, side="right")) - 1, first + 1)
        yield int(segments[first]), int(segments[after])
        first = after


def _reason(lengths: Mapping[str, Integers], limits: Limits) -> Integers:
    """Return the index in `_REASONS` of the reason to drop each sample, or `len(_REASONS)` if it is kept."""
    own = lengths[limits.key]
    too_long = np.zeros(len(own), bool) if limits.longest is None else own > limits.longest
    for key, budget in limits.budgets.items():
        too_long |= lengths[key] > budget
    # `np.select` takes the first condition that holds: `LEFT_OUT` is also below `min_length`, but counts as filtered.
    reasons = (_FILTERED, *range(_FILTERED))
    reason = np.select([own < 0, own == 0, own < limits.min_length, too_long], reasons, len(_REASONS))
    return np.asarray(reason, np.int64)


def _edges(reading: _LengthPasses, settings: PlanSettings, first_look: Mapping[str, Integers], total: int) -> Integers:
    """Return the buckets' padded lengths: those that the settings name, or the best ones.

    Raise SettingsError if a sample is longer than the last length named.
    """
    limits, lengths, samples = reading.limits, first_look["lengths"], first_look["samples"]
    if limits.boundaries:
        longest, most = int(lengths[-1]), limits.boundaries[-1]
        if longest > most:
            raise SettingsError(
                expected=f'samples of at most {most} steps of "{limits.key}", the longest bucket',
                got=f"a sample of {longest}",
                where="shapes",
                remedy=f'Add a bucket of at least {longest}, or set max_length = "{most} steps" to drop longer ones.',
            )
        return np.array(limits.boundaries, np.int64)
    # Several lengths may be padded alike. On the reversed array `np.unique` finds the last of them, at which the
    # cumulative count has all of them.
    padded, last = np.unique(limits.padded(lengths)[::-1], return_index=True)
    costs = Costs(
        lengths=padded,
        below=np.cumsum(samples)[len(samples) - 1 - last],
        rows=limits.rows({limits.key: padded}),
        used=limits.used(padded),
        total=total,
        budget=limits.budget,
        windows=window_count(int(reading.table.segments[-1]), settings.window, settings.order),
        # With a fixed number of rows, any shapes make equally many batches: then only padding can be saved.
        objective="area" if settings.rows else settings.objective,
    )
    shapes = settings.shapes if isinstance(settings.shapes, int) else None
    # With several shapes the rows of a batch, and so the lanes, would change from batch to batch.
    return chosen_boundaries(costs, 1 if settings.carry else shapes, MOST_SHAPES)


def _sub_edges(reading: _LengthPasses, edges: Integers) -> Integers:
    """Return the second key's padded length in each sub-bucket, for least padding; errors of the table pass.

    The last sub-bucket of each bucket is as long as those of smaller buckets, because their leftovers spill into it.
    """
    limits = reading.limits
    assert limits.sub_key is not None
    histograms = [LengthHistogram() for _ in edges]
    for _, _, lengths in reading.blocks():
        kept = _reason(lengths, limits) == len(_REASONS)
        bucket = np.searchsorted(edges, lengths[limits.key])
        for at, histogram in enumerate(histograms):
            histogram.add(lengths[limits.sub_key][kept & (bucket == at)])
    chosen = np.zeros((len(edges), limits.subs), np.int64)
    for at, histogram in enumerate(histograms):
        values, samples = histogram.table()
        if values.size:
            # A bucket may have fewer lengths than sub-buckets: the rest repeat the last edge, and stay empty.
            best = values[best_boundaries(np.cumsum(samples), np.maximum(values, 1), limits.subs)[-1]]
            chosen[at] = np.pad(best, (0, limits.subs - len(best)), mode="edge")
    chosen[:, -1] = np.maximum.accumulate(chosen[:, -1])
    return limits.padded(np.maximum(chosen, 1)).ravel()


def _count_buckets(
    reading: _LengthPasses, edges: Integers, subs: dict[str, Integers]
) -> tuple[NDArray[np.int32], Integers, dict[str, Integers]]:
    """Return each segment's bucket counts and sum of lengths, and each other key's greatest length by bucket.

    It covers the bucket and all smaller ones; edges of sub-buckets (`subs`) come back as they are. Table errors pass.
    """
    table, limits = reading.table, reading.limits
    segments, buckets = table.segments, len(edges)
    counts = np.zeros((len(segments) - 1, buckets), np.int32)
    sums = np.zeros(len(segments) - 1, np.int64)
    others = {key: np.zeros(buckets, np.int64) for key in table.keys if key not in (limits.key, *subs)}
    for start, stop, lengths in reading.blocks():
        bucket = bucket_of(lengths, limits, edges, subs)
        kept = bucket >= 0
        first, after = np.searchsorted(segments, [start, stop])
        size = int(after - first)
        segment = np.repeat(np.arange(size), np.diff(segments[first : after + 1]))[kept]
        # Segment and bucket as one number, so that a single bincount counts the whole block.
        within = segment * buckets + bucket[kept]
        counts[first:after] = np.bincount(within, minlength=size * buckets).reshape(-1, buckets)
        # numpy sums weights in float64, which is exact here: the lengths of a segment sum to less than 2**53.
        sums[first:after] = np.bincount(segment, weights=lengths[limits.key][kept], minlength=size)
        for key, longest in others.items():
            np.maximum.at(longest, bucket[kept], table.lengths(key, start, stop)[kept])
    return counts, sums, subs | {key: np.maximum.accumulate(longest) for key, longest in others.items()}


def _nothing_left(table: LengthTable, dropped: Integers, limits: Limits) -> DataError:
    reasons = ", ".join(f"{count} {reason}" for reason, count in zip(_REASONS, dropped, strict=False) if count)
    return DataError(
        expected="at least one sample to plan",
        got=f"{int(table.segments[-1])} samples, all dropped ({reasons})" if reasons else "no samples",
        where="plan" if limits.max_length is None else f"plan, samples of at most {limits.max_length} steps",
        remedy="Check min_length, max_length, limits and filter, and that the source is the right one."
        + (" min_length = 0 keeps samples of length 0." if dropped[_REASONS.index("empty")] else ""),
    )
