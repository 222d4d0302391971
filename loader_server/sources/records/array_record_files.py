"""ArrayRecord files, read with the array_record library.

Rules: a file is opened when it is first read, and few files are open at a time. A reader has a position in its file, so
one thread at a time uses it. Seeking to a record and reading it takes a fifth to two fifths of the time of the
library's call for a list of numbers (5 µs instead of 25 for an uncompressed record of 4 kB, 15 instead of 38 for a
compressed one), because that call hands each record to threads. The library is imported only here; if it is missing,
the error names the extra to install.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from shared.errors import DataError, ReadError
from shared.extras import library

if TYPE_CHECKING:
    from loader_server.sources.files.facts import LocalFile
    from loader_server.sources.files.opening import Files

__all__ = ["ArrayRecordFiles"]

#: Options of the library for random access: no read-ahead buffer and no decoding threads.
_RANDOM_ACCESS = "readahead_buffer_size:0,max_parallelism:0"
#: Local files that are open at a time.
_MOST_OPEN = 64
#: Remote files that are open at a time: fewer, because the disk cache cannot evict a file that is open.
_MOST_REMOTE = 8


class _OpenArrayRecords:
    """One open file: a reader of the library, and the lock that guards its position."""

    def __init__(self, local: LocalFile, where: str) -> None:
        self._local, self._where = local, where
        self._lock = threading.Lock()
        self._reader = self._open()
        #: Number of records in the file.
        self.count = int(self._reader.num_records())

    def _open(self) -> Any:
        """Return a reader of the library; raise a DataError if the file is not a whole ArrayRecord file."""
        with self._local.path.open("rb"):  # raises an OSError with the cause, which the library does not report
            reader = _module().ArrayRecordReader(str(self._local.path), _RANDOM_ACCESS)
        if reader.ok():
            return reader
        raise DataError(
            expected="a whole ArrayRecord file",
            got="one without its end, or of another kind",
            where=self._where,
            remedy="Its table of records is at its end: write or copy the file again.",
        )

    def read(self, number: int) -> bytes:
        """Return one record; raise a ReadError if the library reports it as damaged."""
        with self._lock:  # between seek and read, another thread's seek would move the position
            try:
                self._reader.seek(number)
                return self._reader.read()  # type: ignore[no-any-return]
            except RuntimeError as error:
                said = str(error)
                self._reader = self._open()  # a reader that has failed keeps failing
        raise ReadError(
            expected="a record that fits its checksum",
            got=said,
            where=f"{self._where}, record {number}",
            remedy="Write or copy the file again, then run loader-server index.",
        )

    def close(self) -> None:
        self._local.close()


class ArrayRecordFiles:
    """Open ArrayRecord files by path, from which any thread may read."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._known: dict[str, _OpenArrayRecords] = {}

    def count(self, path: str) -> int:
        """Return how many records a file has; raise a DataError if it is not a whole ArrayRecord file."""
        return self._get(path).count

    def read(self, path: str, number: int) -> bytes:
        """Return one record; raise a ReadError if the library reports it as damaged."""
        return self._get(path).read(number)

    def _get(self, path: str) -> _OpenArrayRecords:
        return self._known.get(path) or self._open(path)

    def _open(self, path: str) -> _OpenArrayRecords:
        """Open a file, after closing all others if too many are open."""
        if len(self._known) >= (_MOST_REMOTE if self._files.are_remote else _MOST_OPEN):
            self.close()  # a thread that is reading keeps the reader that it holds
        made = _OpenArrayRecords(self._files.local(path), self._files.where(path))
        known = self._known.setdefault(path, made)
        if known is not made:
            made.close()  # another thread opened the same file meanwhile, and its reader is in use
        return known

    def close(self) -> None:
        """Drop all open files; each is closed when its last reader is done with it."""
        known, self._known = self._known, {}
        for one in known.values():
            one.close()


def _module() -> Any:
    name, where = "array_record.python.array_record_module", 'source = "array_record"'
    return library(name, extra="array_record", use="which reads ArrayRecord files", where=where)
