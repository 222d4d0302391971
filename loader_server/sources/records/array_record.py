"""The array_record source: Examples in ArrayRecord files, read with the array_record library.

Rules: the library verifies the checksums of everything it reads, so a record that fails its checksum is a bad row. A
file without its end is refused as a whole, because the table of records is there. The index keeps a digest of each
record, and a record whose digest differs is refused when it is read. If the library is missing, the error names the
extra to install.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from loader_server.sources.files.facts import changed
from loader_server.sources.records.array_record_files import ArrayRecordFiles
from loader_server.sources.records.examples.feature_forms import feature_forms
from loader_server.sources.records.examples.gathering import gather_examples
from loader_server.sources.records.file_records import FilesOfExamplesSource
from loader_server.sources.source import BadRow, Found, Inventory
from shared.errors import ReadError, SampleError
from shared.settings.parsers import setting, texts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

__all__ = ["ArrayRecordPiece", "ArrayRecordSettings", "ArrayRecordSource"]


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


@dataclass(frozen=True, slots=True)
class ArrayRecordPiece:
    """A run of records of one file: those from `start` to before `stop` of file number `file`.

    `row` is the number of the first record among the records of all files.
    """

    path: str
    file: int
    start: int
    stop: int
    row: int


class ArrayRecordSource(FilesOfExamplesSource):
    """Source of the Examples in ArrayRecord files.

    Index columns: each sample's file (counted from 0), its record number there, a digest of the record, and where each
    feature's values lie and how long they are.
    """

    Settings = ArrayRecordSettings
    suffixes = (".array_record", ".arrayrecord")
    settings: ArrayRecordSettings

    def __init__(self, settings: ArrayRecordSettings, base: Path) -> None:
        super().__init__(settings, base)
        self._files = ArrayRecordFiles(self.files)

    def _first_records(self) -> Iterator[bytes]:
        """Yield the readable records of all files in order."""
        for path in self._paths:
            for number in range(self._files.count(path)):
                # A corrupted record says nothing about the features; it becomes a bad row when its piece is probed.
                with contextlib.suppress(ReadError):
                    yield self._files.read(path, number)

    # --- while an index is made ---

    def survey(self) -> Inventory:
        """Count the records of each file, as its own table states them."""
        total = sum(map(self._files.count, self._paths))
        return Inventory(total=total, pieces=self._pieces, origin=self._origin, about=self._about)

    def _pieces(self, rows: int) -> Iterator[ArrayRecordPiece]:
        """Yield pieces of at most `rows` records, none of which spans two files."""
        row = 0
        for file, path in enumerate(self._paths):
            count = self._files.count(path)
            for start in range(0, count, rows):
                stop = min(start + rows, count)
                yield ArrayRecordPiece(path, file, start, stop, row + start)
            row += count

    def probe(self, piece: ArrayRecordPiece) -> Found:
        """Read and parse the records of a piece; corrupted or unusable ones become bad rows."""
        where, own = self.files.where(piece.path), self._decoder.columns
        good, bad = list[list[int]](), dict[int, BadRow]()
        for row, number in enumerate(range(piece.start, piece.stop), piece.row):
            try:
                raw = self._files.read(piece.path, number)
                good.append([row, piece.file, number, _digest(raw), *self._decoder.look(raw, where)])
            except (ReadError, SampleError) as error:
                # A ReadError, unlike a SampleError, has no reason word of its own.
                reason = error.reason if isinstance(error, SampleError) else "corrupted"
                bad[row] = BadRow(where, number, reason, f"expected {error.expected}, got {error.got}")
        columns = np.array(good, np.int64).reshape(len(good), 4 + len(own)).T
        numbers = dict(zip(("file", "record", "digest", *own), columns[1:], strict=True))
        return Found(rows=columns[0].tolist(), numbers=numbers, bad=bad)

    # --- once there is an index ---

    def _expect_files(self, paths: Iterable[str]) -> None:
        self.files.expect_local(paths)

    def read(self, samples: Sequence[int]) -> Iterator[bytes]:
        """Yield the bytes of each record; raise a ReadError if its digest is not the indexed one."""
        return map(self._read, samples)

    def _read(self, sample: int) -> bytes:
        """Return one record; raise a ReadError if its digest is not the indexed one."""
        columns, sample = self._columns, self.checked(sample)
        raw = self._files.read(self._paths[columns["file"][sample]], int(columns["record"][sample]))
        if _digest(raw) != columns["digest"][sample]:
            raise changed("the record that was indexed", "other bytes", "{}, record {}".format(*self.place(sample)))
        return raw

    @property
    def gathers(self) -> bool:
        """Whether whole batches are written from the records' bytes: only for local files."""
        return not self.files.are_remote

    def gather(self, samples: NDArray[np.int64], out: Mapping[str, NDArray[Any]]) -> None:
        """Write the numeric features of these records into `out`, byte for byte what decoding would give."""
        records = [(raw, 0, len(raw)) for raw in self.read(samples.tolist())]
        gather_examples(self._decoder.forms, self._columns, samples, records, out)

    def identity(self, sample: int) -> str:
        """Return the path and the record's digest, which stay the same when other records come or go."""
        path = self._paths[self._columns["file"][sample]]
        return f"{path}, a record of digest {int(self._columns['digest'][sample]) % 2**64:016x}"

    def close(self) -> None:
        """Close the files."""
        self._files.close()
        super().close()


def _digest(raw: bytes) -> int:
    """Return a hash of the record as a signed integer, which an int64 column of the index can hold."""
    return int.from_bytes(xxhash.xxh3_64_digest(raw), "big", signed=True)
