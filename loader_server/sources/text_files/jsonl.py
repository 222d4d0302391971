"""The jsonl source: files of JSON lines, each an object and a sample, of texts, numbers, and lists of numbers.

Rules: every sample has the same keys, those of the settings or else those of the first rows; a row that lacks one, or
has another kind of value there, is bad. Lengths are the characters of texts and the items of lists. The base class,
`LineSource`, knows where a line is, and whether it has changed.
"""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from loader_server.sources.source import BadRow, Found, Inventory
from loader_server.sources.text_files.json_values import (
    KINDS,
    UnusableValueError,
    columns_of_kinds,
    fields_of,
    has_length,
    kinds_in,
    object_of,
    objects_of,
    values_of_kinds,
)
from loader_server.sources.text_files.line_source import LinePiece, LineSource
from shared.errors import DataError
from shared.settings.parsers import by_key, choice, setting, texts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from loader_server.sources.batch_columns import Columns
    from shared.wire.batch_layout import Field

__all__ = ["JsonLinesSettings", "JsonLinesSource"]

#: Number of rows from which the keys are taken if the settings name none.
_FIRST_ROWS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonLinesSettings:
    """Further settings of a stream with source = "jsonl"."""

    paths: tuple[str, ...] = setting(
        texts,
        "files of JSON lines, an object a line, relative to the job file; also folders and patterns such as *.jsonl",
    )
    keys: tuple[tuple[str, str], ...] = setting(
        by_key(choice(*KINDS)),
        'what a sample has, such as `{ text = "text", label = "int32", tokens = "int32 [any]" }`; '
        "if it is left out, all keys of the first 100 rows that hold texts, numbers or lists of numbers",
        default=(),
    )


