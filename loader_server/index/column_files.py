"""The files in an index's folder of columns: numbers, strings, and the rows that were left out.

Columns are plain .npy files that grow while they are written and are mapped into memory when read; strings are one
array of UTF-8 bytes and one of starts. Rows that were left out are JSON objects, one a line, in the order of the rows.

Rules: no Python objects; memory does not grow with the number of rows, neither in writing nor in opening. A writer
goes on behind what an earlier one left, so that an interrupted index can be resumed. Knows nothing about what the
columns mean.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from loader_server.sources.source import BadRow

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

__all__ = [
    "BAD_ROWS",
    "BadRowsWriter",
    "ColumnWriter",
    "Strings",
    "StringsWriter",
    "bytes_with_header",
    "file_of",
    "first_bad_rows",
    "mapped",
    "open_strings",
    "shown_bad_rows",
]

#: The name of the file with the rows that were left out.
BAD_ROWS = "bad_rows.jsonl"
#: Bad rows that an error shows.
_SHOWN = 10

#: The header's size in a .npy file with one axis. It does not depend on the length, because numpy leaves room for 21
#: digits: so `close` can write the final length over the first header.
_HEADER_BYTES = 128


def file_of(column: str, ending: str = ".npy") -> str:
    """Return the file name of a column; slashes in nested features' names are escaped."""
    return column.replace("%", "%25").replace("/", "%2F") + ending


class _Appended:
    """A file that is appended to after its first `size` bytes, which an earlier writer left; the rest is cut off."""

    def __init__(self, path: Path, size: int) -> None:
        """Open the file, or make it if `size` is 0; raise an OSError, with nothing left open, if that fails."""
        self._file = path.open("r+b" if size else "wb")
        try:
            # What a killed writer wrote after its last `sync` may be there in part; it is written again.
            self._file.truncate(self._file.seek(size))
        except BaseException:  # a full disk, say: nobody else closes it
            self._file.close()
            raise

    def sync(self) -> None:
        """Wait until the disk has everything written so far; raise an OSError if it is full, or fails."""
        self._file.flush()
        os.fsync(self._file.fileno())


class ColumnWriter(_Appended):
    """A column of numbers that is appended to, after `length` numbers that an earlier writer left.

    Its header is final only once it is closed.
    """

    def __init__(self, path: Path, dtype: str, length: int = 0) -> None:
        self._dtype = np.dtype(dtype)
        self._length = length
        super().__init__(path, length and bytes_with_header(length * self._dtype.itemsize))
        if not length:
            self._write_header()

    def append(self, values: Iterable[int] | NDArray[np.integer]) -> None:
        """Append values; raise OSError if the disk fails, and OverflowError for one that the column cannot hold."""
        array = np.asarray(values if isinstance(values, np.ndarray) else list(values))
        with np.errstate(invalid="ignore"):  # NaN, which is looked for below
            converted = array.astype(self._dtype, copy=False)
        # numpy wraps what is too large, and cuts off fractions.
        if converted is not array and (converted != array).any():
            raise OverflowError(f"numbers from {array.min()} to {array.max()} in a column of {self._dtype}")
        array = converted
        self._file.write(array.tobytes())
        self._length += len(array)

    def close(self) -> None:
        """Write the final header, wait until the disk has the file, and close it; raise an OSError if that fails."""
        with self._file:
            self._file.seek(0)
            self._write_header()
            self.sync()

    def _write_header(self) -> None:
        facts = {"descr": self._dtype.str, "fortran_order": False, "shape": (self._length,)}
        np.lib.format.write_array_header_1_0(self._file, facts)


class StringsWriter:
    """A column of strings that is appended to, after `length` strings of `end` bytes that an earlier writer left."""

    def __init__(self, folder: Path, name: str, length: int = 0, end: int = 0) -> None:
        self._blob = ColumnWriter(folder / file_of(name, ".text.npy"), "uint8", end)
        try:
            # There is one start more than strings: the last one is the end.
            self._starts = ColumnWriter(folder / file_of(name, ".starts.npy"), "int64", length and length + 1)
        except BaseException:  # a full disk, say: nobody else closes it
            self._blob.close()
            raise
        self.end = end
        if not length:
            self._starts.append([0])

    def append(self, values: Iterable[str]) -> None:
        """Write strings after those already there.

        Raise an OSError if the disk is full, or fails, and a UnicodeEncodeError for a string that is not valid Unicode.
        """
        encoded = [value.encode() for value in values]
        ends = self.end + np.cumsum([len(value) for value in encoded], dtype=np.int64)
        self._blob.append(np.frombuffer(b"".join(encoded), np.uint8))
        self._starts.append(ends)
        self.end = int(ends[-1]) if len(ends) else self.end

    def sync(self) -> None:
        """Wait until the disk has everything written so far; raise an OSError if it is full, or fails."""
        self._blob.sync()
        self._starts.sync()

    def close(self) -> None:
        """Finish and close both files, even if one raises an OSError, which is raised then."""
        with contextlib.ExitStack() as stack:
            stack.callback(self._starts.close)
            stack.callback(self._blob.close)


