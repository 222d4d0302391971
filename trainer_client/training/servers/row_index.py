"""An index from ids to places: which row of an array an id has, in an order in which ids came.

Rules: pure. A hash table of its own, with open addressing, whose every operation takes many ids at once: a dict of
Python's takes a hundred bytes for each id, and a microsecond. Ids are never removed. Looking one up takes as long in a
large table as in a small one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shared.hashing import Words, hashed

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["NOWHERE", "RowIndex"]

#: The place of an id that is not there.
NOWHERE = -1

_LEAST_CELLS = 1024
_KEY = 1


class RowIndex:
    """Ids with their places, which count from 0 in the order in which ids were added."""

    def __init__(self) -> None:
        self._count = 0
        self._make_cells(_LEAST_CELLS)

    def _make_cells(self, cells: int) -> None:
        self._ids = np.zeros(cells, np.int64)
        self._places = np.full(cells, NOWHERE, np.int64)

    def __len__(self) -> int:
        return self._count

    def find(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return each id's place; NOWHERE for one that is not there."""
        return self._places[self._cells_of(ids)]

    def add(self, ids: NDArray[np.int64]) -> None:
        """Add ids, each of which is named once and not there yet; they get the next places, in their order."""
        # At most half of the cells are taken, so that an id is found after a few steps.
        if 2 * (self._count + len(ids)) > len(self._ids):
            self._grow(self._count + len(ids))
        places = np.arange(self._count, self._count + len(ids))
        self._put(ids, places)
        self._count += len(ids)

    def _grow(self, count: int) -> None:
        taken = self._places != NOWHERE
        ids, places = self._ids[taken], self._places[taken]
        # Doubled at least, so that each id is put again once on average.
        self._make_cells(max(_LEAST_CELLS, 1 << (4 * count - 1).bit_length()))
        self._put(ids, places)

    def _put(self, ids: NDArray[np.int64], places: NDArray[np.int64]) -> None:
        left = np.arange(len(ids))
        while len(left):
            cells = self._cells_of(ids[left])
            # Of several that found the same free cell the first takes it, and the others look again.
            _, first = np.unique(cells, return_index=True)
            self._ids[cells[first]] = ids[left[first]]
            self._places[cells[first]] = places[left[first]]
            left = np.delete(left, first)

    def _cells_of(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the cell that each id has, or the free one in which its search ends."""
        last = np.uint64(len(self._ids) - 1)
        hashes: Words = hashed(ids, _KEY) & last
        cells = hashes.astype(np.int64)
        left = np.arange(len(ids))
        while len(left):
            at = cells[left]
            # Occupied by another id: look at the next cell, round the end.
            left = left[(self._places[at] != NOWHERE) & (self._ids[at] != ids[left])]
            cells[left] = (cells[left] + 1) & int(last)
        return cells
