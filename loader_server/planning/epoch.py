"""One epoch of a plan: which samples batch number n holds, and its shape.

Rules: pure; opening an epoch looks only at bucket counts of segments; a window's samples are looked at when one of its
batches is asked for, and the last few windows are kept. Batches are numbered from 0; `group` consecutive ones have one
shape. Safe to use from several threads: a window that is planned twice is the same window.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from loader_server.planning.settings import NO_KEY
from loader_server.planning.tally import bucket_of
from loader_server.planning.windows.lanes import in_lanes
from loader_server.planning.windows.packing import in_rows
from loader_server.planning.windows.window import Candidates, Filling, WindowPlan, in_buckets, in_sequence
from shared.wire.batch_layout import BucketShape

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from loader_server.planning.order import Arrangement, DataPass, Mixture, Turns
    from loader_server.planning.settings import Limits, PlanSettings
    from loader_server.planning.tally import LengthTable, LengthTally

__all__ = ["EpochPlan", "PlannedBatch", "Recipe", "Seat"]

#: Windows kept planned: the one being served, the next one, and one for a trainer that lags behind.
_WINDOWS_KEPT = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedBatch:
    """One batch: the samples of its valid rows (perhaps none), its bucket, and its padded shape."""

    samples: NDArray[np.int64]
    bucket: int
    shape: BucketShape
    #: With packing only: the row of each sample, and its first step in that row.
    rows: NDArray[np.int64] | None = None
    offsets: NDArray[np.int64] | None = None
    #: With carried state only: which of the samples begin a recording, or continue one after a dropped chunk.
    resets: NDArray[np.bool_] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """Batch number and row of a sample in an epoch."""

    batch: int
    row: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The inputs that all epochs of a plan share."""

    table: LengthTable
    settings: PlanSettings
    limits: Limits
    tally: LengthTally
    #: The padded shape of each bucket, and its rows once more as an array; upper bounds if shapes are not fixed.
    shapes: tuple[BucketShape, ...]
    rows: NDArray[np.int64]
    #: None if sources are not mixed by weight.
    mixture: Mixture | None

    @property
    def fixed_shapes(self) -> bool:
        """Whether batches have their bucket's shape instead of the length of their longest samples."""
        return self.packed or (self.settings.pad_to == "bucket" and self.settings.shapes != "none")

    @property
    def packed(self) -> bool:
        """Whether rows hold several samples."""
        return self.settings.packing is not None

    @property
    def counted(self) -> bool:
        """Whether bucket counts alone determine how many batches a window has."""
        return not (self.packed or self.settings.carry) and self.settings.shapes != "none"


