"""The tfrecord source: Examples and SequenceExamples in TFRecord files, each feature under its key.

Rules: TensorFlow is not needed. Files are mapped into memory, and a record is read from its place; a record whose size
or stored checksum is no longer the indexed one is refused. The data are verified against the checksum only if the job
file sets `checksums = true`. A record that cannot be used is a bad row; so is everything after a damaged header,
because nothing after it can be found.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from loader_server.sources.files.file_facts import changed
from loader_server.sources.records.examples.decoder import MOST_RECORDS_WITHOUT, RecordPlace
from loader_server.sources.records.examples.feature_forms import feature_forms
from loader_server.sources.records.file_records import FilesOfExamplesSource, RecordPiece, found_rows
from loader_server.sources.records.mapped_files import MappedFiles
from loader_server.sources.records.tfrecord_file import (
    TRAILER_BYTES,
    checksum_function,
    records_from,
    refuse_no_records,
)
from loader_server.sources.source import BadRow, Found, Indexed, Inventory
from shared.errors import ReadError, SampleError
from shared.settings.parsers import flag, setting, texts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray


__all__ = ["TFRecordSettings", "TFRecordSource"]

#: Headers that are followed at a time while counting.
_BLOCK_RECORDS = 2**16


@dataclass(frozen=True, slots=True, kw_only=True)
class TFRecordSettings:
    """Further settings of a stream with source = "tfrecord"."""

    paths: tuple[str, ...] = setting(texts, "TFRecord files, folders of them, and patterns such as train-*.tfrecord")
    features: tuple[tuple[str, str], ...] | None = setting(
        feature_forms,
        'the features to read, such as { audio = "float32 [any]" }; left out: those of the first records',
        default=None,
    )
    checksums: bool = setting(flag, "whether the checksum of each record is checked when it is read", default=False)


class TFRecordSource(FilesOfExamplesSource):
    """Source of the Examples in TFRecord files.

    Index columns: each sample's file (counted from 0), its record number there, where its data begin, their size, the
    checksum stored behind them, and where each feature's values lie and how long they are.
    """

    Settings = TFRecordSettings
    suffixes = (".tfrecord", ".tfrecords")
    Opens = MappedFiles
    piece_rows = 2048
    settings: TFRecordSettings
    _opened: MappedFiles

    @functools.cached_property
    def _checksum(self) -> Callable[[bytes], int] | None:
        return checksum_function() if self.settings.checksums else None

    # --- while an index is made ---

    def survey(self) -> Inventory:
        """Follow the headers of all files and count the records; raise a DataError if a file is no TFRecord file.

        Raise a DataError as well if there is no file, one is named twice or absent, or the records have no features; a
        ReadError if a file cannot be fetched, and an OSError if it cannot be opened. Raise a SettingsError for a named
        feature that no record has, if a library (for checksums, or of a store) is missing, or if braces stand for too
        many names. MachineError of `_blocks` passes through.
        """
        _ = self._checksum  # a missing library is reported now, not by the first process that probes
        total = sum(rows for path in self._paths for _, rows in self._blocks(path, _BLOCK_RECORDS))
        return Inventory(total=total, pieces=self._pieces, origin=self._origin, about=self._about)

    def _blocks(self, path: str, rows: int) -> Iterator[tuple[int, int]]:
        """Yield where each block of records begins and how many it has; a damaged rest of the file counts as one.

        An empty file has no block. Raise a DataError if it is no TFRecord file, a ReadError if its size has changed or
        it cannot be fetched, and an OSError if it cannot be opened. SettingsError and MachineError of `MappedFiles`
        pass through.
        """
        data, start, broken = self._opened[path], 0, ""
        # After a damaged header no other can be found, because only a record's size tells where the next one is.
        while start < len(data) and not broken:
            records = records_from(data, start, rows)
            refuse_no_records(data, records, self.files.where(path))
            broken = records.broken
            yield start, len(records.offsets) + bool(broken)
            start = records.stop

    def _first_records(self) -> Iterator[bytes]:
        """Yield the first whole records of each file, at most 1024; raise a DataError if a file is no TFRecord file.

        Raise a ReadError if a file cannot be fetched, and an OSError if it cannot be opened. SettingsError of `_paths`
        and MachineError of `MappedFiles` pass through.
        """
        for path in self._paths:
            data = self._opened[path]
            records = records_from(data, 0, MOST_RECORDS_WITHOUT)
            refuse_no_records(data, records, self.files.where(path))
            yield from (data[start : start + size] for start, size in zip(records.offsets, records.sizes, strict=True))

    def probe(self, piece: RecordPiece) -> Found:
        """Parse the records of a piece; unusable ones and a damaged rest of the file become bad rows.

        Raise a ReadError if the file's size has changed since it was mapped, or it cannot be fetched; an OSError if it
        cannot be opened; and a SettingsError if checksums are to be verified and the library is missing. Errors of
        looking for features in the first records pass through, and others of `ExampleDecoder.look`.
        """
        data, where = self._opened[piece.path], self.files.where(piece.path)
        records = records_from(data, piece.start, piece.rows)
        places = zip(records.offsets.tolist(), records.sizes.tolist(), records.checksums.tolist(), strict=True)
        good, bad = list[list[int]](), dict[int, BadRow]()
        for number, (start, size, checksum) in enumerate(places):
            row, record = piece.row + number, piece.number + number
            try:
                raw = data[start : start + size]
                self._refuse_wrong_checksum(raw, checksum)
                good.append([row, piece.file, record, start, size, checksum, *self._decoder.look(raw, where)])
            except SampleError as error:
                bad[row] = BadRow(where, record, error.reason, f"expected {error.expected}, got {error.got}")
        if records.broken:
            number, detail = len(records.offsets), f"{records.broken}: nothing from byte {records.stop} on can be read"
            bad[piece.row + number] = BadRow(where, piece.number + number, "broken_file", detail)
        return found_rows(
            ("file", "record", "offset", "bytes", "checksum", *self._decoder.columns), good, bad, strings={}
        )

    def _refuse_wrong_checksum(self, raw: bytes, written: int) -> None:
        """Raise a SampleError if checksums are verified and the data do not match the stored one.

        Raise a SettingsError if they are to be verified and the library is missing.
        """
        if self._checksum is None:
            return
        computed = self._checksum(raw)
        if computed != written:
            raise SampleError(
                reason="wrong_checksum",
                expected=f"the checksum 0x{written:08x}, which is written behind the record",
                got=f"data of 0x{computed:08x}",
                where="",
                remedy="",
            )

    # --- once there is an index ---

    def open(self, indexed: Indexed) -> None:
        """Take the index; raise a DataError if a local file has another size, or a remote one another version.

        Raise it as well if a file is gone, and besides what the base class raises, such as a ReadError if a store
        cannot be asked. Samples are read ahead of gathering only if files are remote.
        """
        super().open(indexed)
        self._opened.allow_only(indexed.origin)
        # Gathering would wait for a download. So the builder first reads what `unread` returns, with patience.
        self.reads_ahead = self.files.are_remote

    def unread(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return one of these samples for each file that is not mapped; none if all files are.

        Reading it fetches a remote file, and maps it.
        """
        files, firsts = np.unique(self._columns["file"][samples], return_index=True)
        are_missing = [self._paths[file] not in self._opened for file in files.tolist()]
        unread: NDArray[np.int64] = samples[firsts[np.array(are_missing, bool)]]
        return unread

    def read(self, samples: Sequence[int]) -> Iterator[bytes]:
        """Yield the data of each record; raise a ReadError for a record that has changed since indexing.

        Raise it too if its file has another size or cannot be fetched; raise an IndexError if a sample's number is out
        of range, an OSError if a local file cannot be opened, and a SettingsError if checksums are to be verified and
        the library is missing. MachineError of `_read` passes through.
        """
        return map(self._read, samples)

    def _read(self, sample: int) -> bytes:
        columns, sample = self._columns, self.checked(sample)
        data = self._opened[self._paths[columns["file"][sample]]]
        start, size, written = (int(columns[name][sample]) for name in ("offset", "bytes", "checksum"))
        # The stored checksum behind the data tells whether the indexed record is still there; comparing it costs
        # nothing, while verifying the data costs time for each byte, and is done only if the job asks for it.
        raw, behind = data[start : start + size], data[start + size : start + size + TRAILER_BYTES]
        if behind != written.to_bytes(TRAILER_BYTES, "little"):
            raise self._other_record(sample)
        if self._checksum is not None:
            try:
                self._refuse_wrong_checksum(raw, written)
            except SampleError as error:
                raise changed(error.expected, error.got, self._where(sample)) from None
        return raw

    @property
    def gathers(self) -> bool:
        """Return whether whole batches are written straight from the mapped files: unless checksums are verified."""
        return not self.settings.checksums

    def _records(self, samples: NDArray[np.int64]) -> list[RecordPlace]:
        """Return the place of each record; raise a ReadError if one has changed since indexing.

        A record counts as unchanged if the checksum behind its data is the indexed one. Raise a ReadError as well if a
        file has another size or cannot be fetched, and an OSError if a local one cannot be opened. Numbers of samples
        are not checked. Other errors of `MappedFiles`, such as a MachineError, pass through.
        """
        files, starts, sizes, written = (
            self._columns[name][samples] for name in ("file", "offset", "bytes", "checksum")
        )
        # Each file is asked for once a batch, which checks its size: not once a record, of which most share a file.
        mapped = {file: self._opened[self._paths[file]] for file in set(files.tolist())}
        trailers = written.astype(f"<u{TRAILER_BYTES}").tobytes()
        places = zip(files.tolist(), starts.tolist(), (starts + sizes).tolist(), strict=True)
        records = [(mapped[file], start, stop) for file, start, stop in places]
        ends = [data[stop : stop + TRAILER_BYTES] for data, _, stop in records]
        # All at once, the usual case; only a mismatch is searched for, to name the record.
        if b"".join(ends) != trailers:
            expected = np.frombuffer(trailers, f"V{TRAILER_BYTES}").tolist()
            raise self._other_record(int(samples[[*map(bytes.__eq__, ends, expected)].index(False)]))
        return records

    def _other_record(self, sample: int) -> ReadError:
        """Return the error for a record that is not the indexed one; raise an IndexError if it is out of range."""
        return changed(
            f"the record that was indexed ({self._columns['bytes'][sample]} bytes)", "other bytes", self._where(sample)
        )

    def identity(self, sample: int) -> str:
        """Return path, size and checksum of the record, which stay when other records come or go.

        The sample's number is not checked.
        """
        columns = self._columns
        path, size = self._paths[columns["file"][sample]], columns["bytes"][sample]
        return f"{path}, a record of {size} bytes, checksum {columns['checksum'][sample]:08x}"
