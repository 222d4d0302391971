"""One Kaldi data folder while it is indexed: its tables, joined by key, and its rows in order.

Tables are text files whose lines are a key and an entry. Each line of the table that names audio or features is a row,
and so is, as a bad one, each line of `text` that no row uses.

Rules: a table may be larger than memory, which holds a few words for each line; lines are read from the file when they
are needed. Tables need not be sorted. Of several lines with one key the first counts. Must not know what is in the
files that the tables name.
"""

from __future__ import annotations

import mmap
import os
import re
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from loader_server.sources.remote.urls import is_url
from loader_server.sources.source import BadRow
from shared.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from loader_server.sources.files.opening import Files

__all__ = [
    "FEATURES",
    "RECORDINGS",
    "SEGMENTS",
    "SPEAKERS",
    "TABLES",
    "TEXT",
    "JoinedLine",
    "KaldiFolder",
    "KaldiTable",
    "words_of",
]

#: File names of a folder's tables.
TABLES = RECORDINGS, SEGMENTS, FEATURES, TEXT, SPEAKERS = "wav.scp", "segments", "feats.scp", "text", "utt2spk"


#: The end of an entry that names a byte of an archive.
_ENDS_IN_PLACE = re.compile(rb":\d+\s*$")


class KaldiFolder:
    """One folder, by its path or URL in the job file.

    `tables` are the tables that it has, first the one whose lines are rows. `join` opens them, `close` closes them.
    Raise a DataError if the table of audio or features is missing. Raise a ReadError if a store cannot be asked which
    tables there are.
    """

    def __init__(self, files: Files, path: str, *, features: bool) -> None:
        self.path = path.rstrip("/")
        self._files = files
        needed = FEATURES if features else RECORDINGS
        wanted = (FEATURES, TEXT, SPEAKERS) if features else (SEGMENTS, RECORDINGS, TEXT, SPEAKERS)
        self.tables = tuple(name for name in wanted if files.has(self._table(name)))
        if needed not in self.tables:
            raise DataError(
                expected=f"a Kaldi data folder with the table {needed}",
                got="one without" if is_url(path) or os.path.isdir(files.where(path)) else "no such folder",
                where=files.where(path),
                remedy='Mend `paths` of the stream, or set values = "audio" or "features" to what is there.',
            )
        #: The open tables by name, between `join` and `close`.
        self._open: dict[str, KaldiTable] = {}
        #: For each table but the first, the line that belongs to each row; -1 if there is none.
        self._lines_of: dict[str, NDArray[np.int64]] = {}

    def _table(self, name: str) -> str:
        """Return the path or URL of a table."""
        return f"{self.path}/{name}"

    def join(self) -> int:
        """Open the tables, match their lines by key, and return how many rows there are.

        Raise a ReadError if a remote table cannot be fetched, a DataError if it is gone, or an OSError if a local table
        cannot be opened. SettingsError and MachineError of `keep_local` pass through.
        """
        self._open = {name: KaldiTable(self._files.keep_local(self._table(name))) for name in self.tables}
        first = self._open[self.tables[0]]
        for name in self.tables[1:]:
            # Which word of a row is the key in the other table: a segment's second word, its recording, for wav.scp;
            # the first word, the utterance, for all others.
            place = int(self.tables[0] == SEGMENTS and name == RECORDINGS)
            self._lines_of[name] = self._open[name].find(first.words(place))
        return len(first) + len(self._unused_texts())

    def named_files(self) -> Iterator[str]:
        """Yield the files that the table of audio or features names, for the stamp.

        Entries are given as written, commands too, without places in archives; a repeated neighbour is given once.
        Raise a DataError if something other than a file is in the table's place, an OSError if it cannot be opened or
        read, or a ReadError if a remote one cannot be fetched. SettingsError of `path` passes through.
        """
        before = ""
        needed = FEATURES if FEATURES in self.tables else RECORDINGS
        # A line that is not UTF-8 is a bad row when it is indexed, and nothing that may end a stamp.
        with self._files.path(self._table(needed)).open(encoding="utf-8", errors="surrogateescape") as table:
            for line in table:
                name = re.sub(r"(:\d+)?(\[[^]]*\])?$", "", "".join(line.strip().split(None, 1)[1:]))
                if name != before:
                    yield name
                before = name

    def has_ranges(self) -> bool:
        """Return whether any features are a range of a matrix; raise a DataError if feats.scp cannot be opened.

        Raise a ReadError if a remote one cannot be fetched, and an OSError if a local one cannot be read. SettingsError
        of `open` passes through.
        """
        with self._files.open(self._table(FEATURES)) as table:
            return any(line.rstrip().endswith(b"]") for line in table)

    def has_places(self) -> bool:
        """Return whether any recordings lie in archives; raise a DataError if wav.scp cannot be opened.

        Raise a ReadError if a remote one cannot be fetched, and an OSError if a local one cannot be read. SettingsError
        of `open` passes through.
        """
        with self._files.open(self._table(RECORDINGS)) as table:
            return any(_ENDS_IN_PLACE.search(line) for line in table)

    def rows(self) -> Iterator[JoinedLine | BadRow]:
        """Yield all rows in order, those of unused texts last; `join` comes first."""
        table = self._open[self.tables[0]]
        firsts = table.find(table.keys)
        for number in range(len(table)):
            places = {name: int(lines[number]) for name, lines in self._lines_of.items()}
            others = {name: self._open[name].line(place) for name, place in places.items() if place >= 0}
            first = int(firsts[number])
            yield JoinedLine(number, table.line(number), others, first if first != number else -1)
        for number in self._unused_texts():
            yield self._only_text(number)

    def _unused_texts(self) -> list[int]:
        """Return the lines of `text` that belong to no row; none if the folder has no `text`."""
        if TEXT not in self._lines_of:
            return []
        unused: list[int] = np.setdiff1d(np.arange(len(self._open[TEXT])), self._lines_of[TEXT]).tolist()
        return unused

    def _only_text(self, number: int) -> BadRow:
        """Return the BadRow for a line of `text` that no row uses: a repeated key, or one without data."""
        table, where = self._open[TEXT], self._files.where(self._table(TEXT))
        key = b"".join(table.line(number).split(None, 1)[:1]).decode("utf-8", "replace")
        if self._open[self.tables[0]].find(table.keys[number : number + 1])[0] >= 0:
            return BadRow(where, number + 1, "duplicate", f'expected each key once, got "{key}" again')
        return BadRow(where, number + 1, "only_text", f'expected "{key}" in {self.tables[0]} too, got none')

    def close(self) -> None:
        """Close the tables, if they are open; `join` opens them again."""
        for table in self._open.values():
            table.close()
        self._open.clear()


