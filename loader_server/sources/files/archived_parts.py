"""Archives: thousands of samples in one file, each read from its place.

Rules: only the sample's bytes are read. An archive that has changed since indexing is a ReadError: its size is
compared, and its content unless its status was seen with it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np

from loader_server.sources.files.opening import FileFacts, changed
from loader_server.sources.files.presence import IndexedFiles, look_at_some
from loader_server.sources.files.same_files import digest_of_number, has_content, noted_content, number_of_digest
from loader_server.sources.files.seen import is_settled, status_of
from loader_server.sources.remote.urls import is_url
from shared.errors import ReadError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from loader_server.sources.files.opening import Files

__all__ = ["ArchiveFacts", "ArchiveReads", "ArchivedParts"]

#: Archives whose place and status are remembered.
_MOST_KNOWN = 2**16


class ArchiveFacts:
    """Sizes and contents of archives, each looked at once while an index is made."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._known: dict[str, tuple[FileFacts, int]] = {}

    def of(self, path: str) -> tuple[FileFacts, int]:
        """Return an archive's size and version, and the number of its digest (0 if it is remote).

        Raise a DataError if it is missing, a ReadError if its store cannot be asked, or an OSError if a local one
        cannot be read. SettingsError of `facts` passes through.
        """
        return self._known.get(path) or self._known.setdefault(path, self._look_at(path))

    def _look_at(self, path: str) -> tuple[FileFacts, int]:
        facts = self._files.facts(path)
        if is_url(path):
            return facts, 0
        return facts, number_of_digest(noted_content(self._files.where(path), self._files.seen))


class ArchiveReads:
    """Parts of archives, and whole files, read in the versions that were indexed."""

    def __init__(self, files: Files) -> None:
        self._files = files
        #: Where each archive is on this machine.
        self._places: dict[str, str] = {}
        #: Status of each archive when it was last seen to have the indexed content: an archive holds thousands of
        #: samples, and its digest is not computed again for each of them.
        self._same: dict[tuple[str, int], tuple[int, ...]] = {}

    def read(self, path: str, known: FileFacts, content: int, place: tuple[int, int]) -> bytes:
        """Return a part of an archive, given where it begins and how many bytes it has.

        `known` and `content` are the archive's facts and digest as indexed. Raise a ReadError if it is no longer that
        one, or a remote one cannot be read; a DataError if a local one is gone; an OSError if the disk fails.
        SettingsError and MachineError of `part` pass through.
        """
        if is_url(path):
            return self._files.part(path, known, *place)  # refuses a changed archive itself
        try:
            raw = self._files.read(path, *place)
        except (OSError, ReadError):
            self.refuse_other(path, known, content)  # an archive that became shorter or is gone is the reason to give
            raise
        # After reading: a write changes the status before the bytes, so an unchanged status vouches for what was read.
        # Asking for it before as well would take a tenth of a worker's time.
        self.refuse_other(path, known, content)
        return raw

    def refuse_other(self, path: str, known: FileFacts, content: int) -> None:
        """Raise a ReadError if a local archive differs from the indexed one in size or content.

        The content is looked at only if its status has not been seen with it. Raise a DataError if the archive is gone,
        or an OSError if it cannot be read. SettingsError of `facts` passes through.
        """
        place = self._places.get(path) or self._places.setdefault(path, self._files.where(path))
        try:
            status = os.stat(place)  # takes a fifth of the time of Path.stat
        except OSError:
            self._files.facts(path)  # raises a DataError that says what is wrong
            raise
        if self._same.get((path, content)) == status_of(status):
            return
        expected = f"the archive that was indexed ({known.bytes} bytes)"
        if status.st_size != known.bytes:
            raise changed(expected, f"one of {status.st_size} bytes", place)
        if not has_content(place, status, digest_of_number(content), self._files.seen):
            raise changed(expected, "one of the same size with other bytes", place)
        # A recent status is not kept: another write within the same tick of the file system's clock would leave it
        # equal.
        if is_settled(status):
            if len(self._same) >= _MOST_KNOWN:  # files of one sample each: there may be millions
                self._same.clear()
                self._places.clear()
            self._same[path, content] = status_of(status)


