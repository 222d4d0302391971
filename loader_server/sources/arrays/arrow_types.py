"""Arrow types as kinds of columns: numbers, lists of numbers, texts, bytes, and encoded recordings or images.

Rules: every type that is not supported is refused by name. Moments and durations are integers in the unit of their
column. A struct of bytes and path, as the library `datasets` stores recordings and images, is "encoded" until the first
rows or the file's own description tell which of the two it is. pyarrow is imported here alone. Nothing here reads
files.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from shared.errors import DataError
from shared.extras import library
from shared.wire.batch_layout import DTYPES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = [
    "UNKNOWN",
    "ColumnKind",
    "compute",
    "features_of",
    "is_variable_list",
    "kind_of",
    "kinds_of",
    "pa",
    "parquet",
    "plain_type",
    "refuse_other_columns",
    "unusable",
]

_import = partial(library, extra="parquet", use="which reads Parquet and Arrow")
pa, compute, parquet = _import("pyarrow"), _import("pyarrow.compute"), _import("pyarrow.parquet")

#: What columns of these types hold; the large ones have offsets of 64 bits.
_CHARACTERS = {pa.string(): "text", pa.large_string(): "text", pa.binary(): "bytes", pa.large_binary(): "bytes"}

#: In place of the length of inner lists, until the first rows tell it.
UNKNOWN = -1

#: Names of the fields in which `datasets` stores a file: its bytes, and the path that it had.
_OF_FILE = {"bytes", "path"}

#: What holds encoded files, and is no number.
_FILES = ("encoded", "audio", "image")


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnKind:
    """What a column holds: "numbers", "text", "bytes", "audio", "image", or "encoded" until it is known which.

    `inner` are the fixed axes of its values as they are stored.
    """

    key: str
    #: "uint8" for texts, bytes and encoded files, which are stored as their bytes.
    dtype: str
    inner: tuple[int, ...] = ()
    #: Whether rows differ in length, so that offsets say where each begins.
    ragged: bool = False
    holds: str = "numbers"
    #: The Arrow type of moments and durations, which has their unit; empty for all others.
    unit: str = ""
    #: Rows, columns and channels of a decoded image, None where images differ; empty for all others.
    pixels: tuple[int | None, ...] = ()
    #: Whether values are lists in lists whose lengths both differ from row to row; `inner` is what lies within these.
    cells: bool = False

    @property
    def row_bytes(self) -> int:
        """Return the bytes of one value as it is stored, inner axes included; of `cells` those of one cell."""
        return np.dtype(self.dtype).itemsize * math.prod(self.inner)

    @property
    def is_file(self) -> bool:
        """Return whether its values are encoded recordings or images, which are decoded sample by sample."""
        return self.holds in _FILES

    @property
    def is_wide(self) -> bool:
        """Return whether its values differ in rows and columns, images as well as lists in lists."""
        return self.cells or (bool(self.pixels) and self.pixels[0] is None)

    @property
    def fixed_pixels(self) -> tuple[int, ...]:
        """Return `pixels` if all images have the same, otherwise nothing."""
        return tuple(axis for axis in self.pixels if axis is not None) if not self.is_wide else ()

    def to_json(self) -> dict[str, Any]:
        """Return the kind as an index keeps it.

        `unit`, `pixels` and `cells` are left out if empty, so that indexes from before there were any stay valid.
        """
        values = {**asdict(self), "inner": list(self.inner), "pixels": list(self.pixels)}
        return {name: value for name, value in values.items() if value or name not in ("unit", "pixels", "cells")}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> ColumnKind:
        """Return the kind that `to_json` gave these values of."""
        return cls(**{**values, "inner": tuple(values["inner"]), "pixels": tuple(values.get("pixels", ()))})


def kind_of(key: str, kind: Any) -> ColumnKind | None:
    """Return what a column of this Arrow type holds; None for a type that is not supported.

    Inner lists of varying length have UNKNOWN in their place of `inner`.
    """
    kind = plain_type(kind)
    if kind in _CHARACTERS:
        return ColumnKind(key=key, dtype="uint8", ragged=True, holds=_CHARACTERS[kind])
    if _is_file(kind):
        return ColumnKind(key=key, dtype="uint8", ragged=True, holds="encoded")
    ragged = is_variable_list(kind)
    kind = kind.value_type if ragged else kind
    inner = list[int]()
    while is_variable_list(kind) or pa.types.is_fixed_size_list(kind):
        inner.append(kind.list_size if pa.types.is_fixed_size_list(kind) else UNKNOWN)
        kind = kind.value_type
    dtype, unit = _number(kind)
    return ColumnKind(key=key, dtype=dtype, inner=tuple(inner), ragged=ragged, unit=unit) if dtype in DTYPES else None


def is_variable_list(kind: Any) -> bool:
    """Return whether a type is that of lists whose lengths may differ."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _is_file(kind: Any) -> bool:
    """Return whether a type is that of files: a struct of nothing but bytes and a path."""
    return (
        pa.types.is_struct(kind)
        and {field.name for field in kind} == _OF_FILE
        and _CHARACTERS.get(kind.field("bytes").type) == "bytes"
    )


def _number(kind: Any) -> tuple[str, str]:
    """Return the dtype of a type of numbers, and its unit if it is one of time; the dtype is empty for other types."""
    types = pa.types
    if types.is_temporal(kind) and not types.is_interval(kind):
        return f"int{kind.bit_width}", str(kind)
    numeric = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)
    return (str(np.dtype(kind.to_pandas_dtype())) if numeric else ""), ""


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
                f'"{name}" of numbers, texts, bytes, lists of numbers, or files as `datasets` keeps them',
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
    inner = ("any" if size == UNKNOWN else str(size) for size in kind.inner)
    axes = ", ".join([*(["any"] if kind.ragged else []), *inner])
    return f'"{kind.key}" as {kind.holds if kind.holds != "numbers" else f"{kind.unit or kind.dtype} [{axes}]"}'


def unusable(where: str, expected: str, got: str, remedy: str = "") -> DataError:
    """Return the DataError for a file that cannot be used as it is."""
    remedy = remedy or "Write it anew, or mend `paths` of the stream, which are relative to the job file."
    return DataError(expected=expected, got=got, where=where, remedy=remedy)


def plain_type(kind: Any) -> Any:
    """Return the type behind an extension type or a dictionary; any other type as it is."""
    if isinstance(kind, pa.BaseExtensionType):
        return kind.storage_type
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def features_of(metadata: Mapping[bytes, bytes] | None) -> dict[str, str]:
    """Return what `datasets` calls the columns that are files, such as "Audio", by a schema's metadata.

    Return nothing for columns of other kinds, and for a schema that was not written by `datasets`.
    """
    try:
        features = json.loads((metadata or {})[b"huggingface"])["info"]["features"]
        return {key: str(about["_type"]) for key, about in features.items() if "_type" in about}
    except (KeyError, ValueError, TypeError, AttributeError):
        return {}
