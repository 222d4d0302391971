"""Checks that the journal's files are still the ones that we write to: not unlinked, moved, replaced or cut.

If an open file is deleted or replaced, its writer goes on with a file that has no name, and every write succeeds: only
a look at the path tells. SQLite does not look. It appends to its log (`-wal`) behind the last frame it knows of, so a
log that was cut gets a hole there, and everything behind the hole is lost when the journal is opened again. While a
journal is open, SQLite never makes either file shorter: its log is restarted in place, and the database is never
vacuumed. A log that is cut while SQLite writes soon has its old length again, so the length alone does not tell; its
last frame has to be the one that was there (`_LogEnd`).

There is no shared-memory file (`-shm`), because nobody else may use the journal.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["JournalFiles"]

_SUFFIXES = ("", "-wal")

#: Layout of the log: a header, then frames of a header and a page. The log's header and each frame hold its salts,
#: which change when the log is restarted in place.
_LOG_HEADER, _FRAME_HEADER, _LARGEST_PAGE = 32, 24, 65536


@dataclass(slots=True)
class _WatchedFile:
    """A file, held by a descriptor that gives access only to its status (O_PATH).

    Closing an ordinary descriptor would drop the POSIX locks that SQLite holds on the file; closing this one does not.
    """

    path: Path
    descriptor: int
    size: int

    def problem(self) -> str:
        """Return what has happened to the file; empty if it is in its place and not shorter than it was.

        It may have been moved, unlinked, replaced or shortened, or its path cannot be looked at.
        """
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
    """The last frame of SQLite's log: its position and content.

    Unlike the database, the log can be opened for reading: SQLite holds no lock on it that closing it could drop.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.lose()

    def lose(self) -> None:
        """Forget where the log ends until it is restarted: an abandoned write may have left frames behind it."""
        self._salts, self._at, self._frame = self._salts_now(), 0, b""

    def follow(self) -> bool:
        """Advance to the last frame after a write; return whether the last new frame ends a transaction.

        Return False if there is no new frame. While the end is unknown (see `lose`) nothing is checked and the answer
        is true.
        """
        salts = self._salts_now()
        if salts != self._salts:
            self._salts, self._at, self._frame = salts, _LOG_HEADER, b""
        elif not self._at:
            return True
        # SQLite's layout: the log's header has the page size at byte 8 and its salts at 16. A frame's header has the
        # size of the database at byte 4, zero unless the frame ends a transaction, and the salts at 8. A frame with
        # other salts is left from before the log was restarted, so the log ends in front of it.
        frame, page = b"", int.from_bytes(os.pread(self._descriptor, 4, 8), "big")
        nbytes = _FRAME_HEADER + min(page, _LARGEST_PAGE)
        while len(following := os.pread(self._descriptor, nbytes, self._at)) == nbytes and following[8:16] == salts:
            frame, self._at = following, self._at + nbytes
        self._frame = frame or self._frame
        return any(frame[4:8])

    def is_whole(self) -> bool:
        """Return whether the last frame is unchanged, or the log was restarted in place.

        Return False if the log had a header and has none any more. While the end is unknown (see `lose`) no frame is
        checked.
        """
        salts = self._salts_now()
        # A log that was restarted has other salts; one that was cut to nothing has none.
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
        #: The first cut that was seen. It is remembered because a file may be filled up to its old length, but not with
        #: its old content.
        self._cut = ""

    def note(self, *, wrote: bool = False) -> None:
        """Record which files exist and where they end, right after SQLite opened them or (`wrote`) wrote to them.

        After a write also note a cut if the log's last frame has changed, or no whole transaction follows it. Raise an
        OSError if a file cannot be opened or read.
        """
        for path in self._paths:
            if path not in self._files and path.exists():
                self._files[path] = _WatchedFile(path, os.open(path, os.O_PATH | os.O_CLOEXEC), 0)
        # The longest that it ever was: while it is open SQLite makes no file shorter.
        for file in self._files.values():
            file.size = max(file.size, os.fstat(file.descriptor).st_size)
        if self._log_end is None and self._log.exists():
            self._log_end = _LogEnd(self._log)
        # The old last frame is checked before going on to the next ones: a log that was cut in the moment of the write
        # is as long as before, with other bytes or a hole where that frame was.
        elif self._log_end and wrote and not (self._log_end.is_whole() and self._log_end.follow()):
            self._note_cut()

    def note_given_up(self) -> None:
        """Record that SQLite abandoned a write: the log's end is unknown until a restart. OSError of reading passes."""
        if self._log_end:
            self._log_end.lose()

    def problem(self) -> str:
        """Return what has happened to the files; empty if they are as SQLite left them.

        A cut is reported from then on, any other problem only while it lasts. Raise an OSError if the log cannot be
        read.
        """
        # Files that were moved away may be moved back, and then nothing is lost; a cut cannot be undone.
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
        """Close the descriptors by which the files are watched; may be called again."""
        for file in self._files.values():
            os.close(file.descriptor)
        self._files.clear()
        if self._log_end:
            self._log_end.close()
            self._log_end = None
