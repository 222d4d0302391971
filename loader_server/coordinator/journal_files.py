"""Whether the journal's files are still the ones that we write to: not unlinked, moved away, replaced or cut.

Whoever deletes or replaces a file that is open leaves its writer with a file that has no name, and every write to it
succeeds: nothing but looking tells. SQLite does not look. In its log (`-wal`) it goes on behind the last frame that it
knows of, so a log that was cut gets a hole there, and all behind the hole is lost when the journal is opened again. As
long as a journal is open, neither of its files ever becomes shorter by SQLite's own doing: its log is begun anew in
place, and the database is never vacuumed.

There is no file of shared memory (`-shm`), because nobody else may use the journal.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["JournalFiles"]

_SUFFIXES = ("", "-wal")


@dataclass(slots=True)
class _WatchedFile:
    """A file as we have it open, by a descriptor that gives access to nothing but its status.

    Closing such a descriptor drops none of the locks that SQLite holds on the file, as closing any other would.
    """

    path: Path
    descriptor: int
    size: int

    def problem(self) -> str:
        """Return what has become of it; empty if it is still there, and whole."""
        held = os.fstat(self.descriptor)
        try:
            named = self.path.stat()
        except FileNotFoundError:
            return f"{self.path.name} was {'moved away' if held.st_nlink else 'unlinked'}"
        except OSError as error:
            return f"{self.path.name} cannot be looked at: {error.strerror}"
        if (named.st_dev, named.st_ino) != (held.st_dev, held.st_ino):
            return f"{self.path.name} was replaced by another file"
        if held.st_size < self.size:
            return f"{self.path.name} was shortened from {self.size} to {held.st_size} bytes"
        return ""


class JournalFiles:
    """The files of a journal that this process has open."""

    def __init__(self, journal: Path) -> None:
        self._paths = [journal.with_name(journal.name + suffix) for suffix in _SUFFIXES]
        self._files: dict[Path, _WatchedFile] = {}
        #: A file that was cut may be filled up again, but not with what was in it.
        self._cut = ""

    def note(self) -> None:
        """Note the files that are there by now, and how long they are: SQLite has just written."""
        for path in self._paths:
            if path not in self._files and path.exists():
                self._files[path] = _WatchedFile(path, os.open(path, os.O_PATH | os.O_CLOEXEC), 0)
        for file in self._files.values():
            file.size = max(file.size, os.fstat(file.descriptor).st_size)

    def problem(self) -> str:
        """Return what has become of the files; empty if they are as SQLite left them."""
        if not self._cut:
            problem = next(filter(None, (file.problem() for file in self._files.values())), "")
            if "shortened" not in problem:
                return problem
            self._cut = problem
        return self._cut

    def close(self) -> None:
        """Watch them no longer."""
        for file in self._files.values():
            os.close(file.descriptor)
        self._files.clear()
