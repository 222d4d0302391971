"""Arrow columns as plain arrays: values one after another, with offsets where rows differ in length.

Rules: numbers, lists of numbers (with an inner axis of fixed size, if there is one), texts and bytes; all other types
are None here, and callers refuse them by name. Rows that are null, or contain a null, are told apart. Nothing here
reads files.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from loader_server.sources.arrays.arrow_library import compute, pa
from shared.wire.batch_layout import DTYPES, Field

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from collections.abc import Set as AbstractSet

    from numpy.typing import NDArray

__all__ = ["ColumnKind", "ColumnValues", "RowFault", "kind_of", "lengths_and_faults", "value_of", "values_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnKind:
    """What a column holds: "numbers", "text" or "bytes"; `inner` are the fixed axes of its values."""

    key: str
    dtype: str
    inner: tuple[int, ...] = ()
    ragged: bool = False
    holds: str = "numbers"

    @property
    def row_bytes(self) -> int:
        """Return the bytes of one value, inner axes included."""
        return np.dtype(self.dtype).itemsize * math.prod(self.inner)

    def field(self, *, padded: bool) -> Field:
        """Return the field of a sample's value; `padded` makes the first fixed axis count as its length."""
        if self.ragged:
            return Field(key=self.key, dtype=self.dtype, shape=(None, *self.inner))
        return Field(key=self.key, dtype=self.dtype, shape=(None,) if padded and self.inner else self.inner)


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnValues:
    """The values of some rows, one after another.

    If rows differ in length, `offsets` says where each row's values begin, and where the last row's end.
    """

    values: NDArray[Any]
    offsets: NDArray[np.int64] | None = None


@dataclass(frozen=True, slots=True)
class RowFault:
    """Reason why a row cannot be used, in one word and in full."""

    reason: str
    detail: str


def kind_of(key: str, kind: Any) -> ColumnKind | None:
    """Return what a column of this Arrow type holds; None for a type that is not supported."""
    kind, types = _plain_type(kind), pa.types
    if types.is_string(kind) or types.is_large_string(kind):
        return ColumnKind(key=key, dtype="uint8", ragged=True, holds="text")
    if types.is_binary(kind) or types.is_large_binary(kind):
        return ColumnKind(key=key, dtype="uint8", ragged=True, holds="bytes")
    ragged = types.is_list(kind) or types.is_large_list(kind)
    kind = kind.value_type if ragged else kind
    inner = (kind.list_size,) if types.is_fixed_size_list(kind) else ()
    kind = kind.value_type if inner else kind
    numeric = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)
    dtype = str(np.dtype(kind.to_pandas_dtype())) if numeric else ""
    return ColumnKind(key=key, dtype=dtype, inner=inner, ragged=ragged) if dtype in DTYPES else None


def _plain_type(kind: Any) -> Any:
    """Return the type behind an extension type or a dictionary; any other type as it is."""
    if isinstance(kind, pa.BaseExtensionType):
        return kind.storage_type
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _plain(array: Any) -> Any:
    """Return the array behind an extension array, or a dictionary's values; any other array as it is."""
    if isinstance(array.type, pa.BaseExtensionType):
        return array.storage
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def values_of(array: Any, kind: ColumnKind) -> ColumnValues:
    """Return the values of all rows; values of rows that are null are undefined."""
    array = _plain(array)
    if kind.holds != "numbers":
        return _characters(array)
    if not kind.ragged:
        return ColumnValues(values=_numbers(array, kind))
    offsets = array.offsets.to_numpy().astype(np.int64)
    # `values` is the unsliced child, while offsets are those of this array's rows.
    child = array.values.slice(offsets[0], offsets[-1] - offsets[0])
    return ColumnValues(values=_numbers(child, kind), offsets=offsets - offsets[0])


def value_of(part: memoryview, kind: ColumnKind) -> Any:
    """Return one row's value from its bytes: a text, bytes, or a new array."""
    if kind.holds == "text":
        return str(part, "utf-8")
    if kind.holds == "bytes":
        return bytes(part)
    shape = (-1, *kind.inner) if kind.ragged else kind.inner
    return np.frombuffer(part, kind.dtype).reshape(shape).copy()


def _numbers(array: Any, kind: ColumnKind) -> NDArray[Any]:
    """Return the numbers of a flat or fixed-size column, with nulls as zeros."""
    for size in kind.inner:
        # `values` of a fixed-size list ignores the array's own offset, so a slice of a column has to be cut out here.
        array = array.values.slice(array.offset * size, len(array) * size)
    if array.null_count:
        # With nulls, to_numpy turns integers into floats; rows with a null are bad anyway.
        array = array.fill_null(False if pa.types.is_boolean(array.type) else 0)
    found: NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return found.reshape(-1, *kind.inner)


