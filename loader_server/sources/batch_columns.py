"""The samples of a batch as columns: for each key, all samples' values, one after another. Pure.

Rules: no Python for each value, and none for each sample where rows are written; the bytes written are the ones that
padding sample after sample would give. A batch's work is proportional to its padded size.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar, cast

import numpy as np

from shared.errors import DataError
from shared.wire.batch_layout import Field

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

__all__ = [
    "Column",
    "Columns",
    "Gathers",
    "Ragged",
    "array_of",
    "fields_of_rows",
    "gather_rows",
    "interleaved",
    "joined_parts",
    "parted",
    "ragged",
    "selected",
    "shown_axes",
    "write_padded",
    "write_rectangles",
]


@dataclass(frozen=True, slots=True)
class Ragged:
    """Lists of different lengths, stored one after the other."""

    values: NDArray[Any]
    lengths: NDArray[np.int64]


#: A list with a text or an array for each sample; an array with one value for each; or ragged lists.
Column: TypeAlias = "list[Any] | NDArray[Any] | Ragged"
Columns: TypeAlias = dict[str, Column]

T = TypeVar("T")


def ragged(rows: Sequence[Sequence[Any]], dtype: np.dtype[Any]) -> Ragged:
    """Return lists of numbers as one column; raise an OverflowError for a number that the dtype cannot hold."""
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    return Ragged(np.fromiter(chain.from_iterable(rows), dtype, int(lengths.sum())), lengths)


def interleaved(columns: Sequence[Column], places: Sequence[NDArray[np.int64]]) -> Column:
    """Join columns into one, with each value at its place in `places`.

    All columns have to be lists, or all Ragged, or all arrays of one inner shape; raise a ValueError for Ragged ones
    among others, or arrays of unequal inner shapes.
    """
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


def fields_of_rows(
    columns: Iterable[tuple[str, str, tuple[int | None, ...], bool]], rates: Mapping[str, int] | None = None
) -> tuple[Field, ...]:
    """Return the fields of columns whose rows are samples.

    Each column is given by its key, its dtype, the further axes of a value (None: padded too), and whether a sample has
    a varying number of values. If none has, the first axis of each sample counts as its length. `rates` are the steps
    in a second of those columns that have a time.
    """
    known = rates or {}
    listed = list(columns)
    padded = not any(ragged for *_, ragged in listed)
    return tuple(
        Field(
            key=key,
            dtype=dtype,
            shape=_shape(inner, ragged=ragged, padded=padded),
            per_second=float(known.get(key, 0)) or None,
        )
        for key, dtype, inner, ragged in listed
    )


def _shape(inner: tuple[int | None, ...], *, ragged: bool, padded: bool) -> tuple[int | None, ...]:
    """Return the shape of a sample's value, whose first axis is padded if it is ragged or counts as its length."""
    if ragged:
        return (None, *inner)
    return (None, *inner[1:]) if padded and inner else inner


def selected(columns: Mapping[str, T], wanted: Sequence[str], noun: str, where: str, remedy: str) -> list[T]:
    """Return the columns of the wanted keys, in that order, or all if none is named.

    Raise a DataError if a wanted key is missing. `noun`, `where` and `remedy` are for its message.
    """
    for key in wanted:
        if key not in columns:
            known = ", ".join(f'"{name}"' for name in columns) or "nothing"
            raise DataError(expected=f'{noun} "{key}"', got=known, where=where, remedy=remedy)
    return [columns[key] for key in wanted or columns]


def shown_axes(shape: Iterable[int | None]) -> str:
    """Return a shape as messages show it, with "any" for a padded axis."""
    return ", ".join("any" if axis is None else str(axis) for axis in shape)


def array_of(part: memoryview, dtype: Any, inner: tuple[int, ...], *, ragged: bool) -> NDArray[Any]:
    """Return a sample's values as a new array; a ragged sample has as many values as its bytes hold.

    Raise a ValueError if the bytes do not fill the shape.
    """
    # A copy, because a transform may change it in place, and the bytes may be kept for other epochs.
    values: NDArray[Any] = np.frombuffer(part, dtype).reshape((-1, *inner) if ragged else inner).copy()
    return values


def write_padded(
    values: NDArray[Any], starts: NDArray[np.int64], lengths: NDArray[np.int64], out: NDArray[Any]
) -> None:
    """Write each sample's values into its row of `out`, from `starts` on, with zeros behind them.

    A sample that is longer than a row is cut at the end of the row.
    """
    steps = np.arange(out.shape[1])
    if len(values):
        # Rows take values beyond their ends here, the last ones beyond the array, which mode="clip" allows; the zeros
        # below overwrite them. With mode="raise" numpy would also buffer `out`.
        np.take(values, starts[:, None] + steps, axis=0, out=out, mode="clip")
    out[steps >= lengths[:, None]] = 0


def write_rectangles(
    values: NDArray[Any], starts: NDArray[np.int64], shapes: NDArray[np.int64], out: NDArray[Any]
) -> None:
    """Write each sample's cells into its row of `out`, from `starts` on, with zeros beside and below them.

    `shapes` has the rows and columns of each sample; a ValueError of numpy passes if one does not fit.
    """
    for place, start, (steps, width) in zip(out, starts.tolist(), shapes.tolist(), strict=True):
        place[:steps, :width] = values[start : start + steps * width].reshape(steps, width, *values.shape[1:])
        place[:steps, width:] = 0
        place[steps:] = 0


def joined_parts(parts: Sequence[bytes]) -> bytes:
    """Return the values of a single sample as one piece, their lengths first, which `parted` splits again."""
    return b"".join((np.array([len(part) for part in parts], np.int64).tobytes(), *parts))


def parted(raw: bytes, count: int) -> list[memoryview]:
    """Return the bytes of each of `count` values that `joined_parts` joined; raise a ValueError without all lengths."""
    # Views, not copies: `array_of` copies each value once.
    rest = memoryview(raw)[8 * count :]
    ends = np.cumsum(np.frombuffer(raw, np.int64, count)).tolist()
    return [rest[start:end] for start, end in zip((0, *ends), ends, strict=False)]


class Gathers(Protocol):
    """An object that writes whole batches at once."""

    def gather(self, samples: NDArray[np.int64], out: Mapping[str, NDArray[Any]]) -> None:
        """Write the fields in `out` for these samples, one row each, as `Source.gather` does.

        Its errors are those of the object.
        """


def gather_rows(
    source: Gathers, samples: NDArray[np.int64], rows: NDArray[np.int64], out: Mapping[str, NDArray[Any]]
) -> None:
    """Gather these samples into the given rows of `out`, through a temporary batch, because `gather` fills all rows.

    Errors of the source's `gather` pass.
    """
    own = {key: np.empty((len(rows), *array.shape[1:]), array.dtype) for key, array in out.items()}
    source.gather(samples, own)
    for key, array in own.items():
        out[key][rows] = array
