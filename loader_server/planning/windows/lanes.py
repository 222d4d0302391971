"""Lanes for carried state: the chunks of one recording come in consecutive batches, in the same row.

A lane is a row of one place of the group: if there are as many ranks as batches in a group, a rank has the same lanes
in each step. Rules: pure; a run is the chunks of one recording that follow one another, and takes consecutive places of
one lane; runs go to lanes longest first, each to the lane that holds least, so lanes end at about the same step; within
a lane they have the order of the pass; lanes are numbered by how much they hold, so those that run dry first are the
last rows. A window's lanes depend on its samples alone. Must not know lengths.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

import numpy as np

from loader_server.planning.order import sample_order
from loader_server.planning.windows.window import Candidates, Filling, WindowPlan

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

__all__ = ["balanced", "in_lanes"]


def in_lanes(filling: Filling, candidates: Candidates, key: str, length: int) -> WindowPlan:
    """Lay a window's runs into lanes: each group takes the next chunk of every lane that has one left."""
    begins = _run_begins(candidates)
    firsts = np.flatnonzero(begins)
    sizes = np.diff(np.append(firsts, len(begins)))
    (rows,) = filling.rows.tolist()
    turn = _turns(filling, candidates, firsts, sizes)
    lane = _by_what_they_hold(balanced(sizes, turn, rows * filling.group), sizes)
    run = np.cumsum(begins) - 1
    # A chunk's step: where its run begins in the lane, and its place in the run.
    step = _offsets(lane, turn, sizes)[run] + np.arange(len(run)) - firsts[run]
    # By step, then by lane: `lexsort` takes the last key first.
    dealt = np.lexsort((lane[run], step))
    steps = np.arange(int(step.max(initial=-1)) + 1)
    starts = np.searchsorted(step[dealt], steps)
    return WindowPlan(
        samples=candidates.samples[dealt],
        starts=starts,
        stops=np.append(starts, len(dealt))[1:],
        buckets=np.zeros_like(steps),
        rows=np.full_like(steps, rows),
        longest={key: np.full_like(steps, length)},
        resets=begins[dealt],
    )


def _run_begins(candidates: Candidates) -> NDArray[np.bool_]:
    """Return which samples begin a run: a recording begins, or continues after a chunk that was dropped."""
    assert candidates.begins is not None, "only chunks have recordings"
    # -2 and not -1, with which sample 0 would seem to continue something.
    gaps: NDArray[np.bool_] = np.diff(candidates.samples, prepend=-2) != 1
    return candidates.begins | gaps


def _turns(filling: Filling, candidates: Candidates, firsts: Integers, sizes: Integers) -> Integers:
    """Return the rank of each run in the order of the pass: by the turn of its first chunk, or by size if sorted."""
    # A run has the turn of its first chunk: shuffling chunks would tear recordings apart.
    order = sample_order(filling.data_pass, candidates.samples[firsts], candidates.cycles[firsts])
    if filling.data_pass.order == "sorted":
        order = np.argsort(sizes, kind="stable")
    return np.argsort(order, kind="stable")


def balanced(sizes: Integers, turn: Integers, lanes: int) -> Integers:
    """Return the lane of each run: longest first (ties by turn), each to the lane that holds least."""
    # Longest first leaves short runs to even the lanes out at the end, so they end at about the same step.
    lane_of = np.empty(len(sizes), np.int64)
    # A heap of (steps held, lane): among equal lanes the lowest number wins, on every machine.
    held = [(0, lane) for lane in range(lanes)]
    for run in np.lexsort((turn, -sizes)).tolist():
        holds, lane = held[0]
        lane_of[run] = lane
        heapq.heapreplace(held, (holds + int(sizes[run]), lane))
    return lane_of


def _by_what_they_hold(lane: Integers, sizes: Integers) -> Integers:
    """Return the lane of each run, with the lanes renumbered: the fullest first, equal ones in their order."""
    # A batch's valid rows are its first ones, so the lanes that run dry first have to be the last.
    fullest = np.argsort(-np.bincount(lane, weights=sizes), kind="stable")
    # The argsort of an order is its inverse: the rank of each lane.
    return np.argsort(fullest, kind="stable")[lane]


def _offsets(lane: Integers, turn: Integers, sizes: Integers) -> Integers:
    """Return the step at which each run begins in its lane."""
    order = np.lexsort((turn, lane))
    before = np.cumsum(sizes[order]) - sizes[order]
    first = np.searchsorted(lane[order], lane[order])
    offsets = np.empty(len(sizes), np.int64)
    offsets[order] = before - before[first]
    return offsets
