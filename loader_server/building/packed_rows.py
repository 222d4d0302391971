"""Several samples in one row: where each lies, and the marks that tell them apart.

Rules: pure; segment ids count 1, 2, … in each row, for 0 is padding; positions count from 0 within a sample. A sample
that turns out to be masked leaves its place empty, and its id unused.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

__all__ = ["PlaceInRow", "places_in_rows", "write_marks"]


@dataclass(frozen=True, slots=True)
class PlaceInRow:
    """Where a sample begins, and which one of its row it is."""

    row: int
    offset: int
    segment: int


def places_in_rows(rows: NDArray[np.int64], offsets: NDArray[np.int64]) -> Iterator[PlaceInRow]:
    """The place of each sample, from its row and offset as planned."""
    in_row: Counter[int] = Counter()
    for row, offset in zip(rows.tolist(), offsets.tolist(), strict=True):
        in_row[row] += 1
        yield PlaceInRow(row, offset, in_row[row])


def write_marks(segments: NDArray[Any], positions: NDArray[Any], place: PlaceInRow, length: int) -> None:
    """Mark the cells of a sample of this length."""
    cells = slice(place.offset, place.offset + length)
    segments[place.row, cells] = place.segment
    positions[place.row, cells] = np.arange(length)
