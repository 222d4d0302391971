"""Several samples packed into one row: the place of each, and the marks that tell them apart.

Rules: pure; segment ids count 1, 2, … in each row, because 0 is padding; positions count from 0 within a sample. A
sample that is masked after planning leaves its place empty, and its id unused.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["PackedRows", "PlaceInRow", "write_marks"]


@dataclass(frozen=True, slots=True)
class PlaceInRow:
    """A sample's row and first cell, its segment id, and the number of cells up to the next sample."""

    row: int
    offset: int
    segment: int
    room: int


def write_marks(segments: NDArray[Any], positions: NDArray[Any], place: PlaceInRow, length: int) -> None:
    """Write the segment id and the positions of a sample; nothing checks that this length fits into its place."""
    cells = slice(place.offset, place.offset + length)
    segments[place.row, cells] = place.segment
    positions[place.row, cells] = np.arange(length)


class PackedRows:
    """Planned places of all samples of a batch; `rows` ascend, and so do `offsets` within each row."""

    def __init__(self, rows: NDArray[np.int64], offsets: NDArray[np.int64], length: int) -> None:
        self.rows, self.offsets = rows, offsets
        # The slices drop the appended element again if there are no samples.
        is_last = np.append(rows[1:] != rows[:-1], True)[: len(rows)]
        #: Mask of the samples that are the first of their row.
        self.firsts = np.append(True, is_last[:-1])[: len(rows)]
        self._room = np.where(is_last, length, np.append(offsets[1:], 0)[: len(rows)]) - offsets
        # Rows ascend, so `searchsorted` finds the first sample of each one's row.
        self._segments = np.arange(len(rows)) - np.searchsorted(rows, rows) + 1

    @cached_property
    def places(self) -> list[PlaceInRow]:
        """Places of the samples, in the order of the batch."""
        columns = (self.rows, self.offsets, self._segments, self._room)
        return [PlaceInRow(*place) for place in zip(*(column.tolist() for column in columns), strict=True)]

    @property
    def most_room(self) -> int:
        """The most cells that any sample has up to the next one or the row's end; 0 without samples."""
        return int(self._room.max(initial=0))

    def write(
        self, kept: NDArray[np.int64], lengths: NDArray[np.int64], values: NDArray[Any], out: tuple[NDArray[Any], ...]
    ) -> None:
        """Write the values of the kept samples, one a row of `values`, and their marks.

        `out` holds the rows, the segments and the positions. Raise ValueError, with nothing written, if a sample is
        longer than its place.
        """
        # Checked before anything is written: a sample that is too long would run into the next one in its row.
        if (lengths > self._room[kept]).any():
            raise ValueError("a sample is longer than its place")
        rows, segments, positions = out
        steps = np.arange(values.shape[1])
        cells = steps < lengths[:, None]
        # Numbers of cells in the flattened rows, so that one assignment writes all samples.
        begin = self.rows[kept] * rows.shape[1] + self.offsets[kept]
        at = (begin[:, None] + steps)[cells]
        rows.reshape(-1, *rows.shape[2:])[at] = values[cells]
        segments.reshape(-1)[at] = np.repeat(self._segments[kept], lengths)
        positions.reshape(-1)[at] = np.broadcast_to(steps, cells.shape)[cells]
