"""Lists in lists of numbers as plain arrays: the inner ones of one length, which the first rows tell.

Rules: the outermost list of a column may have any length, and all others have the length of the first that holds
anything; but those of `any_size` differ from row to row, and are of one length within a row. `inner` are these lengths
from outside inwards; an array here is what they stand in. Nulls count as lists of length 0. Nothing here reads files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from loader_server.sources.arrays.arrow_types import UNKNOWN, is_variable_list, pa

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["cells_of", "flat_numbers", "found_lengths", "other_rows", "rows_of_items", "starts_of", "uneven_rows"]


def found_lengths(array: Any, inner: Sequence[int]) -> tuple[int, ...]:
    """Return `inner` with each UNKNOWN replaced by the length of the first list there that is not empty.

    It stays UNKNOWN if all lists are empty.
    """
    found = list(inner)
    for place, size in enumerate(inner):
        if size == UNKNOWN:
            lengths = np.diff(array.offsets.to_numpy())
            found[place] = int(next(iter(lengths[lengths > 0]), UNKNOWN))
        array = cells_of(array)
    return tuple(found)


def cells_of(array: Any) -> Any:
    """Return the items of all rows of an array of lists, whose own offset is taken into account."""
    if pa.types.is_fixed_size_list(array.type):
        # `values` of a fixed-size list ignores the array's own offset, so a slice of a column has to be cut out here.
        size = array.type.list_size
        return array.values.slice(array.offset * size, len(array) * size)
    offsets = array.offsets
    return array.values.slice(offsets[0].as_py(), offsets[-1].as_py() - offsets[0].as_py())


def other_rows(array: Any, inner: Sequence[int]) -> NDArray[np.bool_] | None:
    """Return for each row whether it, or a list in it, has another length than `inner` says; None if none has."""
    if not any(map(is_variable_list, _levels(array.type, len(inner)))):
        return None
    if is_variable_list(array.type):
        offsets = array.offsets.to_numpy().astype(np.int64)
        rows = np.diff(offsets) != inner[0]
        within = other_rows(cells_of(array), inner[1:]) if len(inner) > 1 else None
        if within is not None:
            rows |= rows_of_items(within, offsets - offsets[0])
    else:
        within = other_rows(cells_of(array), inner[1:])
        rows = np.zeros(len(array), np.bool_) if within is None else within.reshape(-1, inner[0]).any(axis=1)
    return rows if rows.any() else None


def _levels(kind: Any, count: int) -> list[Any]:
    """Return the types of so many levels of lists, from outside inwards."""
    levels = list[Any]()
    for _ in range(count):
        levels.append(kind)
        kind = kind.value_type
    return levels


def rows_of_items(items: NDArray[np.bool_], offsets: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return for each row, which begins at its offset, whether any of its items is marked."""
    rows = np.zeros(len(offsets) - 1, np.bool_)
    # The row of an inner item is the last one that begins at or before it; side="right" passes over empty rows.
    rows[np.searchsorted(offsets, np.flatnonzero(items), side="right") - 1] = True
    return rows


def starts_of(array: Any) -> NDArray[np.int64]:
    """Return where each list of an array begins among the items of all, and behind these where the last one ends."""
    if pa.types.is_fixed_size_list(array.type):
        return np.arange(len(array) + 1, dtype=np.int64) * int(array.type.list_size)
    offsets = np.asarray(array.offsets.to_numpy(), np.int64)
    starts: NDArray[np.int64] = offsets - offsets[0]
    return starts


def uneven_rows(steps: Any, offsets: NDArray[np.int64]) -> NDArray[np.bool_] | None:
    """Return for each row, whose lists `steps` begin at its offset, whether these differ in length; None if none has.

    `steps` are the lists of all rows, one after another.
    """
    lengths = np.diff(starts_of(steps))
    first = lengths[np.minimum(offsets[:-1], max(len(lengths) - 1, 0))] if len(lengths) else np.empty(0, np.int64)
    uneven = lengths != np.repeat(first, np.diff(offsets)) if len(lengths) else np.zeros(0, np.bool_)
    return rows_of_items(uneven, offsets) if uneven.any() else None


def flat_numbers(array: Any, inner: Sequence[int]) -> NDArray[Any]:
    """Return the numbers of all rows, each of this shape, with nulls as zeros; times are integers in their unit.

    Raise a ValueError if a row has another shape (see `other_rows`).
    """
    for _ in inner:
        array = cells_of(array)
    if pa.types.is_temporal(array.type):
        array = array.view(f"int{array.type.bit_width}")
    if array.null_count:
        # With nulls, to_numpy turns integers into floats; rows with a null are bad anyway.
        array = array.fill_null(False if pa.types.is_boolean(array.type) else 0)
    numbers: NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return numbers.reshape(-1, *inner)
