"""Sparse gradients of tables, of which a batch has few rows: each row once, and the rows of one part.

Rules: pure. Rows come out rising, and a row that a batch names several times has the sum.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["merge_rows", "rows_between"]

Rows = tuple["NDArray[np.int64]", "NDArray[np.generic]"]


def merge_rows(numbers: NDArray[np.integer], values: NDArray[np.generic]) -> Rows:
    """Return rising row numbers and their values, each row once, with the values of repeated rows summed."""
    if not len(numbers):
        return numbers.astype(np.int64), values
    order = np.argsort(numbers, kind="stable")
    ordered = numbers[order].astype(np.int64)
    # Where each run of equal numbers begins; `reduceat` sums from one beginning to the next.
    first = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    return ordered[first], np.add.reduceat(values[order], first, axis=0)


def rows_between(rows: Rows, start: int, stop: int) -> Rows:
    """Return the rows from `start` to `stop`, numbered from `start`."""
    numbers, values = rows
    begin, end = np.searchsorted(numbers, (start, stop))
    return numbers[begin:end] - start, values[begin:end]
