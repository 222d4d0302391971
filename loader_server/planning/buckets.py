"""Bucket boundaries: the lengths that samples are best padded to.

Rules: pure, integers only; with K boundaries the optimum over the length histogram is found by dynamic programming, in
O(K·B·log B) for B distinct lengths: the cost of a padded sample rises with the boundary, so the best cut before a
boundary never moves down when the boundary moves up. `Costs` holds what boundaries cost. Must not know epochs or
samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from loader_server.planning.windows.fill import groups_needed

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

__all__ = ["Costs", "LengthHistogram", "best_boundaries", "chosen_boundaries"]

#: Lengths above this share bins of at most 1/1024 of their size, so that a histogram stays small whatever the unit.
_EXACT = 2048
#: The work of one batch as an integer: with 2**31 // rows a sample, the work of a billion samples fits into 64 bits.
_BATCH = 2**31
#: The group sizes that boundaries are tuned for: the usual worlds, up to a machine with eight accelerators. With
#: boundaries tuned for 1 and 8 alone, groups of 3 and 12 wasted up to 2.6 points more than without tuning
#: (LibriSpeech, dev and test).
_GROUPS = (1, 2, 3, 4, 6, 8)
#: How far the waste may exceed the least possible to save shapes, each of which costs a compilation: half a point.
_WORTH = 0.005
#: Weight of padded cells in the "steps" objective: small enough to matter only between equally many batches.
_TIE = 0.001
#: This many shapes are allowed however few samples they get: 300 short samples then make 4 batches instead of 6.
_FEW = 4
#: How far the share of padding may rise above the optimum while boundaries are tuned to whole groups.
_SLACK = 0.0015


class LengthHistogram:
    """Numbers of samples by length; long lengths share bins of 0.1 % width, and each bin keeps its longest."""

    def __init__(self) -> None:
        self._counts = np.zeros(_EXACT, np.int64)
        self._longest = np.zeros(_EXACT, np.int64)

    def add(self, lengths: Integers) -> None:
        """Add these lengths to the counts and longest lengths of their bins, with new bins for longer ones."""
        if not lengths.size:
            return
        bins = _bin(lengths)
        size = max(int(bins.max()) + 1, len(self._counts))
        grown = (0, size - len(self._counts))
        self._counts = np.pad(self._counts, grown) + np.bincount(bins, minlength=size)
        self._longest = np.pad(self._longest, grown)
        np.maximum.at(self._longest, bins, lengths)

    def table(self) -> tuple[Integers, Integers]:
        """Return the lengths that occur, ascending, and how many samples have each; empty if none was added.

        Long lengths that share a bin count as the longest of them.
        """
        used = np.flatnonzero(self._counts)
        return self._longest[used], self._counts[used]


def _bin(lengths: Integers) -> Integers:
    """Return the bin of each length: the length itself while small, then 1024 bins an octave."""
    # frexp's exponent is at most 11 below 2048, so these have octave 0 and a bin each. Above, the shift keeps the
    # leading 11 bits: 1024 values in each octave, which follow on those of the octave before.
    octave = np.maximum(np.frexp(lengths.astype(np.float64))[1] - 11, 0)
    bins: Integers = octave * 1024 + (lengths >> octave)
    return bins


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Costs of boundaries: candidate lengths (ascending), number of samples at most that long, rows of a batch at each.

    A sample longer than the budget makes a batch of its own, which takes as much work as it has cells; it is counted as
    that many batches.
    """

    lengths: Integers
    below: Integers
    rows: Integers
    #: The part of the budget that a row of each length uses.
    used: Integers
    #: The sum of all lengths, and the budget of a batch.
    total: int
    budget: int
    #: Windows of a pass; each is taken to have an equal part of every bucket.
    windows: int
    #: "steps" for the fewest batches, or "area" for the fewest padded cells.
    objective: str

    def sample(self) -> Integers:
        """Return the cost of one sample padded to each candidate length.

        It is the length itself for "area", and otherwise the sample's part of a batch, as an integer.
        """
        if self.objective == "area":
            return self.lengths
        # The sum over all samples must fit into 64 bits even if each one were as long as the longest.
        most = 2**62 // (int(self.below[-1]) * (int(self.used[-1]) // self.budget + 1))
        batch = min(_BATCH, most)
        whole, rest = np.divmod(self.used, self.budget)
        steps: Integers = np.maximum(batch // self.rows, whole * batch + rest * batch // self.budget)
        return steps

    def padding(self, chosen: Integers) -> NDArray[np.float64]:
        """Return the share of cells that are padding, for each row of chosen candidates, before anything spills."""
        counts = np.diff(self.below[chosen], axis=1, prepend=0)
        shares: NDArray[np.float64] = 1 - self.total / (counts * self.lengths[chosen]).sum(axis=1)
        return shares

    def fills(self, chosen: Integers) -> bool:
        """Return whether each bucket but the last fills two batches a window, or there are at most four shapes."""
        counts = np.diff(self.below[chosen], prepend=0) // self.windows
        return len(chosen) <= _FEW or bool((counts >= 2 * self.rows[chosen])[:-1].all())

    def waste(self, chosen: Integers) -> NDArray[np.float64]:
        """Return the share of work spent on padding and empty rows, for each row of chosen candidates.

        It is the mean over the group sizes that boundaries are tuned for, spilling included.
        """
        counts = -(-np.diff(self.below[chosen], axis=1, prepend=0) // self.windows)
        rows, used = self.rows[chosen], np.maximum(self.used[chosen], self.budget)
        cells = rows * self.lengths[chosen]
        # All group sizes are stacked into one array: one call is several times cheaper than one for each size.
        size, sizes = np.repeat(_GROUPS, len(chosen))[:, None], (len(_GROUPS), 1)
        batches = groups_needed(np.tile(counts, sizes), np.tile(rows, sizes), size) * size * self.windows
        area = 1 - self.total / (batches * np.tile(cells, sizes)).sum(axis=1)
        if self.objective != "area":
            area = 1 - self.total / (batches * np.tile(used, sizes)).sum(axis=1) + _TIE * area
        wastes: NDArray[np.float64] = area.reshape(len(_GROUPS), -1).sum(axis=0) / len(_GROUPS)
        return wastes


def chosen_boundaries(costs: Costs, shapes: int | None, most: int) -> Integers:
    """Return `shapes` boundaries, or if None the fewest with a waste within half a point of the best up to `most`.

    There are fewer than `shapes` if more are of no use; with None, choices with buckets that do not fill are left out.
    If all samples are one window, the boundaries are then tuned so that buckets make whole groups.
    """
    candidates = best_boundaries(costs.below, costs.sample(), shapes or most)
    chosen = candidates[-1]
    if shapes is None:
        # 1 500 utterances would otherwise be cut into 16 buckets that never fill.
        filling = [choice for choice in candidates if costs.fills(choice)]
        wastes = np.array([costs.waste(choice[None])[0] for choice in filling])
        chosen = filling[int(np.argmax(wastes <= wastes.min() + _WORTH))]
    return costs.lengths[_fitted(costs, chosen) if costs.windows == 1 else chosen]


def best_boundaries(below: Integers, sample_cost: Integers, shapes: int) -> list[Integers]:
    """Return, for 1, 2, … `shapes` buckets, the indices of the candidates with the least total cost of all samples.

    The choices end at as many buckets as there are candidates; one may have fewer buckets if more are of no use.
    """
    last = len(below) - 1
    least = below * sample_cost
    cuts: list[Integers] = []
    choices = [np.array([last])]
    for _ in range(min(shapes, len(below)) - 1):
        least, cut = _add_bucket(least, below, sample_cost)
        cuts.append(cut)
        choices.append(_walked_back(cuts, last))
    return choices


def _walked_back(cuts: list[Integers], last: int) -> Integers:
    """Return the boundaries found by following the cuts from the last candidate back to the first."""
    chosen = [last]
    for cut in reversed(cuts):
        chosen.append(int(cut[chosen[-1]]))
    # With more buckets than are useful, a cut falls on the boundary itself; `np.unique` drops the empty bucket.
    return np.unique(np.array(chosen))


def _add_bucket(least: Integers, below: Integers, sample_cost: Integers) -> tuple[Integers, Integers]:
    """Return the least cost up to each candidate with one more bucket, and the cut before it.

    Divide and conquer, one level at a time: the best cut of a place lies between those of its neighbours in the levels
    above, because cuts never move down as the boundary moves up.
    """
    size = len(below)
    cost, cut = np.empty(size, np.int64), np.empty(size, np.int64)
    step = 1 << size.bit_length()
    while step:
        place = np.arange(step - 1, size, 2 * step)
        if place.size:
            # The cuts of the neighbours, known from the levels above, bound the search, so that the ranges of one level
            # together hold only about as many candidates as there are lengths.
            first = np.where(place >= step, cut[place - step], 0)
            after = np.where(place + step < size, cut[np.minimum(place + step, size - 1)], size - 1)
            cost[place], cut[place] = _least_of_ranges(
                first, np.minimum(after, place), place, (least, below, sample_cost)
            )
        step //= 2
    return cost, cut


def _least_of_ranges(
    first: Integers, final: Integers, place: Integers, tables: tuple[Integers, Integers, Integers]
) -> tuple[Integers, Integers]:
    """Return, for each place, the least cost of a cut in its range `first` to `final`, and that cut.

    The first of equal cuts is taken. No range may be empty.
    """
    # All ranges of a level lie one behind the other in one array, so that numpy compares them in one pass.
    least, below, sample_cost = tables
    lengths = final - first + 1
    starts = lengths.cumsum() - lengths
    cut = np.arange(lengths.sum()) - (starts - first).repeat(lengths)
    at = place.repeat(lengths)
    cost = least[cut] + (below[at] - below[cut]) * sample_cost[at]
    best = np.minimum.reduceat(cost, starts)
    # The first of several equal minima, so that all machines make the same choice.
    hits = (cost == best.repeat(lengths)).nonzero()[0]
    return best, cut[hits[hits.searchsorted(starts)]]


def _fitted(costs: Costs, chosen: Integers) -> Integers:
    """Return the choice with one boundary moved at a time, so that buckets make whole groups, while the waste falls.

    Only for a single window, whose bucket counts are known exactly. There are at most eight rounds, and the share of
    padding rises by at most `_SLACK`.
    """
    allowed = costs.padding(chosen[None])[0] + _SLACK
    best = costs.waste(chosen[None])[0]
    for _ in range(8):
        before = best
        for bucket in range(len(chosen) - 1):
            moved = _moved(chosen, bucket)
            moved = moved[costs.padding(moved) <= allowed]
            scores = costs.waste(moved)
            if scores.min() < best:
                chosen, best = moved[scores.argmin()], scores.min()
        if best == before:
            break
    return chosen


def _moved(chosen: Integers, bucket: int) -> Integers:
    """Return copies of the choice, with one boundary moved to each place between its neighbours."""
    first = chosen[bucket - 1] + 1 if bucket else 0
    places = np.arange(first, chosen[bucket + 1])
    moved = np.repeat(chosen[None], len(places), axis=0)
    moved[:, bucket] = places
    return moved
