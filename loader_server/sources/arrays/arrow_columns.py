"""Arrow columns as plain arrays: values one after another, with offsets where rows differ in length.

Rules: numbers, lists of numbers (with an inner axis of fixed size, if there is one), texts and bytes; all other types
are refused by name. Rows that are null, or contain a null, are faults. pyarrow is imported here alone. Nothing here
reads files.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from loader_server.sources.batch_columns import array_of
from shared.errors import DataError
from shared.extras import library
from shared.wire.batch_layout import DTYPES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from numpy.typing import NDArray

__all__ = [
    "ColumnKind",
    "ColumnValues",
    "kind_of",
    "kinds_of",
    "lengths_and_faults",
    "pa",
    "parquet",
    "refuse_other_columns",
    "unusable",
    "value_of",
    "values_of",
]

_import = partial(library, extra="parquet", use="which reads Parquet and Arrow")
pa, compute, parquet = _import("pyarrow"), _import("pyarrow.compute"), _import("pyarrow.parquet")

#: What columns of these types hold; the large ones have offsets of 64 bits.
_CHARACTERS = {pa.string(): "text", pa.large_string(): "text", pa.binary(): "bytes", pa.large_binary(): "bytes"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnKind:
    """What a column holds: "numbers", "text" or "bytes"; `inner` are the fixed axes of its values."""

    key: str
    #: "uint8" for texts and bytes, whose values are their bytes.
    dtype: str
    inner: tuple[int, ...] = ()
    #: Whether rows differ in length, so that offsets say where each begins.
    ragged: bool = False
    holds: str = "numbers"

    @property
    def row_bytes(self) -> int:
        """Return the bytes of one value, inner axes included."""
        return np.dtype(self.dtype).itemsize * math.prod(self.inner)


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnValues:
    """The values of some rows, one after another.

    If rows differ in length, `offsets` says where each row's values begin, and where the last row's end.
    """

    values: NDArray[Any]
    offsets: NDArray[np.int64] | None = None


def kind_of(key: str, kind: Any) -> ColumnKind | None:
    """Return what a column of this Arrow type holds; None for a type that is not supported."""
    kind, types = _plain_type(kind), pa.types
    if kind in _CHARACTERS:
        return ColumnKind(key=key, dtype="uint8", ragged=True, holds=_CHARACTERS[kind])
    ragged = types.is_list(kind) or types.is_large_list(kind)
    kind = kind.value_type if ragged else kind
    inner = (kind.list_size,) if types.is_fixed_size_list(kind) else ()
    kind = kind.value_type if inner else kind
    numeric = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)
    dtype = str(np.dtype(kind.to_pandas_dtype())) if numeric else ""
    return ColumnKind(key=key, dtype=dtype, inner=inner, ragged=ragged) if dtype in DTYPES else None


def kinds_of(types: Mapping[str, Any], wanted: Sequence[str], where: str) -> list[ColumnKind]:
    """Return what the wanted columns hold, or all if none is named, by a file's Arrow types.

    Raise a DataError if a wanted column is missing, or is of a type that is not supported.
    """
    kinds = []
    for name in wanted or types:
        if name not in types:
            raise unusable(
                where,
                f'a column "{name}"',
                ", ".join(f'"{column}"' for column in types) or "none",
                "Mend `columns`, or the file.",
            )
        kind = kind_of(name, types[name])
        if kind is None:
            raise unusable(
                where,
                f'"{name}" of numbers, texts, bytes or lists of numbers',
                str(types[name]),
                "Name the columns that can be read (columns = […]), or write it as another type.",
            )
        kinds.append(kind)
    return kinds


def refuse_other_columns(expected: Sequence[ColumnKind], got: Sequence[ColumnKind], where: str) -> None:
    """Raise a DataError if a file's columns differ from those of the first file, whatever their order."""
    # Columns first, because the one that differs says more than their number.
    pairs = zip(sorted(map(_shown, expected)), sorted(map(_shown, got)), strict=False)
    for first, other in (*pairs, (f"{len(expected)} columns", f"{len(got)} columns")):
        if first != other:
            raise unusable(
                where,
                f"{first}, as in the files before",
                other,
                "All files need one schema: write this one anew, leave it out, or name common `columns`.",
            )


def _shown(kind: ColumnKind) -> str:
    """Return a column's name and kind as messages show them."""
    axes = ", ".join([*(["any"] if kind.ragged else []), *map(str, kind.inner)])
    return f'"{kind.key}" as {kind.holds if kind.holds != "numbers" else f"{kind.dtype} [{axes}]"}'


