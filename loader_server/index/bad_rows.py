"""The rows left out of an index, in a file beside its columns: one JSON object a line, in the order of the rows.

Rules: memory does not grow with their number; counts by reason are kept elsewhere. A row may hold bytes that are not
UTF-8, such as a file's name: they are escaped, and read back unchanged.
"""

from __future__ import annotations

import json
import os
from itertools import islice
from typing import TYPE_CHECKING

from loader_server.sources.source import BadRow

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

__all__ = ["BAD_ROWS", "BadRowsWriter", "first_bad_rows", "shown_bad_rows"]

#: The file's name.
BAD_ROWS = "bad_rows.jsonl"
#: Bad rows that an error shows.
_SHOWN = 10


class BadRowsWriter:
    """A file of bad rows that is appended to, after the first `size` bytes, left by an earlier writer."""

    def __init__(self, path: Path, size: int = 0) -> None:
        self._path = path
        self._file = path.open("r+b" if size else "wb")
        self._file.truncate(size)
        self.size = self._file.seek(size)

    def append(self, rows: Iterable[BadRow]) -> None:
        """Write rows after those already there."""
        for row in rows:
            facts = {"where": row.where, "line": row.line, "reason": row.reason, "detail": row.detail}
            facts |= {"remedy": row.remedy} if row.remedy else {}
            line = json.dumps(facts, ensure_ascii=False) + "\n"
            self.size += self._file.write(line.encode("utf-8", "backslashreplace"))

    def sync(self) -> None:
        """Wait until the disk has everything written so far."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Finish the file, and remove it if it has no row."""
        with self._file:
            self.sync()
        if not self.size:
            self._path.unlink(missing_ok=True)


def first_bad_rows(columns: Path, most: int) -> tuple[BadRow, ...]:
    """Return the first rows that an index left out, at most `most`, from its folder of columns."""
    try:
        with (columns / BAD_ROWS).open(encoding="utf-8") as file:
            return tuple(BadRow(**json.loads(line)) for line in islice(file, most))
    except FileNotFoundError:
        return ()


def shown_bad_rows(columns: Path) -> str:
    """Return the first bad rows for an error: each detail once, with its count, and the first row that has it."""
    return "; ".join(_once_each(first_bad_rows(columns, _SHOWN)))


def _once_each(rows: Iterable[BadRow]) -> Iterator[str]:
    """Yield each detail once, with the first row that has it and the number of further rows alike."""
    alike: dict[tuple[str, str], list[BadRow]] = {}
    for row in rows:
        alike.setdefault((row.reason, _without_place(row)), []).append(row)
    for first, *others in alike.values():
        more = f" (and {len(others)} more of the first {sum(map(len, alike.values()))})" if others else ""
        yield f"{first.where}, line {first.line}: {first.reason}: {first.detail}{more}" + _what_to_do(first)


def _what_to_do(row: BadRow) -> str:
    """Return a row's remedy in brackets, if it has one."""
    return f" ({row.remedy})" if row.remedy else ""


def _without_place(row: BadRow) -> str:
    """Return a row's detail without paths and numbers, so that rows with the same fault compare equal."""
    words = row.detail.split()
    return " ".join(word for word in words if "/" not in word and not any(letter.isdigit() for letter in word))