@dataclass(frozen=True, slots=True)
class Strings:
    """A column of strings over mapped files; a string is decoded when it is asked for."""

    blob: NDArray[np.uint8]
    starts: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, row: int) -> str:
        return self.blob[self.starts[row] : self.starts[row + 1]].tobytes().decode()


def bytes_with_header(nbytes: int) -> int:
    """Return the size of a column's file for numbers of this many bytes."""
    return _HEADER_BYTES + nbytes


def mapped(path: Path) -> NDArray[np.generic]:
    """Return a column of numbers as a plain array over the mapped file.

    Raise an OSError if the file cannot be opened, and a ValueError if it is damaged, or empty.
    """
    try:
        # Taking a scalar from numpy's memmap class costs ten times as much as from a plain array.
        return np.load(path, mmap_mode="r", allow_pickle=False).view(np.ndarray)  # type: ignore[no-any-return]
    except EOFError:  # numpy's for a file without a byte, such as a machine leaves that lost its power
        raise ValueError(f"{path.name} is empty") from None


def open_strings(folder: Path, name: str) -> Strings:
    """Return a column of strings over its mapped files.

    Raise an OSError if a file cannot be opened, and a ValueError if it is damaged, or empty.
    """
    blob = mapped(folder / file_of(name, ".text.npy")).view(np.uint8)
    return Strings(blob, mapped(folder / file_of(name, ".starts.npy")).view(np.int64))


class BadRowsWriter(_Appended):
    """A file of rows that were left out, after the first `size` bytes, left by an earlier writer.

    A row may hold bytes that are not UTF-8, such as a file's name: they are escaped, and read back unchanged.
    """

    def __init__(self, path: Path, size: int = 0) -> None:
        super().__init__(path, size)
        self._path = path
        self.size = size

    def append(self, rows: Iterable[BadRow]) -> None:
        """Write rows after those already there, as JSON, one a line; raise an OSError if the disk is full, or fails."""
        for row in rows:
            facts = {"where": row.where, "line": row.line, "reason": row.reason, "detail": row.detail}
            facts |= {"remedy": row.remedy} if row.remedy else {}
            line = json.dumps(facts, ensure_ascii=False) + "\n"
            self.size += self._file.write(line.encode("utf-8", "backslashreplace"))

    def close(self) -> None:
        """Finish the file, and remove it if it has no row; raise an OSError if the disk is full, or fails."""
        with self._file:
            self.sync()
        if not self.size:
            self._path.unlink(missing_ok=True)


def first_bad_rows(columns: Path, most: int) -> tuple[BadRow, ...]:
    """Return the first rows that an index left out, at most `most`, from its folder of columns; () if it left none.

    Raise an OSError if the list cannot be read, and a ValueError or TypeError if it is damaged.
    """
    try:
        with (columns / BAD_ROWS).open(encoding="utf-8") as file:
            return tuple(BadRow(**json.loads(line)) for line in islice(file, most))
    except FileNotFoundError:
        return ()


def shown_bad_rows(columns: Path) -> str:
    """Return the first ten bad rows for an error: each detail once, with its count, and the first row that has it.

    Return "" if there are none; details of one reason count as the same if they differ only in paths and numbers. Raise
    an OSError if the list cannot be read, and a ValueError or TypeError if it is damaged.
    """
    return "; ".join(_once_each(first_bad_rows(columns, _SHOWN)))


def _once_each(rows: Iterable[BadRow]) -> Iterator[str]:
    """Yield each detail once, as a string with the first row that has it and the number of further rows alike."""
    alike: dict[tuple[str, str], list[BadRow]] = {}
    for row in rows:
        alike.setdefault((row.reason, _without_place(row)), []).append(row)
    for first, *others in alike.values():
        more = f" (and {len(others)} more of the first {sum(map(len, alike.values()))})" if others else ""
        remedy = f" ({first.remedy})" if first.remedy else ""
        yield f"{first.where}, line {first.line}: {first.reason}: {first.detail}{more}{remedy}"


def _without_place(row: BadRow) -> str:
    """Return a row's detail without words that have a slash or a digit, so that rows with one fault compare equal."""
    words = row.detail.split()
    return " ".join(word for word in words if "/" not in word and not any(letter.isdigit() for letter in word))
