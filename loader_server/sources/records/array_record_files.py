"""ArrayRecord files, read by the library of the format.

Rules: a file opens when it is first read, and few are open at a time; a reader has a place in its file, so one thread
at a time uses it. Seeking to a record and reading it takes a fifth of the time of asking the library for a list of
numbers (5 µs and 25 for 4 kB that are not compressed, 15 and 38 if they are), because that hands each to threads. The
library is imported only here; if it is missing, the error names the extra to install.
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

#: For random access: nothing is read or decoded ahead.
_RANDOM_ACCESS = "readahead_buffer_size:0,max_parallelism:0"
_MOST_OPEN = 64
#: Files that are open at a time; remote ones cannot leave the cache meanwhile.
_MOST_REMOTE = 8


class _OpenArrayRecords:
    """One open file."""

    def __init__(self, local: LocalFile, where: str) -> None:
        self._local, self._where = local, where
        self._lock = threading.Lock()
        self._reader = self._open()
        self.count = int(self._reader.num_records())

    def _open(self) -> Any:
        with self._local.path.open("rb"):  # the library does not say why it cannot open a file
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
        with self._lock:
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
    """The records of files by their path."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._known: dict[str, _OpenArrayRecords] = {}

    def count(self, path: str) -> int:
        """How many records a file has."""
        return self._get(path).count

    def read(self, path: str, number: int) -> bytes:
        """One record; a ReadError if the library says that it is not whole."""
        return self._get(path).read(number)

    def _get(self, path: str) -> _OpenArrayRecords:
        return self._known.get(path) or self._open(path)

    def _open(self, path: str) -> _OpenArrayRecords:
        if len(self._known) >= (_MOST_REMOTE if self._files.are_remote else _MOST_OPEN):
            self.close()
        made = _OpenArrayRecords(self._files.local(path), self._files.where(path))
        known = self._known.setdefault(path, made)
        if known is not made:
            made.close()  # another thread was first
        return known

    def close(self) -> None:
        """Forget all files; each is closed once nobody reads it any more."""
        known, self._known = self._known, {}
        for one in known.values():
            one.close()


def _module() -> Any:
    name, where = "array_record.python.array_record_module", 'source = "array_record"'
    return library(name, extra="array_record", use="which reads ArrayRecord files", where=where)