def _characters(array: Any) -> ColumnValues:
    """Return the bytes of a column of texts or bytes, one row after another, and where rows begin."""
    large = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    # Buffers are those of the unsliced column: the array's own rows begin at its offset.
    _, offsets, characters = array.buffers()
    starts = np.frombuffer(offsets, np.int64 if large else np.int32, len(array) + 1 + array.offset)[array.offset :]
    starts = starts.astype(np.int64)
    values = np.frombuffer(characters or b"", np.uint8)[starts[0] : starts[-1]]
    return ColumnValues(values=values, offsets=starts - starts[0])


def lengths_and_faults(
    arrays: Sequence[Any], kinds: Sequence[ColumnKind], padded: AbstractSet[str]
) -> tuple[dict[str, NDArray[np.int64]], dict[int, RowFault]]:
    """Return the lengths of all rows by column, and what is wrong with bad rows.

    Columns of lists, texts and bytes have lengths, and so have those in `padded`, whose first fixed axis counts. Of
    several faults of a row the first is kept.
    """
    lengths: dict[str, NDArray[np.int64]] = {}
    faults: dict[int, RowFault] = {}
    for kind, array in zip(kinds, arrays, strict=True):
        for row, fault in _faults(array, kind):
            faults.setdefault(row, fault)
        each = _length_of_each(array, kind)
        if each is not None:
            lengths[kind.key] = each
        elif kind.key in padded:
            lengths[kind.key] = np.full(len(array), kind.inner[0])
    return lengths, faults


def _faults(array: Any, kind: ColumnKind) -> Iterator[tuple[int, RowFault]]:
    """Yield the rows of a column that have nulls, then those whose text is not UTF-8."""
    nulls = _null_rows(array)
    for row in np.flatnonzero(nulls).tolist() if nulls is not None else ():
        yield row, RowFault("null", f'expected "{kind.key}" without nulls, got one')
    for row, said in (_bad_texts(array) if kind.holds == "text" else {}).items():
        yield row, RowFault("not_utf8", f'"{kind.key}": {said}')


def _length_of_each(array: Any, kind: ColumnKind) -> NDArray[np.int64] | None:
    """Return the length of each row: items of a list, characters of a text, or bytes; None without lengths."""
    if not kind.ragged:
        return None
    array = _plain(array)
    if kind.holds == "text":
        return compute.utf8_length(array.fill_null("")).to_numpy(zero_copy_only=False).astype(np.int64)  # type: ignore[no-any-return]
    offsets = values_of(array, kind).offsets
    assert offsets is not None
    return np.diff(offsets).astype(np.int64)  # type: ignore[no-any-return,unused-ignore]


def _null_rows(array: Any) -> NDArray[np.bool_] | None:
    """Return which rows are null or have a null in them; None if there is none."""
    array = _plain(array)
    inner = _null_inside(array)
    if not array.null_count:
        return inner
    found: NDArray[np.bool_] = array.is_null().to_numpy(zero_copy_only=False)
    if inner is not None:
        found = np.logical_or(found, inner)
    return found


def _null_inside(array: Any) -> NDArray[np.bool_] | None:
    """Return which rows have a null among their items; None if none has, or rows have no items."""
    kind = array.type
    if pa.types.is_fixed_size_list(kind):
        size = kind.list_size
        within = _null_rows(array.values.slice(array.offset * size, len(array) * size))
        return None if within is None else np.logical_or.reduce(within.reshape(-1, size), axis=1)
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return None
    offsets = array.offsets.to_numpy().astype(np.int64)
    within = _null_rows(array.values.slice(offsets[0], offsets[-1] - offsets[0]))
    if within is None:
        return None
    found = np.zeros(len(array), np.bool_)
    # The row of an inner item is the last one that begins at or before it; side="right" passes over empty rows.
    found[np.searchsorted(offsets - offsets[0], np.flatnonzero(within), side="right") - 1] = True
    return found


def _bad_texts(array: Any) -> dict[int, str]:
    """Return the rows whose text is not UTF-8, and what is wrong with each."""
    try:
        # Arrow checks the whole column at once; texts are decoded one by one only if that fails.
        array.validate(full=True)
    except pa.ArrowInvalid:
        found = values_of(array, ColumnKind(key="", dtype="uint8", ragged=True, holds="text"))
        assert found.offsets is not None
        ends = found.offsets.tolist()
        texts = (found.values[start:end].tobytes() for start, end in itertools.pairwise(ends))
        return {row: said for row, text in enumerate(texts) if (said := _not_utf8(text))}
    return {}


def _not_utf8(text: bytes) -> str:
    """Return what is wrong with a text; empty if it is UTF-8."""
    try:
        text.decode()
    except UnicodeDecodeError as error:
        return f"expected UTF-8, got the byte 0x{text[error.start]:02x} after {error.start} others"
    return ""