class ArchivedParts:
    """The bytes of an index's samples, each a part of an archive.

    `numbers` has of each sample its archive's "bytes", "mtime_ns" and "content", and where it lies there: "offset" and
    "nbytes". `path_of` returns a sample's archive.
    """

    def __init__(self, files: Files, numbers: Mapping[str, NDArray[np.int64]], path_of: Callable[[int], str]) -> None:
        self._files = files
        self._numbers = numbers
        self._path_of = path_of
        self._reads = ArchiveReads(files)

    def read(self, sample: int) -> bytes:
        """Return all bytes of the sample.

        Raise a ReadError if its archive is no longer the indexed one, or a remote one cannot be read; a DataError if a
        local one is gone; an OSError if the disk fails. SettingsError and MachineError of `part` pass through.
        """
        content = int(self._numbers["content"][sample])
        return self._reads.read(self._path_of(sample), self._facts(sample), content, self._place(sample))

    def expect(self, samples: Sequence[int]) -> None:
        """Start fetching the samples that are remote; errors of `expect_parts` pass through."""
        self._files.expect_parts(
            (self._path_of(sample), self._facts(sample), *self._place(sample)) for sample in samples
        )

    def indexed_files(self) -> IndexedFiles:
        """Return the archives, each at least once; remote ones have an empty path."""
        firsts = self._firsts()

        def file_at(number: int) -> tuple[str, int]:
            path, facts = self._path_of(int(firsts[number])), self._facts(int(firsts[number]))
            return "" if is_url(path) else self._files.where(path), facts.bytes

        return IndexedFiles(len(firsts), file_at)

    def look_for_changes(self, time_s: float) -> None:
        """Raise a ReadError for a local archive that changed since indexing, or a DataError for one that is gone.

        Each is looked at once, and as many as fit into `time_s` seconds. Raise an OSError if one cannot be read.
        """
        done: set[tuple[str, int]] = set()

        def look(sample: int) -> None:
            path, content = self._path_of(sample), int(self._numbers["content"][sample])
            if not is_url(path) and (path, content) not in done:
                self._reads.refuse_other(path, self._facts(sample), content)
                done.add((path, content))

        firsts = self._firsts()
        look_at_some(len(firsts), lambda number: look(int(firsts[number])), time_s)

    def _firsts(self) -> NDArray[np.int64]:
        """Return few samples that have at least one of each archive among them.

        A sample begins a new archive where size or version change, or where offsets stop rising. So archives count more
        than once if samples are not in their order.
        """
        size, version, offset = (self._numbers[name] for name in ("bytes", "mtime_ns", "offset"))
        return np.concatenate(
            [[0], np.flatnonzero((np.diff(size) != 0) | (np.diff(version) != 0) | (np.diff(offset) <= 0)) + 1]
        )[: len(size)]

    def _place(self, sample: int) -> tuple[int, int]:
        """Return where the sample begins in its archive, and how many bytes it has there."""
        return int(self._numbers["offset"][sample]), int(self._numbers["nbytes"][sample])

    def _facts(self, sample: int) -> FileFacts:
        """Return the size and version of the sample's archive as indexed."""
        return FileFacts(bytes=int(self._numbers["bytes"][sample]), version=int(self._numbers["mtime_ns"][sample]))

    def identity(self, sample: int) -> str:
        """Return what tells the sample's bytes from others, without the path.

        That is the archive's size, time of change and digest, and the sample's place in it.
        """
        numbers = self._numbers
        archive = f"{numbers['bytes'][sample]} bytes, changed at {numbers['mtime_ns'][sample]} ns"
        digest = digest_of_number(int(numbers["content"][sample]))
        return f"{archive}, digest {digest}, {numbers['nbytes'][sample]} bytes from {numbers['offset'][sample]}"