class EpochPlan:
    """Batches of one epoch by number."""

    def __init__(self, recipe: Recipe, data_pass: DataPass, arrangement: Arrangement, group: int) -> None:
        self.recipe = recipe
        self.group = group
        #: Number of batches in the epoch, a multiple of the group; set by `schedule`.
        self.batches: int
        self._data_pass = data_pass
        self._arrangement = arrangement
        # A cache for each instance: decorating the method would share one among all epochs, and keep them alive.
        self._window = lru_cache(maxsize=_WINDOWS_KEPT)(self._planned)
        #: Number of groups before each window, the total at the end; and the first group of this epoch's part.
        self._before: NDArray[np.int64]
        self._first: int

    def groups(self) -> NDArray[np.int64]:
        """Return how many groups each window has; this looks at all samples, and errors of the table pass through."""
        return np.array([len(self._window(window).starts) for window in range(len(self._arrangement.starts))])

    def schedule(self, groups: NDArray[np.integer], part: int) -> EpochPlan:
        """Assign numbers to the batches of one part of the pass, given each window's number of groups; return self."""
        self._before = np.concatenate([[0], np.cumsum(groups)])
        parts, all_groups = self.recipe.settings.epoch_parts, int(self._before[-1])
        # Rounding down both ends gives parts that together are all groups and differ by one at most.
        self._first = all_groups * part // parts
        self.batches = (all_groups * (part + 1) // parts - self._first) * self.group
        return self

    def batch(self, number: int) -> PlannedBatch:
        """Return the batch of this number; raise IndexError beyond the epoch.

        A batch at the end of a group that is not full may have no samples. Errors of the table pass through.
        """
        window, group, place = self._place(number)
        plan = self._window(window)
        rows, end = int(plan.rows[group]), int(plan.stops[group])
        # In a group that is not full, the last batches may have no rows at all: then `start` is `end`.
        start = min(int(plan.starts[group]) + place * rows, end)
        own = slice(plan.first_of(start), plan.first_of(min(start + rows, end)))
        batch = PlannedBatch(
            samples=plan.samples[own],
            bucket=int(plan.buckets[group]),
            shape=self._shape(plan, group),
            resets=None if plan.resets is None else plan.resets[own],
        )
        if plan.row_starts is None or plan.offsets is None:
            return batch
        in_row = np.searchsorted(plan.row_starts, np.arange(own.start, own.stop), side="right") - 1 - start
        return replace(batch, rows=in_row, offsets=plan.offsets[own])

    def find(self, sample: int) -> Iterator[Seat]:
        """Yield each place of a sample in this epoch: none if it is dropped or in another part, several if repeated.

        Errors of the table pass through.
        """
        segment = int(np.searchsorted(self.recipe.table.segments, sample, side="right")) - 1
        turns = np.flatnonzero(self._arrangement.turns.segments == segment)
        for window in np.unique(np.searchsorted(self._arrangement.starts, turns, side="right")) - 1:
            plan = self._window(int(window))
            # Several times in one window only if a mixed source starts over.
            for at in np.flatnonzero(plan.samples == sample):
                at_row = plan.row_of(int(at))
                group = int(np.flatnonzero((plan.starts <= at_row) & (at_row < plan.stops))[0])
                place, row = divmod(at_row - int(plan.starts[group]), int(plan.rows[group]))
                # Below 0 or too high in the pass's other parts, if epochs are parts of it.
                batch = (int(self._before[window]) + group - self._first) * self.group + place
                if 0 <= batch < self.batches:
                    yield Seat(batch=batch, row=row)

    def windows(self) -> Iterator[WindowPlan]:
        """Yield all windows of the epoch's pass in turn; errors of the table pass through."""
        # Past the cache: going through a pass must not push out the windows that are being served.
        return (self._planned(window) for window in range(len(self._arrangement.starts)))

    def _place(self, number: int) -> tuple[int, int, int]:
        """Return window, group within the window, and place within the group; raise IndexError beyond the epoch."""
        if not 0 <= number < self.batches:
            raise IndexError(f"batch {number} of an epoch of {self.batches}")
        group, place = divmod(number, self.group)
        group += self._first
        # From the right: of several windows that begin with this group, all but the last have no groups.
        window = int(np.searchsorted(self._before, group, side="right")) - 1
        return window, group - int(self._before[window]), place

    def _planned(self, window: int) -> WindowPlan:
        """Plan one window, in the way that the settings ask for: packed, in lanes, in plain order or in buckets.

        With `largest_first`, window 0 begins with a group of the largest bucket. Errors of the table pass through.
        """
        recipe = self.recipe
        candidates = self._candidates(self._arrangement.of_window(window))
        filling = Filling(
            data_pass=self._data_pass,
            window=window,
            rows=recipe.rows,
            group=self.group,
            subs=recipe.limits.subs,
            laplace_samples=recipe.settings.laplace_samples,
        )
        if recipe.packed:
            planned = in_rows(filling, candidates, recipe.limits.key, int(recipe.tally.edges[0]))
        elif recipe.settings.carry:
            planned = in_lanes(filling, candidates, recipe.limits.key, int(recipe.tally.edges[0]))
        elif recipe.settings.shapes == "none":
            planned = in_sequence(filling, candidates, recipe.limits, recipe.tally.edges)
        else:
            planned = in_buckets(filling, candidates, recipe.limits.key)
        return planned.largest_first() if recipe.settings.largest_first and window == 0 else planned

    def _candidates(self, turns: Turns) -> Candidates:
        """Return these segments' samples that are not dropped, with buckets and lengths; errors of the table pass."""
        recipe = self.recipe
        bounds = recipe.table.segments
        spans = [(int(bounds[segment]), int(bounds[segment + 1])) for segment in turns.segments]
        # Lengths that only shape a batch are read only if batches are padded to their longest samples.
        wanted = dict.fromkeys([*recipe.limits.deciding, *(() if recipe.fixed_shapes else recipe.tally.others)])
        read = {key: np.concatenate([recipe.table.lengths(key, *span) for span in spans]) for key in wanted}
        lengths = {key: recipe.limits.counted(key, column) for key, column in read.items()}
        samples = np.concatenate([np.arange(*span) for span in spans])
        cycles = np.repeat(turns.cycles, [stop - start for start, stop in spans])
        buckets = bucket_of(lengths, recipe.limits, recipe.tally.edges, recipe.tally.others)
        kept = buckets >= 0
        carry = recipe.settings.carry
        return Candidates(
            samples=samples[kept],
            cycles=cycles[kept],
            buckets=buckets[kept],
            lengths={key: column[kept] for key, column in lengths.items()},
            begins=np.concatenate([recipe.table.begins(*span) for span in spans])[kept] if carry else None,
        )

    def _shape(self, planned: WindowPlan, group: int) -> BucketShape:
        """Return the padded shape of a group's batches: the bucket's if shapes are fixed, else the longest lengths'."""
        recipe = self.recipe
        if recipe.fixed_shapes:
            return recipe.shapes[int(planned.buckets[group])]
        longest = {key: np.maximum(lengths[group : group + 1], 1) for key, lengths in planned.longest.items()}
        lengths = {key: int(recipe.limits.padded(column)[0]) for key, column in longest.items() if key != NO_KEY}
        return BucketShape(rows=int(planned.rows[group]), lengths=lengths)
