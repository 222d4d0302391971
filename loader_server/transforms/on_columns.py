"""Transforms that take a batch's samples at once, as columns, and writing the columns into a batch. Pure.

Rules: a transform gives the same bytes for columns as for one sample after another. If one of the samples cannot be
used, anything may be raised: the builder then falls back to sample by sample, so nothing here has to find the bad one.
"""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any

import numpy as np

from loader_server.sources.batch_columns import Ragged, write_padded

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from loader_server.sources.batch_columns import Column, Columns
    from shared.wire.batch_layout import Field

__all__ = ["ColumnsOfBatch", "OfColumns", "column_of", "listed"]


class OfColumns(abc.ABC):
    """Transform that also takes a batch's samples at once; it must not draw."""

    @abc.abstractmethod
    def __call__(self, sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any] | None:
        """Change a sample in place, or return another dict; raise a SampleError if it cannot be used."""

    @abc.abstractmethod
    def on_columns(self, columns: Columns) -> None:
        """Change the columns as `__call__` changes each sample; raise anything if one of the samples cannot be used."""


def listed(columns: Columns, key: str) -> list[Any]:
    """Return the column of this key; raise TypeError unless it is a list, KeyError if it is missing."""
    column = columns[key]
    if not isinstance(column, list):
        raise TypeError(f'"{key}" is no list')
    return column


def column_of(field: Field, columns: Columns) -> Column:
    """Return the column of a field; raise TypeError if it is missing, or lacks the declared dtype or shape.

    A list of arrays fits only a padded field, and Ragged only a field of one padded axis.
    """
    found = columns.get(field.key)
    if not _is_of(field, found):
        raise TypeError(f'"{field.key}" is no column of {field.dtype} {field.shape}')
    assert found is not None
    return found


def _is_of(field: Field, column: Column | None) -> bool:
    """Return whether a column has the field's dtype and shape; False without a column."""
    if isinstance(column, list):
        return field.padded and all(_is_value_of(field, value) for value in column)
    if isinstance(column, Ragged):
        return column.values.dtype == field.dtype and field.shape == (None,)
    return column is not None and column.dtype == field.dtype and field.shape == ()


def _is_value_of(field: Field, value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype == field.dtype and value.shape[1:] == field.shape[1:]


class ColumnsOfBatch:
    """Source of a batch's columns, which writes them like any source that gathers."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns

    def gather(self, samples: NDArray[np.int64], out: Mapping[str, NDArray[Any]]) -> None:
        """Write a column's values into the rows of `out` under its key, one for each sample.

        A plain array is copied as it is. Of lists and Ragged each row gets a sample's values, zeros after them, and its
        length under `<key>_length`. Raise ValueError if there is no room for the longest, a column has another number
        of samples, or values have other inner axes; what was written before stays.
        """
        for key, column in self._columns.items():
            if isinstance(column, np.ndarray):
                out[key][:] = column
                continue
            lengths = _lengths(column)
            # The builder falls back to sample by sample then, which finds and names the one that is too long.
            if len(lengths) != len(samples) or lengths.max(initial=0) > out[key].shape[1]:
                raise ValueError(f'"{key}": {len(lengths)} samples, at most {lengths.max(initial=0)} steps')
            out[f"{key}_length"][:] = lengths
            if isinstance(column, Ragged):
                write_padded(column.values, np.cumsum(lengths) - lengths, lengths, out[key])
            else:
                for row, value in zip(out[key], column, strict=True):
                    row[: len(value)] = value
                    row[len(value) :] = 0


def _lengths(column: Ragged | list[Any]) -> NDArray[np.int64]:
    return column.lengths if isinstance(column, Ragged) else np.fromiter(map(len, column), np.int64, len(column))
