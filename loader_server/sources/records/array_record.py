"""The array_record source: Examples in ArrayRecord files, read with the array_record library.

Rules: the library verifies the checksums of everything it reads, so a record that fails its checksum is a bad row. A
file without its end is refused as a whole, because the table of records is there. The index keeps a digest of each
record, and a record whose digest differs is refused when it is read. If the library is missing, the error names the
extra to install.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from loader_server.sources.files.file_facts import changed
from loader_server.sources.files.same_files import digest_of_number, signed_digest
from loader_server.sources.records.array_record_files import ArrayRecordFiles
from loader_server.sources.records.examples.feature_forms import feature_forms
from loader_server.sources.records.file_records import FilesOfExamplesSource, RecordPiece, found_rows
from loader_server.sources.source import BadRow, Found, Inventory
from shared.errors import ReadError, SampleError
from shared.settings.parsers import setting, texts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


__all__ = ["ArrayRecordSettings", "ArrayRecordSource"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayRecordSettings:
    """Further settings of a stream with source = "array_record"."""

    paths: tuple[str, ...] = setting(
        texts, "ArrayRecord files, folders of them, and patterns such as train*.array_record"
    )
    features: tuple[tuple[str, str], ...] | None = setting(
        feature_forms,
        'the features to read, such as { audio = "float32 [any]" }; left out: those of the first records',
        default=None,
    )


class ArrayRecordSource(FilesOfExamplesSource):
    """Source of the Examples in ArrayRecord files.

    Index columns: each sample's file (counted from 0), its record number there, a digest of the record, and where each
    feature's values lie and how long they are.
    """

    Settings = ArrayRecordSettings
    suffixes = (".array_record", ".arrayrecord")
    Opens = ArrayRecordFiles
    settings: ArrayRecordSettings
    _opened: ArrayRecordFiles

    def _first_records(self) -> Iterator[bytes]:
        """Yield the readable records of all files in order; damaged ones are skipped.

        Raise a DataError if a file is not whole or is absent, a ReadError if it cannot be fetched, an OSError if it
        cannot be opened, and a SettingsError if the library is missing. MachineError of `ArrayRecordFiles` passes
        through.
        """
        for path in self._paths:
            opened = self._opened[path]
            for number in range(opened.count):
                # A corrupted record says nothing about the features; it becomes a bad row when its piece is probed.
                with contextlib.suppress(ReadError):
                    yield opened.read(number)

    # --- while an index is made ---

    def survey(self) -> Inventory:
        """Count the records of each file, as its own table states them; raise a DataError for a file without one.

        Raise a DataError as well if there is no file, one is named twice or absent, or the records have no features; a
        ReadError if a file cannot be fetched, and an OSError if it cannot be opened. Raise a SettingsError for a named
        feature that no record has, or if the library is missing. MachineError of `ArrayRecordFiles` passes through.
        """
        return Inventory(
            total=sum(self._opened[path].count for path in self._paths),
            pieces=self._pieces,
            origin=self._origin,
            about=self._about,
        )

    def _blocks(self, path: str, rows: int) -> Iterator[tuple[int, int]]:
        """Return an iterator over the number of each block's first record and its count of records, at most `rows`.

        Errors of opening the file pass through, such as a DataError if it is not whole; it has no block if it has no
        record.
        """
        count = self._opened[path].count
        return ((start, min(rows, count - start)) for start in range(0, count, rows))

    def probe(self, piece: RecordPiece) -> Found:
        """Read and parse the records of a piece; corrupted or unusable ones become bad rows.

        Errors of opening the file pass through: a ReadError if a remote one cannot be fetched, a DataError if it is not
        whole, and an OSError if it cannot be opened. So do those of looking for features in the first records, except a
        ReadError, which makes a bad row, and those of `ExampleDecoder.look` other than SampleErrors.
        """
        where = self.files.where(piece.path)
        # Fetched before any record is read: a store that cannot be reached says nothing about the records.
        opened = self._opened[piece.path]
        good, bad = list[list[int]](), dict[int, BadRow]()
        for row, number in enumerate(range(piece.start, piece.start + piece.rows), piece.row):
            try:
                raw = opened.read(number)
                good.append([row, piece.file, number, signed_digest(raw), *self._decoder.look(raw, where)])
            except (ReadError, SampleError) as error:
                # A ReadError, unlike a SampleError, has no reason word of its own.
                bad[row] = BadRow(
                    where, number, getattr(error, "reason", "corrupted"), f"expected {error.expected}, got {error.got}"
                )
        return found_rows(("file", "record", "digest", *self._decoder.columns), good, bad, strings={})

    # --- once there is an index ---

    def read(self, samples: Sequence[int]) -> Iterator[bytes]:
        """Yield the bytes of each record; raise a ReadError if it is damaged or its digest is not the indexed one.

        Raise an IndexError if a sample's number is out of range, a DataError if its file is no longer whole, a
        ReadError if that cannot be fetched, and an OSError if it cannot be opened. SettingsError and MachineError of
        `_read` pass through.
        """
        return map(self._read, samples)

    def _read(self, sample: int) -> bytes:
        columns, sample = self._columns, self.checked(sample)
        raw = self._opened[self._paths[columns["file"][sample]]].read(int(columns["record"][sample]))
        # The library has verified the record's own checksum; only this digest tells that it is the indexed record, and
        # not another whole one of a file that was written anew with the same size.
        if signed_digest(raw) != columns["digest"][sample]:
            raise changed("the record that was indexed", "other bytes", self._where(sample))
        return raw

    @property
    def gathers(self) -> bool:
        """Return whether whole batches are written from the records' bytes: only for local files."""
        return not self.files.are_remote

    def identity(self, sample: int) -> str:
        """Return the path and the record's digest, which stay the same when other records come or go.

        The sample's number is not checked.
        """
        path = self._paths[self._columns["file"][sample]]
        return f"{path}, a record of digest {digest_of_number(int(self._columns['digest'][sample]))}"
