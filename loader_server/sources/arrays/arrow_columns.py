"""Arrow columns as plain arrays: values one after another, with offsets where rows differ in length.

Rules: encoded files are their bytes here, whatever is in them. Rows that are null, or contain a null, are faults, and
so are rows whose inner lists are not as long as those of all others, or, for values of any size, of the same row.
Nothing here reads files.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from loader_server.sources.arrays.arrow_types import ColumnKind, compute, is_variable_list, pa
from loader_server.sources.arrays.nested_lists import (
    cells_of,
    flat_numbers,
    other_rows,
    rows_of_items,
    starts_of,
    uneven_rows,
)
from loader_server.sources.batch_columns import array_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from collections.abc import Set as AbstractSet

    from numpy.typing import NDArray

__all__ = ["ColumnValues", "lengths_and_faults", "stored", "value_of", "values_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnValues:
    """The values of some rows, one after another.

    If rows differ in length, `offsets` says where each row's values begin, and where the last row's end.
    """

    values: NDArray[Any]
    offsets: NDArray[np.int64] | None = None
    #: How many lists each row has, whose cells the values are, if rows differ in both.
    steps: NDArray[np.int64] | None = None

    @property
    def widths(self) -> NDArray[np.int64]:
        """Return how many cells each list of a row has, of rows that differ in both axes; 0 for a row without lists."""
        assert self.offsets is not None
        assert self.steps is not None
        return np.diff(self.offsets) // np.maximum(self.steps, 1)


def stored(array: Any) -> Any:
    """Return the array behind an extension array, a dictionary's values, or the bytes of files; any other as it is."""
    if isinstance(array.type, pa.BaseExtensionType):
        return array.storage
    if pa.types.is_struct(array.type):
        # Not `field`, which would give bytes to a row that is null.
        return compute.struct_field(array, "bytes")
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def values_of(array: Any, kind: ColumnKind) -> ColumnValues:
    """Return the values of all rows of an array that is of this kind; values of rows with a fault are undefined."""
    array = stored(array)
    if kind.holds != "numbers":
        return _characters(array)
    if not kind.ragged:
        return ColumnValues(values=_fixed(array, kind))
    offsets = array.offsets.to_numpy().astype(np.int64)
    # `values` is the unsliced child, while offsets are those of this array's rows.
    inner, offsets = array.values.slice(offsets[0], offsets[-1] - offsets[0]), offsets - offsets[0]
    steps = np.diff(offsets) if kind.cells else None
    if kind.cells:
        inner, offsets = cells_of(inner), starts_of(inner)[offsets]
    wrong = other_rows(inner, kind.inner)
    if wrong is None:
        return ColumnValues(values=flat_numbers(inner, kind.inner), offsets=offsets, steps=steps)
    # Steps that would not fit into an array are left out, which shortens their rows: these are bad anyway.
    kept = np.append(0, np.cumsum(~wrong))
    return ColumnValues(
        values=flat_numbers(inner.filter(pa.array(~wrong)), kind.inner), offsets=kept[offsets], steps=steps
    )


def _fixed(array: Any, kind: ColumnKind) -> NDArray[Any]:
    """Return the numbers of rows of one shape; rows whose inner lists have other lengths are zeros."""
    wrong = other_rows(array, kind.inner)
    if wrong is None:
        return flat_numbers(array, kind.inner)
    values = np.zeros((len(array), *kind.inner), kind.dtype)
    values[~wrong] = flat_numbers(array.filter(pa.array(~wrong)), kind.inner)
    return values


def value_of(part: memoryview, kind: ColumnKind, axes: tuple[int, ...] = ()) -> Any:
    """Return a single row's value from its bytes: a text, bytes, or a new array.

    `axes` are the row's own lengths along the two axes of a value of any size. Raise a UnicodeDecodeError if a text is
    not UTF-8, or another ValueError if the bytes do not fill an array's shape.
    """
    if kind.holds == "text":
        return str(part, "utf-8")
    if kind.holds == "bytes":
        return bytes(part)
    return array_of(part, kind.dtype, (*axes, *kind.inner), ragged=kind.ragged and not axes)


