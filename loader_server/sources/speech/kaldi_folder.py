"""One Kaldi data folder while it is indexed: its tables, and its rows in order.

Rules: each line of the table that names audio or features is a row, and so is, as a bad one, each line of `text` that
no row uses. Must not know what is in the files that the tables name.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from loader_server.sources.remote.urls import is_url
from loader_server.sources.source import BadRow
from loader_server.sources.speech.kaldi_entries import FEATURES, RECORDINGS, SEGMENTS, SPEAKERS, TEXT
from loader_server.sources.speech.kaldi_tables import JoinedTables
from shared.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from loader_server.sources.files.opening import Files
    from loader_server.sources.speech.kaldi_tables import JoinedLine

__all__ = ["KaldiFolder"]


class KaldiFolder:
    """One folder, by its path or URL in the job file.

    `tables` are the tables that it has, first the one whose lines are rows. `join` opens them, `close` closes them.
    Raise a DataError if the table of audio or features is missing.
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
        self._joined: JoinedTables | None = None

    def _table(self, name: str) -> str:
        """Return the path or URL of a table."""
        return f"{self.path}/{name}"

    def join(self) -> int:
        """Open the tables, match their lines by key, and return how many rows there are."""
        first, *others = self.tables
        # Which word of a row is the key in each other table: a segment's second word, its recording, for wav.scp; the
        # first word, the utterance, for all others.
        words = {name: int(first == SEGMENTS and name == RECORDINGS) for name in others}
        self._joined = JoinedTables(lambda name: self._files.keep_local(self._table(name)), first, words)
        return len(self._joined.first) + len(self._unused(self._joined))

    def named_files(self) -> Iterator[str]:
        """Yield the files that the table of audio or features names, for the stamp.

        Entries are given as written, commands too, without places in archives; a repeated neighbour is given once.
        """
        before = ""
        needed = FEATURES if FEATURES in self.tables else RECORDINGS
        with self._files.path(self._table(needed)).open(encoding="utf-8", errors="surrogateescape") as table:
            for line in table:
                name = re.sub(r"(:\d+)?(\[[^]]*\])?$", "", "".join(line.strip().split(None, 1)[1:]))
                if name != before:
                    yield name
                before = name

    def has_ranges(self) -> bool:
        """Return whether any features are a range of a matrix."""
        with self._files.open(self._table(FEATURES)) as table:
            return any(line.rstrip().endswith(b"]") for line in table)

    def rows(self) -> Iterator[JoinedLine | BadRow]:
        """Yield all rows in order, those of unused texts last; `join` comes first."""
        assert self._joined is not None, "the tables are joined first"
        yield from self._joined.lines()
        for number in self._unused(self._joined):
            yield self._only_text(self._joined, number)

    @staticmethod
    def _unused(joined: JoinedTables) -> list[int]:
        """Return the lines of `text` that no row uses."""
        return joined.unused(TEXT) if TEXT in joined.others else []

    def _only_text(self, joined: JoinedTables, number: int) -> BadRow:
        """Return the BadRow for a line of `text` that no row uses: a repeated key, or one without data."""
        table = joined.others[TEXT]
        key = b"".join(table.line(number).split(None, 1)[:1]).decode("utf-8", "replace")
        where = self._files.where(self._table(TEXT))
        if joined.first.find(table.keys[number : number + 1])[0] >= 0:
            return BadRow(where, number + 1, "duplicate", f'expected each key once, got "{key}" again')
        detail = f'expected "{key}" in {self.tables[0]} too, got none'
        return BadRow(where, number + 1, "only_text", detail)

    def close(self) -> None:
        """Close the tables, if they are open."""
        if self._joined is not None:
            self._joined.close()
            self._joined = None
