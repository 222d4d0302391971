"""The samples of a batch as columns, for sources that decode many at once: for each key, all samples' values. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["Column", "Columns", "Ragged", "interleaved", "ragged"]


@dataclass(frozen=True, slots=True)
class Ragged:
    """Lists of different lengths, stored one after the other."""

    values: NDArray[Any]
    lengths: NDArray[np.int64]


#: A list with a text or an array for each sample; an array with one value for each; or ragged lists.
Column: TypeAlias = "list[Any] | NDArray[Any] | Ragged"
Columns: TypeAlias = dict[str, Column]


def ragged(rows: Sequence[Sequence[Any]], dtype: np.dtype[Any]) -> Ragged:
    """Return lists of numbers as one column; raise an OverflowError for a number that the dtype cannot hold."""
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    return Ragged(np.fromiter(chain.from_iterable(rows), dtype, int(lengths.sum())), lengths)


def interleaved(columns: Sequence[Column], places: Sequence[NDArray[np.int64]]) -> Column:
    """Join columns into one, with each value at its place in `places`; raise a TypeError if they are not alike."""
    order = np.argsort(np.concatenate(places))
    if all(isinstance(column, list) for column in columns):
        values = list(chain.from_iterable(columns))  # type: ignore[arg-type] # they are lists
        return [values[place] for place in order.tolist()]
    if all(isinstance(column, Ragged) for column in columns):
        return _reordered(cast("Sequence[Ragged]", columns), order)
    return np.concatenate(cast("Sequence[NDArray[Any]]", columns))[order]


def _reordered(columns: Sequence[Ragged], order: NDArray[np.int64]) -> Ragged:
    """Return the lists of several ragged columns, taken in this order, as one."""
    lengths = np.concatenate([column.lengths for column in columns])
    starts = (np.cumsum(lengths) - lengths)[order]
    lengths = lengths[order]
    # For each list in the new order, the old start minus the new start, repeated for each of its values; added to the
    # new positions, that gives every value's old position without a loop.
    at = np.repeat(starts - np.cumsum(lengths) + lengths, lengths) + np.arange(lengths.sum())
    return Ragged(np.concatenate([column.values for column in columns])[at], lengths)
