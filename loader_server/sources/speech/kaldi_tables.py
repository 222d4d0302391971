"""Tables of a Kaldi data folder: text files whose lines are a key and an entry, joined by key.

Rules: a table may be larger than memory, which holds a few words for each line; lines are read from the file when they
are needed. Tables need not be sorted. Of several lines with one key the first counts.
"""

from __future__ import annotations

import mmap
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import xxhash

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

__all__ = ["JoinedLine", "JoinedTables", "KaldiTable", "words_of"]


class KaldiTable:
    """One table, mapped into memory, with its lines by number (from 0) and by key; close it after use.

    `keys` are the hashes of the keys, in the order of lines.
    """

    def __init__(self, path: Path) -> None:
        # Hash and beginning of each line, 8 bytes each, instead of a Python string. Keys are compared by hash alone.
        hashes, begins = array("Q"), array("Q", [0])
        with path.open("rb") as file:
            for line in file:
                hashes.append(_hash(line, 0))
                begins.append(begins[-1] + len(line))
            # mmap refuses an empty file.
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if begins[-1] else None
        self._begins = begins
        self.keys = np.array(hashes, np.uint64)
        # Stable, and searchsorted finds the leftmost place: of several lines with one key the first is found.
        self._order = np.argsort(self.keys, kind="stable")
        self._sorted = self.keys[self._order]

    def __len__(self) -> int:
        return len(self.keys)

    def line(self, number: int) -> bytes:
        """Return the bytes of a line, by its number."""
        assert self._bytes is not None, "a table without bytes has no lines"
        return self._bytes[self._begins[number] : self._begins[number + 1]]

    def words(self, place: int) -> NDArray[np.uint64]:
        """Return the hash of each line's word at `place`, for `find` of another table."""
        hashes = (_hash(self.line(number), place) for number in range(len(self)))
        return np.array(array("Q", hashes), np.uint64) if place else self.keys

    def find(self, words: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return for each hash the first line with that key; -1 if there is none."""
        if not len(self):
            return np.full(len(words), -1)
        # A hash above all keys is placed after the last one: compare it with the last, from which it differs.
        places = np.minimum(np.searchsorted(self._sorted, words), len(self) - 1)
        return np.where(self._sorted[places] == words, self._order[places], -1)

    def close(self) -> None:
        """Close the file."""
        if self._bytes is not None:
            self._bytes.close()


@dataclass(frozen=True, slots=True)
class JoinedLine:
    """A line of the first table with the lines of other tables that belong to it, by table.

    `again` is the number of an earlier line with the same key, or -1.
    """

    number: int
    line: bytes
    others: Mapping[str, bytes]
    again: int


class JoinedTables:
    """A first table, whose lines are rows, and others that are joined to it.

    `others` says for each of the other tables which word of a row is its key there. `path_of` returns a table's path on
    this machine. Close it after use.
    """

    def __init__(self, path_of: Callable[[str], Path], first: str, others: Mapping[str, int]) -> None:
        self.first = KaldiTable(path_of(first))
        self.others = {name: KaldiTable(path_of(name)) for name in others}
        self._found = {name: self.others[name].find(self.first.words(place)) for name, place in others.items()}
        self._firsts = self.first.find(self.first.keys)

    def lines(self) -> Iterator[JoinedLine]:
        """Yield all rows in order."""
        for number in range(len(self.first)):
            found = {name: int(lines[number]) for name, lines in self._found.items()}
            others = {name: self.others[name].line(place) for name, place in found.items() if place >= 0}
            first = int(self._firsts[number])
            yield JoinedLine(number, self.first.line(number), others, first if first != number else -1)

    def unused(self, name: str) -> list[int]:
        """Return the lines of another table that belong to no row."""
        unused: list[int] = np.setdiff1d(np.arange(len(self.others[name])), self._found[name]).tolist()
        return unused

    def close(self) -> None:
        """Close the files."""
        for table in (self.first, *self.others.values()):
            table.close()


def words_of(line: bytes, most: int = 2) -> list[str]:
    """Return at most `most` words of a line, the last of them with the rest of the line.

    Raise a UnicodeDecodeError if the line is not UTF-8.
    """
    return line.decode().strip().split(None, most - 1)


def _hash(line: bytes, place: int) -> int:
    """Return the hash of a line's word at `place`; a missing word counts as empty."""
    words = line.split(None, place + 1)
    return xxhash.xxh3_64_intdigest(words[place] if place < len(words) else b"")
