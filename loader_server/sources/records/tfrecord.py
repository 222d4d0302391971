"""The tfrecord source: Examples and SequenceExamples in TFRecord files, each feature under its key.

Rules: TensorFlow is not needed. Files are mapped into memory, and a record is read from its place; a record whose size
or stored checksum is no longer the indexed one is refused. The data are verified against the checksum only if the job
file sets `checksums = true`. A record that cannot be used is a bad row; so is everything after a damaged header,
because nothing after it can be found. All this holds as well for what files unpack to that are compressed by GZIP:
places to unpack them from are found while indexing, and kept beside the index.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from itertools import starmap
from typing import TYPE_CHECKING, Any

import numpy as np

from loader_server.sources.files.file_facts import changed
from loader_server.sources.records.examples.decoder import MOST_RECORDS_WITHOUT, RecordPlace
from loader_server.sources.records.examples.feature_forms import feature_forms
from loader_server.sources.records.file_records import FilesOfExamplesSource, RecordPiece, found_rows
from loader_server.sources.records.gzip_files import GzipFiles, UnpackedFile, is_gzip, parts_of
from loader_server.sources.records.mapped_files import MappedFiles
from loader_server.sources.records.tfrecord_file import (
    TRAILER_BYTES,
    RecordRange,
    checksum_function,
    ranges_in_parts,
    records_from,
    refuse_no_records,
)
from loader_server.sources.source import BadRow, Found, Indexed, Inventory
from shared.errors import ReadError, SampleError
from shared.settings.parsers import flag, setting, texts

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

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
    suffixes = (".tfrecord", ".tfrecords", ".tfrecord.gz", ".tfrecords.gz")
    Opens = MappedFiles
    piece_rows = 2048
    settings: TFRecordSettings
    _opened: MappedFiles

    def __init__(self, settings: Any, base: Path) -> None:
        super().__init__(settings, base)
        self._gzip = GzipFiles(self.files)

    def _data(self, path: str) -> mmap.mmap | bytes | UnpackedFile:
        """Return a file's bytes, as they are or as they unpack to.

        Raise a ReadError if it is not the indexed file or cannot be fetched, an OSError if it cannot be opened, and a
        DataError if it is compressed and the index lacks what is kept about it. SettingsError and MachineError of
        `MappedFiles` pass through.
        """
        return self._gzip.content(path, self._opened[path])

    @functools.cached_property
    def _checksum(self) -> Callable[[bytes], int] | None:
        return checksum_function() if self.settings.checksums else None

    # --- while an index is made ---

    def survey(self) -> Inventory:
        """Follow the headers of all files and count the records; raise a DataError if a file is no TFRecord file.

        Raise a DataError as well if there is no file, one is named twice or absent, or the records have no features; a
        ReadError if a file cannot be fetched, and an OSError if it cannot be opened. Raise a SettingsError for a named
        feature that no record has, if a library (for checksums, compressed files, or of a store) is missing, or if
        braces stand for too many names. MachineError of `_blocks` passes through.
        """
        _ = self._checksum  # a missing library is reported now, not by the first process that probes
        self._gzip.make_indexes([(path, data) for path in self._paths if is_gzip(data := self._opened[path])])
        total = sum(rows for path in self._paths for _, rows in self._blocks(path, _BLOCK_RECORDS))
        # A compressed file is compared with a digest as well: its records can be compared only once they are unpacked.
        origin = [
            facts if not is_gzip(self._opened[facts["path"]]) else self._opened.noted([facts])[0]
            for facts in self._origin
        ]
        return Inventory(total=total, pieces=self._pieces, origin=origin, about=self._about)

    def _blocks(self, path: str, rows: int) -> Iterator[tuple[int, int]]:
        """Yield where each block of records begins and how many it has; a damaged rest of the file counts as one.

        An empty file has no block. Raise a DataError if it is no TFRecord file, a ReadError if its size has changed or
        it cannot be fetched, and an OSError if it cannot be opened. SettingsError and MachineError of `MappedFiles`
        pass through.
        """
        data, start, broken = self._data(path), 0, ""
        if isinstance(data, UnpackedFile):  # its records were found while it was unpacked for the first time
            total = data.index.records + bool(data.index.facts.broken)
            yield from ((int(data.index.starts[row]), min(rows, total - row)) for row in range(0, total, rows))
            return
        # After a damaged header no other can be found, because only a record's size tells where the next one is.
        while start < len(data) and not broken:
            records = records_from(data, start, rows)
            refuse_no_records(data, records, self.files.where(path))
            broken = records.broken
            yield start, len(records.offsets) + bool(broken)
            start = records.stop

    def _first_records(self) -> Iterator[bytes]:
        """Yield the first whole records of each file, at most 1024, or all if it is compressed.

        Raise a DataError if a file is no TFRecord file.

        Raise a ReadError if a file cannot be fetched, and an OSError if it cannot be opened. SettingsError of `_paths`
        and MachineError of `MappedFiles` pass through.
        """
        for path in self._paths:
            data, where = self._opened[path], self.files.where(path)
            if is_gzip(data):
                for begin, run, records in ranges_in_parts(parts_of(data)):
                    if not begin:
                        refuse_no_records(run, records, where)
                    yield from _contents(run, records)
                continue
            records = records_from(data, 0, MOST_RECORDS_WITHOUT)
            refuse_no_records(data, records, where)
            yield from _contents(data, records)

    def probe(self, piece: RecordPiece) -> Found:
        """Parse the records of a piece; unusable ones and a damaged rest of the file become bad rows.

        Raise a ReadError if the file's size has changed since it was mapped, or it cannot be fetched; an OSError if it
        cannot be opened; and a SettingsError if checksums are to be verified and the library is missing. Errors of
        looking for features in the first records pass through, and others of `ExampleDecoder.look`.
        """
        where = self.files.where(piece.path)
        data, begin, records = self._records_of(piece)
        places = zip(records.offsets.tolist(), records.sizes.tolist(), records.checksums.tolist(), strict=True)
        good, bad = list[list[int]](), dict[int, BadRow]()
        for number, (start, size, checksum) in enumerate(places):
            row, record = piece.row + number, piece.number + number
            try:
                raw = data[start : start + size]
                self._refuse_wrong_checksum(raw, checksum)
                good.append([row, piece.file, record, begin + start, size, checksum, *self._decoder.look(raw, where)])
            except SampleError as error:
                bad[row] = BadRow(where, record, error.reason, f"expected {error.expected}, got {error.got}")
        if records.broken:
            number, detail = (
                len(records.offsets),
                f"{records.broken}: nothing from byte {begin + records.stop} on can be read",
            )
            bad[piece.row + number] = BadRow(where, piece.number + number, "broken_file", detail)
        return found_rows(
            ("file", "record", "offset", "bytes", "checksum", *self._decoder.columns), good, bad, strings={}
        )

    def _records_of(self, piece: RecordPiece) -> tuple[mmap.mmap | bytes, int, RecordRange]:
        """Return the bytes that hold a piece, where they begin in the file, and the records in them.

        Raise a ReadError if a compressed file cannot be unpacked, and besides what `_data` raises.
        """
        data = self._data(piece.path)
        if not isinstance(data, UnpackedFile):
            return data, 0, records_from(data, piece.start, piece.rows)
        # Each piece is unpacked once, and not kept: there may be more than the cache can hold.
        index, stop = data.index, min(piece.number + piece.rows, data.index.records)
        run = data.unkept(piece.start, int(index.starts[stop]))
        records = records_from(run, 0, piece.rows)
        ends_broken = stop < piece.number + piece.rows
        return run, piece.start, replace(records, broken=index.facts.broken) if ends_broken else records

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
        cannot be asked. Samples are read ahead of gathering only if files are remote or
        compressed.
        """
        super().open(indexed)
        self._opened.allow_only(indexed.origin)
        self._gzip.allow_only(indexed.origin)
        self.files.index_folder = indexed.place
        # Gathering would wait for a download, or until blocks are unpacked. So the builder first reads what `unread`
        # returns, with patience. Of local files only compressed ones have a digest in the index.
        self.reads_ahead = self.files.are_remote or any("digest" in facts for facts in indexed.origin)

    def unread(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return one of these samples for each file that is not mapped, and each block of a compressed one not open.

        Of a compressed file that is not mapped, return all; return none if all are mapped and open. Reading them
        fetches remote files and maps them, or unpacks the blocks. Raise what `_data` raises.
        """
        files, firsts = np.unique(self._columns["file"][samples], return_index=True)
        are_missing = [self._paths[file] not in self._opened for file in files.tolist()]
        unread = samples[firsts[np.array(are_missing, bool)]].tolist()
        for file, is_missing in zip(files.tolist(), are_missing, strict=True):
            if "digest" not in self.indexed.origin[file]:
                continue
            own = samples[self._columns["file"][samples] == file]
            # Which blocks a file has is known once it is mapped; until then, all of these samples are read.
            data = b"" if is_missing else self._data(self._paths[file])
            unread += (
                data.first_in_blocks(own, self._columns["offset"][own])
                if isinstance(data, UnpackedFile)
                else own.tolist()
            )
        return np.unique(unread).astype(np.int64)

    def read(self, samples: Sequence[int]) -> Iterator[bytes]:
        """Yield the data of each record; raise a ReadError for a record that has changed since indexing.

        Raise it too if its file has another size or cannot be fetched; raise an IndexError if a sample's number is out
        of range, an OSError if a local file cannot be opened, and a SettingsError if checksums are to be verified and
        the library is missing. MachineError of `_read` passes through.
        """
        return map(self._read, samples)

    def _read(self, sample: int) -> bytes:
        columns, sample = self._columns, self.checked(sample)
        data = self._data(self._paths[columns["file"][sample]])
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

    def gather(self, samples: NDArray[np.int64], out: Mapping[str, NDArray[Any]]) -> None:
        """Write the numeric features of these records that `out` has, byte for byte what decoding would give.

        Raise a ReadError if a record has changed since indexing, that is if the checksum behind its data is not the
        indexed one, if a file has another size or cannot be fetched, and an OSError if a local one cannot be opened.
        Numbers of samples are not checked. Other errors of `MappedFiles`, such as a MachineError, pass through.
        """
        records = self._records(samples)
        try:
            self._decoder.gather(self._columns, samples, records, out)
        except Exception:  # raised again, unless it comes of a record that has changed
            self._refuse_other_records(samples, records)
            raise
        # Only now: where a record ends it waits for memory, unless the values before have just been copied. Looking
        # first took 12 µs more for 62 records of 4 kB, of 88.
        self._refuse_other_records(samples, records)

    def _records(self, samples: NDArray[np.int64]) -> list[RecordPlace]:
        """Return the place of each record; whether it is the indexed one is not looked at.

        Raise a ReadError if a file has another size or cannot be fetched, and an OSError if a local one cannot be
        opened. Numbers of samples are not checked. Other errors of `MappedFiles`, such as a MachineError, pass through.
        """
        files, starts, sizes = (self._columns[name][samples] for name in ("file", "offset", "bytes"))
        # Each file is asked for once a batch, which checks its size: not once a record, of which most share a file.
        mapped = {file: self._data(self._paths[file]) for file in set(files.tolist())}
        of_record = map(mapped.__getitem__, files.tolist())
        records: list[Any] = list(zip(of_record, starts.tolist(), (starts + sizes).tolist(), strict=True))
        if any(isinstance(data, UnpackedFile) for data in mapped.values()):  # without a call for each record otherwise
            return list(starmap(_place_in, records))
        return records

    def _refuse_other_records(self, samples: NDArray[np.int64], records: Sequence[RecordPlace]) -> None:
        """Raise a ReadError for the first record whose stored checksum is not the indexed one."""
        trailers = self._columns["checksum"][samples].astype(f"<u{TRAILER_BYTES}").tobytes()
        ends = [data[stop : stop + TRAILER_BYTES] for data, _, stop in records]
        # All at once, the usual case; only a mismatch is searched for, to name the record.
        if b"".join(ends) != trailers:
            expected = np.frombuffer(trailers, f"V{TRAILER_BYTES}").tolist()
            raise self._other_record(int(samples[[*map(bytes.__eq__, ends, expected)].index(False)]))

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

    def close(self) -> None:
        """Drop the open files and blocks; each is closed when its last reader lets go of it."""
        self._gzip.close()
        super().close()


def _contents(data: mmap.mmap | bytes, records: RecordRange) -> Iterator[bytes]:
    return (data[start : start + size] for start, size in zip(records.offsets, records.sizes, strict=True))


def _place_in(data: mmap.mmap | bytes | UnpackedFile, start: int, stop: int) -> RecordPlace:
    """Return a record's place in a file's bytes; that of a compressed file is in a copy, with what is behind it.

    Errors of reading an `UnpackedFile` pass through.
    """
    if isinstance(data, UnpackedFile):
        return data[start : stop + TRAILER_BYTES], 0, stop - start
    return data, start, stop