def _characters(array: Any) -> ColumnValues:
    """Return the bytes of a column of texts or bytes, one row after another, and where rows begin."""
    large = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    # Buffers are those of the unsliced column: the array's own rows begin at its offset.
    _, offsets, characters = array.buffers()
    starts = np.frombuffer(offsets, np.int64 if large else np.int32, len(array) + 1 + array.offset)[array.offset :]
    starts = starts.astype(np.int64)
    return ColumnValues(
        values=np.frombuffer(characters or b"", np.uint8)[starts[0] : starts[-1]], offsets=starts - starts[0]
    )


def lengths_and_faults(
    arrays: Sequence[Any], kinds: Sequence[ColumnKind], padded: AbstractSet[str]
) -> tuple[dict[str, NDArray[np.int64]], dict[int, tuple[str, str]]]:
    """Return the lengths of all rows by column, and for each bad row the reason, in one word and in full.

    Columns of lists, texts and bytes have lengths, and so have those in `padded`, whose first fixed axis counts. Lists
    in lists that both differ have a width as well. Files have none here. Of several faults of a row the first is kept.
    """
    lengths: dict[str, NDArray[np.int64]] = {}
    faults: dict[int, tuple[str, str]] = {}
    for kind, array in zip(kinds, arrays, strict=True):
        for row, fault in _faults(array, kind):
            faults.setdefault(row, fault)
        if kind.cells:
            values = values_of(array, kind)
            assert values.steps is not None
            lengths |= {kind.key: values.steps, f"{kind.key}_width": values.widths}
        elif kind.ragged and not kind.is_file:
            lengths[kind.key] = _ragged_lengths(array, kind)
        elif kind.key in padded and not kind.is_file:
            lengths[kind.key] = np.full(len(array), kind.inner[0])
    return lengths, faults


def _faults(array: Any, kind: ColumnKind) -> Iterator[tuple[int, tuple[str, str]]]:
    """Yield the rows of a column that have nulls, then those with unequal inner lists, or whose text is not UTF-8.

    Of a column of files only rows without any are yielded; what is in the files is not looked at.
    """
    if kind.is_file:
        yield from _rows_without_file(array, kind.key)
        return
    nulls = _null_rows(array)
    for row in np.flatnonzero(nulls).tolist() if nulls is not None else ():
        yield row, ("null", f'expected "{kind.key}" without nulls, got one')
    for row, complaint in (_bad_texts(array) if kind.holds == "text" else {}).items():
        yield row, ("not_utf8", f'"{kind.key}": {complaint}')
    if kind.holds == "numbers" and (wrong := _unequal_rows(stored(array), kind)) is not None:
        for row in np.flatnonzero(wrong).tolist():
            yield row, ("unequal_lists", _unequal_detail(kind))


def _unequal_detail(kind: ColumnKind) -> str:
    """Return what is wrong with a row whose inner lists are not as long as they have to be."""
    lengths = ", ".join(map(str, kind.inner))
    if kind.cells:
        within = f", and lists of {lengths} in these" if lengths else ""
        return f'expected lists of one length in each row of "{kind.key}"{within}, got several lengths'
    remedy = f' (any_size = ["{kind.key}"] takes rows of any)' if kind.ragged and len(kind.inner) else ""
    return f'expected lists of {lengths} in "{kind.key}", got one of another length{remedy}'


