"""Packing: several short samples in one row, told apart by segment ids and positions.

Rules: pure; rows are filled by best fit, longest samples first, within blocks of samples in the order of the pass, so
that a sample shares its row with other samples in each pass; then rows are dealt to batches in a shuffled order. Packed
batches have one shape. Must not know lengths of other keys: a packed stream has one padded key.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING

import numpy as np

from loader_server.planning.order import row_order, sample_order
from loader_server.planning.windows.window import Candidates, Filling, WindowPlan

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

__all__ = ["BLOCK", "best_fit", "in_rows"]

#: Samples that are packed together: enough that rows come out full, few enough that their partners vary.
BLOCK = 4096


def in_rows(filling: Filling, candidates: Candidates, key: str, capacity: int) -> WindowPlan:
    """Pack a window's samples into rows of `capacity` steps, and deal the rows to groups.

    A sample that is longer than `capacity` has to be dropped before, which is not checked.
    """
    order = sample_order(filling.data_pass, candidates.samples, candidates.cycles)
    row = np.empty(len(order), np.int64)
    rows = 0
    for start in range(0, len(order), BLOCK):
        block = slice(start, start + BLOCK)
        # Rows are numbered within the block, and then through the window.
        own = best_fit(candidates.lengths[key][order[block]], capacity)
        row[block] = rows + own
        rows += int(own.max()) + 1
    # Best fit takes the longest samples first, so undealt rows would come sorted by length within each block.
    # The argsort of an order is its inverse: the place of each row among the dealt ones.
    place = np.argsort(row_order(filling.data_pass, filling.window, rows), kind="stable")[row]
    dealt = np.argsort(place, kind="stable")
    lengths = candidates.lengths[key][order[dealt]]
    row_starts = np.searchsorted(place[dealt], np.arange(rows + 1))
    before = np.cumsum(lengths) - lengths
    (batch_rows,) = filling.rows.tolist()
    full = batch_rows * filling.group
    starts = np.arange(0, rows, full)
    return WindowPlan(
        samples=candidates.samples[order[dealt]],
        starts=starts,
        stops=np.minimum(starts + full, rows),
        buckets=np.zeros(len(starts), np.int64),
        rows=np.full(len(starts), batch_rows),
        longest={key: np.full(len(starts), capacity)},
        row_starts=row_starts,
        offsets=before - np.repeat(before[row_starts[:-1]], np.diff(row_starts)),
    )


def best_fit(lengths: Integers, capacity: int) -> Integers:
    """Return the row of each sample: longest first, into the fullest row that still takes it, else a new one.

    No sample may be longer than `capacity`, which is not checked.
    """
    row_of = np.empty(len(lengths), np.int64)
    # The distinct rooms left in open rows, ascending, and the rows that have each: bisection finds the best fit.
    rooms: list[int] = []
    rows_with: dict[int, list[int]] = {}
    shortest = int(lengths.min(initial=capacity))
    rows = 0
    for sample in np.argsort(-lengths, kind="stable").tolist():
        length = int(lengths[sample])
        at = bisect_left(rooms, length)
        if at == len(rooms):
            room, row = capacity, rows
            rows += 1
        else:
            room = rooms[at]
            row = rows_with[room].pop()
            if not rows_with[room]:
                del rooms[at]
        row_of[sample] = row
        left = room - length
        # A row with less room than the shortest sample never fits again; leaving it out keeps the search short.
        if left >= shortest:
            waiting = rows_with.setdefault(left, [])
            if not waiting:
                insort(rooms, left)
            waiting.append(row)
    return row_of