def unusable(where: str, expected: str, got: str, remedy: str = "") -> DataError:
    """Return the DataError for a file that cannot be used as it is."""
    remedy = remedy or "Write it anew, or mend `paths` of the stream, which are relative to the job file."
    return DataError(expected=expected, got=got, where=where, remedy=remedy)


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
    """Return the values of all rows of an array that is of this kind; values of rows that are null are undefined."""
    array = _plain(array)
    if kind.holds != "numbers":
        return _characters(array)
    if not kind.ragged:
        return ColumnValues(values=_numbers(array, kind))
    offsets = array.offsets.to_numpy().astype(np.int64)
    # `values` is the unsliced child, while offsets are those of this array's rows.
    return ColumnValues(
        values=_numbers(array.values.slice(offsets[0], offsets[-1] - offsets[0]), kind), offsets=offsets - offsets[0]
    )


def value_of(part: memoryview, kind: ColumnKind) -> Any:
    """Return a single row's value from its bytes: a text, bytes, or a new array.

    Raise a UnicodeDecodeError if a text is not UTF-8, or another ValueError if the bytes do not fill an array's shape.
    """
    if kind.holds == "text":
        return str(part, "utf-8")
    if kind.holds == "bytes":
        return bytes(part)
    return array_of(part, kind.dtype, kind.inner, ragged=kind.ragged)


def _numbers(array: Any, kind: ColumnKind) -> NDArray[Any]:
    """Return the numbers of a flat or fixed-size column, with nulls as zeros."""
    for size in kind.inner:
        # `values` of a fixed-size list ignores the array's own offset, so a slice of a column has to be cut out here.
        array = array.values.slice(array.offset * size, len(array) * size)
    if array.null_count:
        # With nulls, to_numpy turns integers into floats; rows with a null are bad anyway.
        array = array.fill_null(False if pa.types.is_boolean(array.type) else 0)
    numbers: NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return numbers.reshape(-1, *kind.inner)


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

    Columns of lists, texts and bytes have lengths, and so have those in `padded`, whose first fixed axis counts. Of
    several faults of a row the first is kept.
    """
    lengths: dict[str, NDArray[np.int64]] = {}
    faults: dict[int, tuple[str, str]] = {}
    for kind, array in zip(kinds, arrays, strict=True):
        for row, fault in _faults(array, kind):
            faults.setdefault(row, fault)
        if kind.ragged:
            lengths[kind.key] = _ragged_lengths(array, kind)
        elif kind.key in padded:
            lengths[kind.key] = np.full(len(array), kind.inner[0])
    return lengths, faults


def _faults(array: Any, kind: ColumnKind) -> Iterator[tuple[int, tuple[str, str]]]:
    """Yield the rows of a column that have nulls, then those whose text is not UTF-8."""
    nulls = _null_rows(array)
    for row in np.flatnonzero(nulls).tolist() if nulls is not None else ():
        yield row, ("null", f'expected "{kind.key}" without nulls, got one')
    for row, complaint in (_bad_texts(array) if kind.holds == "text" else {}).items():
        yield row, ("not_utf8", f'"{kind.key}": {complaint}')


def _ragged_lengths(array: Any, kind: ColumnKind) -> NDArray[np.int64]:
    """Return the length of each row: items of a list, characters of a text, or bytes."""
    array = _plain(array)
    if kind.holds == "text":
        # A null has no length, and an array with nulls would become floats; the row is bad anyway.
        return compute.utf8_length(array.fill_null("")).to_numpy(zero_copy_only=False).astype(np.int64)  # type: ignore[no-any-return]
    offsets = values_of(array, kind).offsets
    assert offsets is not None
    return np.diff(offsets).astype(np.int64)  # type: ignore[no-any-return,unused-ignore]


def _null_rows(array: Any) -> NDArray[np.bool_] | None:
    """Return for each row whether it is null or has a null in it; None if no row is or has."""
    array = _plain(array)
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
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return None
    offsets = array.offsets.to_numpy().astype(np.int64)
    within = _null_rows(array.values.slice(offsets[0], offsets[-1] - offsets[0]))
    if within is None:
        return None
    rows = np.zeros(len(array), np.bool_)
    # The row of an inner item is the last one that begins at or before it; side="right" passes over empty rows.
    rows[np.searchsorted(offsets - offsets[0], np.flatnonzero(within), side="right") - 1] = True
    return rows


def _bad_texts(array: Any) -> dict[int, str]:
    """Return the rows whose text is not UTF-8, and what is wrong with each; empty if all are UTF-8."""
    try:
        # Arrow checks the whole column at once; texts are decoded one by one only if that fails.
        array.validate(full=True)
    except pa.ArrowInvalid:
        column = _characters(_plain(array))
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
