"""Files of which each sample has one of its own: read whole, and compared with what was indexed.

Rules: a file that is no longer the indexed one is a ReadError: its size is compared, and its content unless this
machine has seen its status with that content. Both are checked after reading, because a write changes the status before
the bytes. The time of change is not compared, because a copy has another.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from loader_server.sources.files.file_facts import OTHER_FILE_REMEDY, FileFacts
from loader_server.sources.files.local import bytes_at
from loader_server.sources.files.presence import IndexedFiles, look_at_some
from loader_server.sources.files.same_files import digest_of, digest_of_handle, digest_of_number, has_content
from loader_server.sources.remote.urls import is_url
from shared.errors import ReadError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from loader_server.sources.files.opening import Files

__all__ = ["SampleFiles"]

_OTHER_CONTENT = "one of the same size with other bytes, changed since"


class SampleFiles:
    """The files of an index's samples.

    `columns` are the index's "bytes", "mtime_ns" and "content" of each file. `path_of` returns a sample's path or URL,
    and `where` how messages name the sample.
    """

    def __init__(
        self,
        columns: Mapping[str, NDArray[np.int64]],
        path_of: Callable[[int], str],
        where: Callable[[int], str],
        files: Files,
    ) -> None:
        self._files = files
        self._columns = columns
        #: Path or URL of a sample's file.
        self._path_of = path_of
        #: How messages name the line that lists a sample.
        self._where = where

    def expect(self, samples: Sequence[int]) -> None:
        """Start fetching the files of these samples that are remote; fetches that fail are dropped.

        What `path_of` raises passes through.
        """
        self._files.expect_files((self._path_of(sample), self._facts(sample)) for sample in samples)

    def _facts(self, sample: int) -> FileFacts:
        """Return the size and version of the sample's file as indexed."""
        return FileFacts(bytes=int(self._columns["bytes"][sample]), version=int(self._columns["mtime_ns"][sample]))

    def read_whole(self, sample: int) -> bytes:
        """Return all bytes of the sample's file.

        Raise a ReadError if the file is no longer the indexed one or a remote one cannot be fetched, and an OSError if
        it cannot be opened or read. SettingsError and MachineError of `Files.whole` pass through.
        """
        if is_url(path := self._path_of(sample)):
            return self._files.whole(path, self._facts(sample))
        nbytes = int(self._columns["bytes"][sample])
        # A bare descriptor: a Python file makes twice as many system calls, which is 3 µs of 12.
        handle = os.open(path, os.O_RDONLY)
        try:
            raw = bytes_at(handle, 0, nbytes)
            if len(raw) != nbytes:
                raise self._changed(sample, f"one of {len(raw)} bytes, changed since")
            self._refuse_other_content(sample, handle, raw)
        finally:
            os.close(handle)
        return raw

    def indexed_files(self) -> IndexedFiles:
        """Return the file of each sample; remote ones have an empty path."""
        return IndexedFiles(len(self._columns["bytes"]), self._file_at)

    def _file_at(self, sample: int) -> tuple[str, int]:
        """Return path (empty if the file is remote) and size of the sample's file."""
        path = self._path_of(sample)
        return "" if is_url(path) else path, int(self._columns["bytes"][sample])

    def look_for_changes(self, time_s: float) -> None:
        """Raise a ReadError for a local file that is gone or changed since indexing.

        As many files are checked as `time_s` allows. Remote files are skipped: reading them asks for the indexed
        version.
        """
        look_at_some(len(self._columns["bytes"]), self._look_at, time_s)

    def _look_at(self, sample: int) -> None:
        """Raise a ReadError if a sample's local file is gone or has changed; remote ones are not looked at."""
        if is_url(path := self._path_of(sample)):
            return
        try:
            status = os.stat(path)  # takes a fifth of the time of Path.stat
            self._refuse_other(sample, status)
            if not has_content(path, status, self._digest(sample), self._files.seen):
                raise self._changed(sample, _OTHER_CONTENT)
        except OSError as error:
            raise self._changed(sample, error.strerror or str(error)) from None

    def _refuse_other(self, sample: int, status: os.stat_result) -> None:
        """Raise a ReadError if the size differs from the indexed one."""
        if status.st_size != self._columns["bytes"][sample]:
            raise self._changed(sample, f"one of {status.st_size} bytes, changed since")

    def _refuse_other_content(self, sample: int, handle: int, raw: bytes | None) -> None:
        """Raise a ReadError if an open file, which was just read, is not the indexed one.

        `raw` are all of its bytes if they were read; otherwise the digest is computed from the descriptor. Raise an
        OSError if the disk fails.
        """
        # A writer changes the status before the bytes. So if the status is taken after reading and is one that was seen
        # with the indexed content, the bytes that were read are the indexed ones.
        status, digest = os.fstat(handle), self._digest(sample)
        self._refuse_other(sample, status)
        if self._files.seen.has(status, digest):
            return
        if raw is None:
            read = digest_of_handle(handle, status, self._files.seen)
        else:
            read = digest_of(lambda start, stop: raw[start:stop], len(raw))
            self._files.seen.keep(status, read)
        if read != digest:
            raise self._changed(sample, _OTHER_CONTENT)

    def _digest(self, sample: int) -> str:
        """Return the digest of the sample's file as indexed."""
        return digest_of_number(int(self._columns["content"][sample]))

    def _changed(self, sample: int, got: str) -> ReadError:
        """Return the ReadError for a file that is not the indexed one."""
        return ReadError(
            expected=f"the file that was indexed ({self._columns['bytes'][sample]} bytes)",
            got=got,
            where=self._named(sample),
            remedy=OTHER_FILE_REMEDY,
        )

    def _named(self, sample: int) -> str:
        """Return how messages name the sample: its file, and where the data set lists it."""
        return f"{self._path_of(sample)} ({self._where(sample)})"

    def identity(self, sample: int) -> str:
        """Return what tells the file's bytes from others, without the path: its size, time of change and digest."""
        columns = self._columns
        changed = f"{columns['bytes'][sample]} bytes, changed at {columns['mtime_ns'][sample]} ns"
        return f"{changed}, digest {self._digest(sample)}"
