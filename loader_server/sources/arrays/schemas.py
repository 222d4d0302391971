"""Columns of a file: which are taken, what they hold, and that all files agree on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from loader_server.sources.arrays.arrow_columns import ColumnKind, kind_of
from shared.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["kinds_of", "refuse_other_columns", "told", "unusable"]


def kinds_of(types: Mapping[str, Any], wanted: Sequence[str], where: str) -> list[ColumnKind]:
    """Return what the wanted columns hold, or all if none is named, by a file's Arrow types.

    Raise a DataError if a wanted column is missing, or one cannot be read.
    """
    kinds = []
    for name in wanted or types:
        if name not in types:
            got = ", ".join(f'"{one}"' for one in types) or "none"
            raise unusable(where, f'a column "{name}"', got, "Mend `columns`, or the file.")
        kind = kind_of(name, types[name])
        if kind is None:
            expected = f'"{name}" of numbers, texts, bytes or lists of numbers'
            remedy = "Name the columns that can be read (columns = […]), or write it as another type."
            raise unusable(where, expected, str(types[name]), remedy)
        kinds.append(kind)
    return kinds


def refuse_other_columns(expected: Sequence[ColumnKind], got: Sequence[ColumnKind], where: str) -> None:
    """Raise a DataError if a file's columns differ from those of the first file."""
    for one, other in zip(sorted(map(_shown, expected)), sorted(map(_shown, got)), strict=False):
        if one != other:
            raise _another_schema(one, other, where)
    if len(expected) != len(got):
        raise _another_schema(f"{len(expected)} columns", str(len(got)), where)


def _shown(kind: ColumnKind) -> str:
    """Return a column's name and kind as messages show them."""
    axes = ", ".join([*(["any"] if kind.ragged else []), *map(str, kind.inner)])
    return f'"{kind.key}" as {kind.holds if kind.holds != "numbers" else f"{kind.dtype} [{axes}]"}'


def _another_schema(expected: str, got: str, where: str) -> DataError:
    """Return the DataError for a file of another schema."""
    remedy = "All files need one schema: write this one anew, leave it out of `paths`, or name common `columns`."
    return unusable(where, f"{expected}, as in the files before", got, remedy)


def unusable(where: str, expected: str, got: str, remedy: str = "") -> DataError:
    """Return the DataError for a file that cannot be used as it is."""
    remedy = remedy or "Write it anew, or mend `paths` of the stream, which are relative to the job file."
    return DataError(expected=expected, got=got, where=where, remedy=remedy)


def told(error: BaseException) -> str:
    """Return an error's text, in one line and without a full stop."""
    return " ".join(str(error).split()).rstrip(".")
