"""Several samples in one row: where each lies, and the marks that tell them apart.

Rules: pure; segment ids count 1, 2, … in each row, for 0 is padding; positions count from 0 within a sample. A sample
that turns out to be masked leaves its place empty, and its id unused.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

__all__ = ["PlaceInRow", "places_in_rows", "write_marks"]


@dataclass(frozen=True, slots=True)
class PlaceInRow:
    """Where a sample begins, which one of its row it is, and how many cells it has up to the next one."""

    row: int
    offset: int
    segment: int
    room: int


def places_in_rows(rows: NDArray[np.int64], offsets: NDArray[np.int64], length: int) -> Iterator[PlaceInRow]:
    """The place of each sample, from its row and offset as planned; rows are of this length."""
    starts: defaultdict[int, list[int]] = defaultdict(list)
    for row, offset in zip(rows.tolist(), offsets.tolist(), strict=True):
        starts[row].append(offset)
    in_row: Counter[int] = Counter()
    for row, offset in zip(rows.tolist(), offsets.tolist(), strict=True):
        in_row[row] += 1
        following = [*starts[row], length][in_row[row]]
        yield PlaceInRow(row, offset, in_row[row], following - offset)


def write_marks(segments: NDArray[Any], positions: NDArray[Any], place: PlaceInRow, length: int) -> None:
    """Mark the cells of a sample of this length."""
    cells = slice(place.offset, place.offset + length)
    segments[place.row, cells] = place.segment
    positions[place.row, cells] = np.arange(length)