def _unequal_rows(array: Any, kind: ColumnKind) -> NDArray[np.bool_] | None:
    """Return for each row whether one of its inner lists has another length than `kind` says; None if none has."""
    if not kind.ragged:
        return other_rows(array, kind.inner)
    offsets = array.offsets.to_numpy().astype(np.int64)
    items, offsets = array.values.slice(offsets[0], offsets[-1] - offsets[0]), offsets - offsets[0]
    if not kind.cells:
        wrong = other_rows(items, kind.inner)
        return None if wrong is None else rows_of_items(wrong, offsets)
    uneven, wrong = uneven_rows(items, offsets), other_rows(cells_of(items), kind.inner)
    if wrong is None:
        return uneven
    within = rows_of_items(wrong, starts_of(items)[offsets])
    return within if uneven is None else uneven | within


def _rows_without_file(array: Any, key: str) -> Iterator[tuple[int, tuple[str, str]]]:
    """Yield the rows of a column of files that hold no bytes, and why."""
    found = stored(array)
    if not found.null_count:
        return
    paths = compute.struct_field(array, "path")
    for row in np.flatnonzero(found.is_null().to_numpy(zero_copy_only=False)).tolist():
        path = paths[row].as_py()
        if path is None:
            yield row, ("null", f'expected "{key}" with bytes, got neither bytes nor a path')
        else:
            # Not opened: a data file from elsewhere would decide which files of this machine are read.
            remedy = "write the data set by save_to_disk or to_parquet, which put the files into it"
            yield row, ("not_embedded", f'expected the bytes of "{key}", got only its path {path!a}: {remedy}')


def _ragged_lengths(array: Any, kind: ColumnKind) -> NDArray[np.int64]:
    """Return the length of each row: items of a list, characters of a text, or bytes."""
    array = stored(array)
    if kind.holds == "text":
        # A null has no length, and an array with nulls would become floats; the row is bad anyway.
        return compute.utf8_length(array.fill_null("")).to_numpy(zero_copy_only=False).astype(np.int64)  # type: ignore[no-any-return]
    offsets = values_of(array, kind).offsets
    assert offsets is not None
    return np.diff(offsets).astype(np.int64)  # type: ignore[no-any-return,unused-ignore]


def _null_rows(array: Any) -> NDArray[np.bool_] | None:
    """Return for each row whether it is null or has a null in it; None if no row is or has."""
    array = stored(array)
    inner = _null_inside(array)
    if not array.null_count:
        return inner
    nulls: NDArray[np.bool_] = array.is_null().to_numpy(zero_copy_only=False)
    return nulls if inner is None else nulls | inner


def _null_inside(array: Any) -> NDArray[np.bool_] | None:
    """Return for each row whether it has a null among its items; None if none has, or rows have no items."""
    kind = array.type
    if pa.types.is_fixed_size_list(kind):
        size = kind.list_size
        within = _null_rows(array.values.slice(array.offset * size, len(array) * size))
        return None if within is None else np.logical_or.reduce(within.reshape(-1, size), axis=1)
    if not is_variable_list(kind):
        return None
    offsets = array.offsets.to_numpy().astype(np.int64)
    within = _null_rows(array.values.slice(offsets[0], offsets[-1] - offsets[0]))
    if within is None:
        return None
    return rows_of_items(within, offsets - offsets[0])


def _bad_texts(array: Any) -> dict[int, str]:
    """Return the rows whose text is not UTF-8, and what is wrong with each; empty if all are UTF-8."""
    try:
        # Arrow checks the whole column at once; texts are decoded one by one only if that fails.
        array.validate(full=True)
    except pa.ArrowInvalid:
        column = _characters(stored(array))
        assert column.offsets is not None
        ends = column.offsets.tolist()
        texts = (column.values[start:end].tobytes() for start, end in itertools.pairwise(ends))
        return {row: complaint for row, text in enumerate(texts) if (complaint := _not_utf8(text))}
    return {}


def _not_utf8(text: bytes) -> str:
    """Return what is wrong with a text; empty if it is UTF-8."""
    try:
        text.decode()
    except UnicodeDecodeError as error:
        return f"expected UTF-8, got the byte 0x{text[error.start]:02x} after {error.start} others"
    return ""
