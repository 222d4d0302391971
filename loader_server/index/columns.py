"""Columns on disk: plain .npy files that grow while they are written and are mapped into memory when read.

Rules: numbers only, no Python objects; memory does not grow with the number of rows, neither in writing nor in opening.
Strings are stored as one array of UTF-8 bytes and one of starts. Knows nothing about what the columns mean.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from numpy.typing import NDArray

__all__ = ["ColumnWriter", "Strings", "StringsWriter", "bytes_with_header", "file_of", "mapped", "open_strings"]

#: The header's size in a .npy file with one axis. It does not depend on the length, because numpy leaves room for 21
#: digits: so `close` can write the final length over the first header.
_HEADER_BYTES = 128


def file_of(column: str, ending: str = ".npy") -> str:
    """Return the file name of a column; slashes in nested features' names are escaped."""
    return column.replace("%", "%25").replace("/", "%2F") + ending


class ColumnWriter:
    """A column of numbers that is appended to, after `length` numbers that an earlier writer left.

    The file is cut there, and its header is final only once it is closed.
    """

    def __init__(self, path: Path, dtype: str, length: int = 0) -> None:
        self._dtype = np.dtype(dtype)
        self._file: BinaryIO = path.open("r+b" if length else "wb")
        self._length = length
        try:
            self._header()
            self._file.truncate(self._file.seek(bytes_with_header(length * self._dtype.itemsize)))
        except BaseException:  # a full disk, say: nobody else closes it
            self._file.close()
            raise

    def append(self, values: Iterable[int] | NDArray[np.integer]) -> None:
        """Write values after those already there."""
        array = np.asarray(values if isinstance(values, np.ndarray) else list(values), self._dtype)
        self._file.write(array.tobytes())
        self._length += len(array)

    def sync(self) -> None:
        """Wait until the disk has everything written so far."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Write the final header and wait until the disk has the file."""
        with self._file:
            self._file.seek(0)
            self._header()
            self.sync()

    def _header(self) -> None:
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
        """Write strings after those already there."""
        encoded = [value.encode() for value in values]
        ends = self.end + np.cumsum([len(value) for value in encoded], dtype=np.int64)
        self._blob.append(np.frombuffer(b"".join(encoded), np.uint8))
        self._starts.append(ends)
        self.end = int(ends[-1]) if len(ends) else self.end

    def sync(self) -> None:
        """Wait until the disk has everything written so far."""
        self._blob.sync()
        self._starts.sync()

    def close(self) -> None:
        """Finish both files, even if one fails."""
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
    """Return a column of numbers as a plain array over the mapped file."""
    # Taking a scalar from numpy's memmap class costs ten times as much as from a plain array.
    return np.load(path, mmap_mode="r", allow_pickle=False).view(np.ndarray)  # type: ignore[no-any-return]


def open_strings(folder: Path, name: str) -> Strings:
    """Return a column of strings over its mapped files."""
    blob = mapped(folder / file_of(name, ".text.npy")).view(np.uint8)
    return Strings(blob, mapped(folder / file_of(name, ".starts.npy")).view(np.int64))
