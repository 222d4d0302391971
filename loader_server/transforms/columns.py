"""The samples of a batch as columns: for each key, the values of all samples at once. Pure.

Rules: a transform makes of columns what it makes of one sample after another, to the byte. If one of the samples cannot
be used, anything may be raised: then each is taken by itself, which tells which one it is, so nothing here has to find
it.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np

from loader_server.sources.arrays.gathering import write_padded

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from shared.wire.layout import Field

__all__ = ["Column", "Columns", "ColumnsOfBatch", "OfColumns", "Ragged", "column_of", "interleaved", "ragged"]


@dataclass(frozen=True, slots=True)
class Ragged:
    """Lists of different lengths, one after the other."""

    values: NDArray[Any]
    lengths: NDArray[np.int64]


#: A list for the transforms, of texts for example; an array with one value for each sample; or ragged lists.
Column: TypeAlias = "list[Any] | NDArray[Any] | Ragged"
Columns: TypeAlias = dict[str, Column]


class OfColumns(abc.ABC):
    """A transform that takes a batch's samples at once as well; it must not draw."""

    @abc.abstractmethod
    def __call__(self, sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any] | None:
        """Change one sample."""

    @abc.abstractmethod
    def on_columns(self, columns: Columns) -> None:
        """Change the columns as the transform changes each sample."""


def ragged(rows: Sequence[Sequence[Any]], dtype: np.dtype[Any]) -> Ragged:
    """Lists of numbers, one after the other; an OverflowError for a number that the dtype cannot hold."""
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    return Ragged(np.fromiter(chain.from_iterable(rows), dtype, int(lengths.sum())), lengths)


def interleaved(columns: Sequence[Column], places: Sequence[NDArray[np.int64]]) -> Column:
    """One column from several, whose values go to these places; a TypeError if they are not alike."""
    order = np.argsort(np.concatenate(places))
    if all(isinstance(column, list) for column in columns):
        values = list(chain.from_iterable(columns))  # type: ignore[arg-type] # they are lists
        return [values[place] for place in order.tolist()]
    if all(isinstance(column, Ragged) for column in columns):
        return _reordered(cast("Sequence[Ragged]", columns), order)
    return np.concatenate(cast("Sequence[NDArray[Any]]", columns))[order]


def _reordered(columns: Sequence[Ragged], order: NDArray[np.int64]) -> Ragged:
    lengths = np.concatenate([column.lengths for column in columns])
    starts = (np.cumsum(lengths) - lengths)[order]
    lengths = lengths[order]
    at = np.repeat(starts - np.cumsum(lengths) + lengths, lengths) + np.arange(lengths.sum())
    return Ragged(np.concatenate([column.values for column in columns])[at], lengths)


def column_of(field: Field, columns: Columns) -> Ragged | NDArray[Any]:
    """The column of a field, with the dtype and shape that were declared; a TypeError for any other."""
    found = columns.get(field.key)
    dtype = found.values.dtype if isinstance(found, Ragged) else getattr(found, "dtype", None)
    as_declared = field.shape == ((None,) if isinstance(found, Ragged) else ())
    if not isinstance(found, Ragged | np.ndarray) or dtype != field.dtype or not as_declared:
        raise TypeError(f'"{field.key}" is no column of {field.dtype} {field.shape}')
    return found


class ColumnsOfBatch:
    """Writes the columns of a batch's samples like a source that gathers."""

    def __init__(self, columns: Mapping[str, Ragged | NDArray[Any]]) -> None:
        self._columns = columns

    def gather(self, samples: NDArray[np.int64], out: Mapping[str, NDArray[Any]]) -> None:
        """Write one sample into each row, lengths, and zeros after ragged values; a ValueError if there is no room."""
        for key, column in self._columns.items():
            if not isinstance(column, Ragged):
                out[key][:] = column
                continue
            lengths = column.lengths
            if len(lengths) != len(samples) or lengths.max(initial=0) > out[key].shape[1]:
                raise ValueError(f'"{key}": {len(lengths)} samples, at most {lengths.max(initial=0)} steps')
            write_padded(column.values, np.cumsum(lengths) - lengths, lengths, out[key])
            out[f"{key}_length"][:] = lengths