class JsonLinesSource(LineSource):
    """Source of JSON objects, one a line.

    Index columns: those of a line, and the lengths of texts and lists, each by the number of its key.
    """

    Settings = JsonLinesSettings
    piece_rows = 5000
    suffixes = (".jsonl", ".ndjson", ".json")
    settings: JsonLinesSettings

    #: The kinds while there is no index, worked out when they are first needed.
    _kinds_found: Mapping[str, str] | None = None

    @property
    def _kinds(self) -> Mapping[str, str]:
        """Return the kind of each key's value: from the index once it is open, else from settings or first rows.

        It is empty if the first rows have no usable key. If rows are needed, raise what `_first_lines` raises, such as
        a DataError if there is no file.
        """
        if hasattr(self, "indexed"):
            kinds: Mapping[str, str] = self.indexed.about["keys"]
            return kinds
        # The first rows are read once: a process that probes asks for the kinds with each line.
        if self._kinds_found is None:
            self._kinds_found = dict(self.settings.keys) or kinds_in(itertools.islice(self._objects(), _FIRST_ROWS))
        return self._kinds_found

    def _first_lines(self) -> Iterator[tuple[int, bytes]]:
        """Yield the lines of all files from the beginning, each with its number in its file, from 1.

        Raise a DataError if there is no file, one is named twice or cannot be opened, a ReadError if one is rewritten
        meanwhile or cannot be fetched, and an OSError if the disk fails. Raise a SettingsError if a store's library is
        missing, or for braces that stand for too many names. MachineError of `_lines_between` passes through.
        """
        for piece in self._pieces(self._found_paths(), _FIRST_ROWS):
            lines = self._lines_in(piece)
            yield from ((piece.line + number, lines.line(number)) for number in range(len(lines.starts)))

    def _objects(self) -> Iterator[dict[str, Any]]:
        """Yield the objects of all lines that hold one.

        Raise what `_first_lines` raises, such as a DataError if there is no file, and a ReadError if one is rewritten
        meanwhile or cannot be fetched.
        """
        for _, line in self._first_lines():
            with contextlib.suppress(UnusableValueError):
                yield object_of(line)

    @property
    def fields(self) -> tuple[Field, ...]:
        """Return the fields of numbers and lists, () without any; texts become numbers in a transform.

        Before there is an index, errors of reading the first rows pass through if they are needed, such as a DataError
        if there is no file.
        """
        return fields_of(self._kinds)

    @property
    def text_keys(self) -> Sequence[str]:  # type: ignore[override]
        """Return the keys of kind `text`, maybe none.

        Before there is an index, errors of reading the first rows pass through if they are needed, such as a DataError
        if there is no file.
        """
        return [key for key, kind in self._kinds.items() if kind == "text"]

    @property
    def _measured_keys(self) -> tuple[str, ...]:
        """Return the keys whose values have a length, those of texts and lists, maybe none.

        Before there is an index, errors of reading the first rows pass through if they are needed, such as a DataError
        if there is no file.
        """
        return tuple(key for key, kind in self._kinds.items() if has_length(kind))

    # --- while an index is made ---

    def survey(self) -> Inventory:
        """Count the lines, and find the keys; raise a DataError if the first rows have none that can be used.

        Raise it too if there is no file, or one is named twice, is absent or is no text; raise a ReadError if a store
        cannot be asked or a file not be fetched, a SettingsError if the store's library is missing or braces stand for
        too many names, and an OSError if the disk fails. Other errors of reading the first rows pass through.
        """
        inventory = super().survey()
        if not self._kinds:
            raise DataError(
                expected="objects with texts, numbers or lists of numbers, one a line",
                got=f"none in the first {_FIRST_ROWS} rows{self._first_fault()}",
                where=", ".join(map(self.files.where, self._found_paths())),
                remedy="Convert the files, or name the keys that there are: keys = { … }.",
            )
        return replace(inventory, about={"keys": dict(self._kinds)})

    def _first_fault(self) -> str:
        """Return what is wrong with the first line that is no object, in parentheses, or "" if all lines are objects.

        Raise what `_first_lines` raises, such as a DataError if a file cannot be opened, or a ReadError if it cannot be
        fetched.
        """
        for number, line in self._first_lines():
            try:
                object_of(line)
            except UnusableValueError as error:
                return f" (line {number}: {error.detail})"
        return ""

    def probe(self, piece: LinePiece) -> Found:
        """Parse and measure the objects of a piece; lines that cannot be used become bad rows.

        Raise a ReadError if the file was rewritten since it was surveyed or cannot be fetched, and an OSError if the
        disk fails. Other errors of `_lines_between` pass through and, if the settings name no keys, those of reading
        the first rows.
        """
        lines, where = self._lines_in(piece), self.files.where(piece.path)
        good: dict[int, list[int]] = {}
        bad: dict[int, BadRow] = {}
        for number in range(len(lines.starts)):
            try:
                values = self._values(lines.line(number))
                good[number] = [len(values[key]) for key in self._measured_keys]
            except UnusableValueError as error:
                bad[piece.row + number] = BadRow(where, piece.line + number, error.reason, error.detail)
        numbers = np.array(list(good), np.int64)
        of_keys = np.array(list(good.values()), np.int64).reshape(len(good), len(self._measured_keys)).T
        columns = self._columns_of(piece, lines, numbers)
        columns |= {f"length_{place}": column for place, column in enumerate(of_keys)}
        return Found(rows=(piece.row + numbers).tolist(), numbers=columns, bad=bad)

    def _values(self, line: bytes) -> dict[str, Any]:
        """Return the values of a sample from its line; raise UnusableValueError if the line cannot be used.

        Before there is an index, errors of reading the first rows pass through if they are needed.
        """
        if not line:
            raise UnusableValueError("empty_line", "expected an object, got an empty line")
        return values_of_kinds(object_of(line), self._kinds)

    def decoded_bytes(self, numbers: Mapping[str, Sequence[int] | NDArray[np.int64]]) -> NDArray[np.int64] | None:
        """Return the decoded size of samples with these columns, as the base class does; None if no key has a length.

        Columns of lengths are named by the key's number here, because a key may have any name, so they are renamed
        first. Errors of `_measured_keys` pass through.
        """
        return super().decoded_bytes(
            {f"length_{key}": numbers[f"length_{place}"] for place, key in enumerate(self._measured_keys)}
        )

    # --- once there is an index ---

    @property
    def lengths(self) -> dict[str, NDArray[np.int64]]:
        """Return the number of characters of each text and of items of each list, by key; empty without such keys.

        The source must be open, so no rows are read.
        """
        return {key: self.indexed.numbers[f"length_{place}"] for place, key in enumerate(self._measured_keys)}

    def decode(self, sample: int, raw: bytes) -> dict[str, Any]:
        """Return the object's values by key; indexing has found the line usable.

        Raise UnusableValueError for a line that cannot be used. Errors of `_values` pass through.
        """
        return self._values(raw)

    def decode_all(self, samples: Sequence[int], raw: Sequence[bytes]) -> Columns:
        """Return the values of all objects as columns.

        Nothing is checked again: indexing found each line usable, and its digest shows that it is unchanged. For other
        lines, raise a ValueError, KeyError, TypeError, OverflowError or RecursionError, or return other values than
        `decode` would. Errors of `_kinds` pass through.
        """
        return columns_of_kinds(objects_of(raw), self._kinds)
