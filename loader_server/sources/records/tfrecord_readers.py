"""TFRecord files read by record number: the headers of a file are followed once, when it is opened.

Rules: files are mapped into memory, and any thread may read. The caller compares each record with what was indexed:
the data's checksums are not computed here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from loader_server.sources.records.mapped_files import MappedFiles
from loader_server.sources.records.tfrecord_file import records_from, refuse_no_records
from shared.errors import DataError

if TYPE_CHECKING:
    import mmap
    from collections.abc import Iterable

    from loader_server.sources.files.opening import Files

__all__ = ["TFRecordReaders"]

#: More records than a file has.
_ALL = 2**62


class _OpenRecords:
    """The records of one mapped file, by number.

    Making it raises a DataError if the file is no TFRecord file, or ends within a record or at a damaged header.
    """

    def __init__(self, data: mmap.mmap | bytes, where: str) -> None:
        self._data = data
        records = records_from(data, 0, _ALL)
        refuse_no_records(data, records, where)
        if records.broken:
            raise DataError(
                expected="a whole TFRecord file",
                got=f"one whose record {len(records.offsets)} is damaged: {records.broken}",
                where=where,
                remedy="Write or copy the file again, then run loader-server index.",
            )
        self._offsets, self._sizes = records.offsets, records.sizes

    def read(self, number: int) -> bytes:
        """Return the data of a record; raise an IndexError if the file has no record of this number."""
        start = int(self._offsets[number])
        return self._data[start : start + int(self._sizes[number])]


class TFRecordReaders:
    """TFRecord files by path, as `ArrayRecordFiles` has ArrayRecord files."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._mapped = MappedFiles(files)
        self._known: dict[str, tuple[mmap.mmap | bytes, _OpenRecords]] = {}

    def __getitem__(self, path: str) -> _OpenRecords:
        """Return the records of a file, after following its headers if it was not open, or was mapped anew.

        Raise a DataError if it is no whole TFRecord file, a ReadError if it changed its size or cannot be fetched, and
        an OSError if it cannot be opened. SettingsError and MachineError of `MappedFiles` pass through.
        """
        data = self._mapped[path]
        known = self._known.get(path)
        if known is None or known[0] is not data:
            known = self._known[path] = (data, _OpenRecords(data, self._files.where(path)))
        return known[1]

    def expect(self, paths: Iterable[str]) -> None:
        """Start fetching those of these files that are remote; raise what `MappedFiles.expect` raises."""
        self._mapped.expect(paths)

    def close(self) -> None:
        """Drop all files; each is unmapped when its last reader is done with it, and opens again when next read."""
        self._known = {}
        self._mapped.close()
