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
    from collections.abc import Iterable

    from loader_server.sources.files.file_facts import LocalFile
    from loader_server.sources.files.opening import Files

__all__ = ["ArrayRecordFiles"]

_LIBRARY, _WHERE = "array_record.python.array_record_module", 'source = "array_record"'
#: Options of the library for random access: no read-ahead buffer and no decoding threads.
_RANDOM_ACCESS = "readahead_buffer_size:0,max_parallelism:0"
#: Local files that are open at a time.
_MOST_OPEN = 64
#: Remote files that are open at a time: fewer, because the disk cache cannot evict a file that is open.
_MOST_REMOTE = 8


class _OpenArrayRecords:
    """One open file: a reader of the library, and the lock of its position. Making it raises what `_open` raises."""

    def __init__(self, local: LocalFile, where: str) -> None:
        self._local, self._where = local, where
        self._lock = threading.Lock()
        self._reader = self._open()
        #: Number of records in the file.
        self.count = int(self._reader.num_records())

    def _open(self) -> Any:
        """Return a reader of the library; raise a DataError if the file is not a whole ArrayRecord file.

        Raise an OSError if it cannot be opened, and a SettingsError if the library is missing.
        """
        # Opened here first, because an OSError has the cause, which the library does not report.
        with self._local.path.open("rb"):
            module = library(_LIBRARY, extra="array_record", use="which reads ArrayRecord files", where=_WHERE)
            reader = module.ArrayRecordReader(str(self._local.path), _RANDOM_ACCESS)
        if reader.ok():
            return reader
        raise DataError(
            expected="a whole ArrayRecord file",
            got="one without its end, or of another kind",
            where=self._where,
            remedy="Its table of records is at its end: write or copy the file again.",
        )

    def read(self, number: int) -> bytes:
        """Return the record of this number; raise a ReadError if the library reports it as damaged.

        After that the file is opened again: raise a DataError if it is no longer whole, or an OSError if it is gone.
        SettingsError of `_open` passes through.
        """
        # Between seek and read, another thread's seek would move the position.
        with self._lock:
            try:
                self._reader.seek(number)
                return self._reader.read()  # type: ignore[no-any-return]
            except RuntimeError as error:
                # A reader that has failed keeps failing, so one damaged record would lose the whole file.
                self._reader = self._open()
                raise ReadError(
                    expected="a record that fits its checksum",
                    got=str(error),
                    where=f"{self._where}, record {number}",
                    remedy="Write or copy the file again, then run loader-server index.",
                ) from None

    def close(self) -> None:
        """Let the disk cache evict the file; its reader stays usable until its last user drops it."""
        self._local.close()


class ArrayRecordFiles:
    """Open ArrayRecord files by path, from which any thread may read."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._known: dict[str, _OpenArrayRecords] = {}

    def __getitem__(self, path: str) -> _OpenArrayRecords:
        """Return the file's reader, after opening it if needed, and after closing all others if too many are open.

        Raise a DataError if it is not a whole ArrayRecord file or a remote one is gone, a ReadError if that cannot be
        fetched, an OSError if a local one cannot be opened, and a SettingsError if the library is missing. Other errors
        of `Files.local`, such as a MachineError, pass through.
        """
        known = self._known.get(path)
        if known is not None:
            return known
        if len(self._known) >= (_MOST_REMOTE if self._files.are_remote else _MOST_OPEN):
            self.close()  # a thread that is reading keeps the reader that it holds
        opened = _OpenArrayRecords(self._files.local(path), self._files.where(path))
        # Opening, which fetches a remote file, is under no lock: another thread may have opened the same file
        # meanwhile, and its reader is in use.
        known = self._known.setdefault(path, opened)
        if known is not opened:
            opened.close()
        return known

    def expect(self, paths: Iterable[str]) -> None:
        """Start fetching those of these files that are remote.

        Raise a DataError if a file is gone when it is first looked at, a ReadError if its store cannot be asked, and a
        SettingsError if the store's library is missing.
        """
        self._files.expect_local(paths)

    def close(self) -> None:
        """Drop all open files; each is closed when its last reader is done with it, and opens again when next read."""
        known, self._known = self._known, {}
        for opened in known.values():
            opened.close()