# --- tables ---


class KaldiTable:
    """One table, mapped into memory, with its lines by number (from 0) and by key; close it after use.

    `keys` are the hashes of the keys, in the order of lines. Raise an OSError if the file cannot be opened or read.
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
        """Return the bytes of the line with this number, from 0; the table must have a line, or nothing was mapped."""
        assert self._bytes is not None, "a table without bytes has no lines"
        return self._bytes[self._begins[number] : self._begins[number + 1]]

    def words(self, place: int) -> NDArray[np.uint64]:
        """Return the hash of each line's word at `place`, for `find` of another table.

        A missing word counts as empty.
        """
        hashes = (_hash(self.line(number), place) for number in range(len(self)))
        return np.array(array("Q", hashes), np.uint64) if place else self.keys

    def find(self, words: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return for each hash the number of the first line with that key, from 0; -1 if there is none."""
        if not len(self):
            return np.full(len(words), -1)
        # A hash above all keys is placed after the last one: compare it with the last, from which it differs.
        places = np.minimum(np.searchsorted(self._sorted, words), len(self) - 1)
        return np.where(self._sorted[places] == words, self._order[places], -1)

    def close(self) -> None:
        """Close the file; its lines can no longer be read."""
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


def words_of(line: bytes) -> list[str]:
    """Return the first word of a line and the rest of the line, as far as it has them.

    Raise a UnicodeDecodeError if the line is not UTF-8.
    """
    return line.decode().strip().split(None, 1)


def _hash(line: bytes, place: int) -> int:
    """Return the hash of a line's word at `place`; a missing word counts as empty."""
    words = line.split(None, place + 1)
    return xxhash.xxh3_64_intdigest(words[place] if place < len(words) else b"")
