"""The cells of a batch: how many hold values, and what fills those that hold none.

The latter lie behind a sample in its row, between and behind the samples of a packed row, and in rows without a sample,
where keys of one value a row have them as well. Rules: pure. They are found by lengths, marks and weights alone, so it
does not matter who wrote the batch, or masked a row of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from shared.wire.batch_layout import Field

__all__ = ["Padded", "count_cells", "write_padding"]


class Padded(Protocol):
    """The part of an open stream that says what fills cells without a sample."""

    @property
    def padding(self) -> Mapping[str, np.generic]:
        """Return the values by key; keys that are not here keep their 0."""

    @property
    def fields(self) -> tuple[Field, ...]:
        """Return the fields of a batch."""

    @property
    def packed(self) -> bool:
        """Return whether several samples share a row."""


def write_padding(arrays: Mapping[str, NDArray[Any]], stream: Padded) -> None:
    """Fill the empty cells of each key that has padding; all else in a batch that is complete stays as it is."""
    for field in stream.fields:
        if field.key in stream.padding:
            arrays[field.key][_empty(arrays, field, packed=stream.packed)] = stream.padding[field.key]


def _empty(arrays: Mapping[str, NDArray[Any]], field: Field, *, packed: bool) -> NDArray[np.bool_]:
    """Return which cells of a key hold no sample: `[rows, steps]`, `[rows]` for a key without a length.

    It is `[rows, steps, width]` for a key that has a width too.
    """
    # A row without a sample has length 0, so all of its cells are empty.
    if packed:
        empty: NDArray[np.bool_] = arrays[f"{field.key}_segment"] == 0
    elif field.padded:
        empty = np.arange(arrays[field.key].shape[1]) >= arrays[f"{field.key}_length"][:, None]
        if field.is_wide:
            beyond = np.arange(arrays[field.key].shape[2]) >= arrays[f"{field.key}_width"][:, None]
            empty = empty[:, :, None] | beyond[:, None, :]
    else:
        empty = arrays["weight"] == 0
    return empty


def count_cells(arrays: Mapping[str, NDArray[Any]], key: str, *, wide: bool) -> tuple[int, int, int]:
    """Return the rows of a batch, the cells of each, and how many hold values of samples.

    They are steps of the bucketed key, and pixels where it is `wide`; without one, a row is one cell.
    """
    if not key:
        return len(arrays["weight"]), 1, int(arrays["weight"].sum())
    space, length = arrays[key].shape[:2]
    filled = arrays[f"{key}_length"].astype(np.int64)
    width, own = (arrays[key].shape[2], arrays[f"{key}_width"]) if wide else (1, 1)
    return space, length * width, int((filled * own).sum())
