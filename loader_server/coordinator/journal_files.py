"""Whether the journal's files are still the ones that we write to: not unlinked, moved away, replaced or cut.

Whoever deletes or replaces a file that is open leaves its writer with a file that has no name, and every write to it
succeeds: nothing but looking tells. SQLite does not look. In its log (`-wal`) it goes on behind the last frame that it
knows of, so a log that was cut gets a hole there, and all behind the hole is lost when the journal is opened again. As
long as a journal is open, neither of its files ever becomes shorter by SQLite's own doing: its log is begun anew in
place, and the database is never vacuumed. A log that is cut while SQLite writes is soon as long as before, so its last
frame has to be the one that was there (`_LogEnd`).

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

#: A log is a header and frames, and a frame is a header and a page. Header and frames hold the salts of their log: it
#: is begun anew in place with other ones.
_LOG_HEADER, _FRAME_HEADER, _LARGEST_PAGE = 32, 24, 65536


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


class _LogEnd:
    """The last frame of SQLite's log: where it is, and what is in it.

    The log is opened to be read, unlike the database: SQLite holds no lock on it that closing it could drop.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.lose()

    def lose(self) -> None:
        """Forget where it ends until it is begun anew: a write that was given up may have left frames."""
        self._salts, self._at, self._frame = self._salts_now(), 0, b""

    def follow(self) -> bool:
        """Go on to the last frame, after a write; return whether it is a newer one that ends a transaction."""
        salts = self._salts_now()
        if salts != self._salts:
            self._salts, self._at, self._frame = salts, _LOG_HEADER, b""
        elif not self._at:
            return True
        frame, page = b"", int.from_bytes(os.pread(self._descriptor, 4, 8), "big")
        nbytes = _FRAME_HEADER + min(page, _LARGEST_PAGE)
        while len(next_one := os.pread(self._descriptor, nbytes, self._at)) == nbytes and next_one[8:16] == salts:
            frame, self._at = next_one, self._at + nbytes
        self._frame = frame or self._frame
        return any(frame[4:8])

    def is_whole(self) -> bool:
        """Return whether the last frame is still there, or the log was begun anew."""
        salts = self._salts_now()
        if salts != self._salts:
            return any(salts)
        return os.pread(self._descriptor, len(self._frame), self._at - len(self._frame)) == self._frame

    def _salts_now(self) -> bytes:
        return os.pread(self._descriptor, 8, 16)

    def close(self) -> None:
        os.close(self._descriptor)


class JournalFiles:
    """The files of a journal that this process has open."""

    def __init__(self, journal: Path) -> None:
        self._paths = [journal.with_name(journal.name + suffix) for suffix in _SUFFIXES]
        self._files: dict[Path, _WatchedFile] = {}
        self._log_end: _LogEnd | None = None
        #: A file that was cut may be filled up again, but not with what was in it.
        self._cut = ""

    def note(self, *, wrote: bool = False) -> None:
        """Note the files that are there by now, and where they end: SQLite has just been at them, and maybe wrote."""
        for path in self._paths:
            if path not in self._files and path.exists():
                self._files[path] = _WatchedFile(path, os.open(path, os.O_PATH | os.O_CLOEXEC), 0)
        for file in self._files.values():
            file.size = max(file.size, os.fstat(file.descriptor).st_size)
        if self._log_end is None and self._log.exists():
            self._log_end = _LogEnd(self._log)
        elif self._log_end and wrote and not (self._log_end.is_whole() and self._log_end.follow()):
            self._note_cut()

    def note_given_up(self) -> None:
        """Note that SQLite gave up a write."""
        if self._log_end:
            self._log_end.lose()

    def problem(self) -> str:
        """Return what has become of the files; empty if they are as SQLite left them."""
        if not self._cut:
            problem = next(filter(None, (file.problem() for file in self._files.values())), "")
            if problem and "shortened" not in problem:
                return problem
            self._cut = problem
            if self._log_end and not self._log_end.is_whole():
                self._note_cut()
        return self._cut

    def _note_cut(self) -> None:
        self._cut = self._cut or f"{self._log.name} was shortened while it was written"

    @property
    def _log(self) -> Path:
        return self._paths[-1]

    def close(self) -> None:
        """Watch them no longer."""
        for file in self._files.values():
            os.close(file.descriptor)
        self._files.clear()
        if self._log_end:
            self._log_end.close()
            self._log_end = None
