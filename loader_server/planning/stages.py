"""The stages of a plan: which samples take part from which epoch on, and how many batches an epoch may then have.

Rules: pure; without a curriculum there is one stage, from epoch 0. All stages share the shapes that are best for all
samples; a stage has those up to its longest sample, so every shape is known from the beginning. What took long to
compute goes to a `Keeper` and comes back from it; where that keeps it is its own business. Must not know the order of
samples or batches.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from loader_server.planning.order import window_count
from loader_server.planning.tally import LengthTally, narrowed
from loader_server.planning.windows.fill import groups_needed, spills_into
from loader_server.planning.windows.packing import BLOCK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from numpy.typing import NDArray

    from loader_server.planning.epoch import Recipe
    from loader_server.planning.settings import Limits

    Arrays = Mapping[str, NDArray[np.integer]]

__all__ = ["Keeper", "PlanStage", "kept_tally", "stages_of"]


class Keeper:
    """Store for the parts of a plan that take long to compute; this one keeps nothing.

    `kind` tells what the arrays are, `name` which plan they belong to: it begins with the plan's digest, so what is
    found is right unless it is damaged, and a keeper never returns damaged arrays. Several threads and processes may
    load and save at once.
    """

    def load(self, kind: str, name: str) -> Arrays | None:
        """Return the saved arrays, or None if there are none, or if they are gone or damaged; here always None."""
        return None

    def save(self, kind: str, name: str, arrays: Arrays) -> None:
        """Save these arrays; report a failure to the operator instead of raising. Nothing is saved here."""


def kept_tally(keeper: Keeper, name: str, read: Callable[[], LengthTally]) -> LengthTally:
    """Return the tally of this name from the keeper, or the one that `read` returns, which is kept then.

    Reading lengths is linear in the number of samples, and each process that opens the stream needs the tally. An error
    of `read` is passed on, and nothing is kept.
    """
    arrays = keeper.load("survey", name)
    if arrays is not None:
        return LengthTally.of_arrays(arrays)
    tally = read()
    keeper.save("survey", name, tally.arrays())
    return tally


@dataclass(frozen=True, slots=True, kw_only=True)
class _Totals:
    """Contents of a pass: planned samples by bucket, the sum of their lengths, and the number of all samples."""

    counts: NDArray[np.int64]
    length: int
    samples: int


class PlanStage:
    """The plan from one epoch on."""

    def __init__(self, first_epoch: int, recipe: Recipe) -> None:
        self.first_epoch = first_epoch
        self.recipe = recipe
        self._least, self._most = _totals_of_passes(recipe)

    def most_batches(self, group: int) -> int:
        """Return an upper bound on the batches of an epoch, exact for bucket counts, one window and no mixing."""
        recipe, counts, samples = self.recipe, self._most.counts, self._most.samples
        rows = recipe.rows * group
        windows = window_count(samples, recipe.settings.window, recipe.settings.order)
        if recipe.packed:
            # Best fit leaves at most one row of each block less than half full: two such rows would have become one.
            # Blocks end with their window, so there are up to one more a window than full ones; likewise groups.
            most_rows = 2 * self._most.length // int(recipe.tally.edges[0])
            groups = (most_rows + samples // BLOCK + windows) // int(rows[0]) + windows
        elif recipe.settings.carry:
            # Each recording goes to the lane that holds least, so none exceeds the average by more than one recording.
            groups = int(counts.sum()) // int(rows[0]) + windows * (1 + int(recipe.tally.run[0]))
        elif not recipe.counted:
            # Plain order: a group ends when it is full, or with its window. It is full with the fewest samples if these
            # are the longest.
            longest = {key: np.array([length]) for key, length in recipe.shapes[-1].lengths.items()}
            groups = int(counts.sum()) // (int(recipe.limits.rows(longest)[0]) * group) + windows
        elif windows == 1 and recipe.mixture is None:
            groups = int(groups_needed(counts[None], recipe.rows, group, recipe.limits.subs).sum())
        else:
            # In each window, a bucket's leftover costs at most 1 - fl/fb groups more than its share. Here fb and fl are
            # the samples in a group of the bucket and in one of the larger bucket that it spills into. A leftover L of
            # at most fl spills, and takes L/fl groups instead of L/fb; a larger one closes a group, which then lacks
            # less than fb - fl samples. The last bucket adds one group that is not full.
            larger = [spills_into(bucket, recipe.limits.subs) for bucket in range(len(rows) - 1)]
            spilled = float((1 - rows[larger] / rows[:-1]).sum())
            groups = int((-(-counts // rows)).sum()) + math.ceil(windows * (1 + spilled))
        return -(-groups // recipe.settings.epoch_parts) * group

    def fewest_groups(self, group: int) -> int:
        """Return a lower bound on the groups of a pass, exact for bucket counts, one window and no mixing."""
        recipe, counts = self.recipe, self._least.counts
        if recipe.counted:  # cutting the same samples into several windows never makes fewer groups
            return int(groups_needed(counts[None], recipe.rows, group, recipe.limits.subs).sum())
        if recipe.packed:
            cells = int(recipe.tally.edges[0] * recipe.rows[0]) * group
            return -(-self._least.length // cells)
        # A sample takes at least 1 / rows of a batch padded to its own bucket. Fractions keep the sum exact.
        shares = zip(counts.tolist(), recipe.rows.tolist(), strict=True)
        return math.ceil(sum(Fraction(samples, rows) for samples, rows in shares) / group)


def _totals_of_passes(recipe: Recipe) -> tuple[_Totals, _Totals]:
    """Return the least and the most that a pass may hold; they are equal without mixing."""
    tally, mixture, sizes = recipe.tally, recipe.mixture, np.diff(recipe.table.segments)
    # Without mixing every pass holds all samples once, so the least is also the most.
    if mixture is None:
        counts = tally.counts.sum(axis=0, dtype=np.int64)
        totals = _Totals(counts=counts, length=int(tally.sums.sum()), samples=int(sizes.sum()))
        return totals, totals
    least, most = (
        _Totals(counts=times @ tally.counts, length=int(times @ tally.sums), samples=int(times @ sizes))
        for times in (mixture.fewest_turns(sizes), mixture.most_turns(sizes))
    )
    return least, most


def stages_of(
    recipe: Recipe, by_epoch: Iterable[tuple[int, Limits]], keeper: Keeper, digest: str
) -> tuple[PlanStage, ...]:
    """Return the stages of a plan by first epoch, ascending; `recipe` covers all samples.

    Raise DataError if a stage has no sample; errors of the table pass through.
    """
    return tuple(PlanStage(epoch, _recipe_within(limits, recipe, keeper, digest)) for epoch, limits in by_epoch)


def _recipe_within(limits: Limits, recipe: Recipe, keeper: Keeper, digest: str) -> Recipe:
    """Return the recipe restricted to the samples within these limits; the keeper may already have their tally.

    Return it as it is if these are its own limits. Raise DataError if no sample is within them; errors of the table
    pass through.
    """
    if limits == recipe.limits:  # no curriculum, or its last stage: the same samples
        return recipe
    read = partial(narrowed, recipe.table, limits, recipe.tally)
    tally = kept_tally(keeper, f"{digest}-{limits.max_length}", read)
    # The same shapes, so that a longer stage compiles only what is new to it.
    used = len(tally.edges)
    return replace(recipe, limits=limits, tally=tally, shapes=recipe.shapes[:used], rows=recipe.rows[:used])
