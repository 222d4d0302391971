"""The array_record source: Examples in ArrayRecord files, read by the library of the format.

Rules: the library has checksums of all that it reads: a record that does not fit them is a bad row, a file that does
not end as it should is refused, for its table of records is at the end. What was indexed is told by a digest of each
record. Who has not installed the library gets an error that names the extra.
"""

from __future__ import annotations

import contextlib
import functools
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from loader_server.sources.file_facts import changed
from loader_server.sources.records.array_record_files import ArrayRecordFiles
from loader_server.sources.records.examples.decoder import (
    FIRST_RECORDS,
    MOST_RECORDS_WITHOUT,
    ExampleDecoder,
    forms_of_records,
    refuse_unknown_features,
)
from loader_server.sources.records.examples.feature_forms import feature_forms, forms_said
from loader_server.sources.records.examples.gathering import gather_examples
from loader_server.sources.source import BadRow, Found, Indexed, Inventory, Source
from shared.config import setting, texts
from shared.errors import ReadError, SampleError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from shared.wire.layout import Field

__all__ = ["ArrayRecordPiece", "ArrayRecordSettings", "ArrayRecordSource"]

#: What files of a folder end in.
_SUFFIXES = (".array_record", ".arrayrecord")


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayRecordSettings:
    """What a stream with source = "array_record" says besides."""

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
    """Records of one file, the `file`th, from `start` to before `stop`; `row` is the number of the first among all."""

    path: str
    file: int
    start: int
    stop: int
    row: int


class ArrayRecordSource(Source):
    """Records. Columns: of each sample the file (counted from 0), the number in it, a digest, and where and how long
    its features are.
    """

    Settings = ArrayRecordSettings
    settings: ArrayRecordSettings

    def __init__(self, settings: ArrayRecordSettings, base: Path) -> None:
        super().__init__(settings, base)
        self._files = ArrayRecordFiles(self.files)

    @functools.cached_property
    def _origin(self) -> list[dict[str, Any]]:
        return self.files.origin(self.files.found(self.settings.paths, *_SUFFIXES))

    @functools.cached_property
    def _paths(self) -> list[str]:
        return [facts["path"] for facts in self._origin]

    @functools.cached_property
    def _decoder(self) -> ExampleDecoder:
        where = ", ".join(self.settings.paths)
        if self.settings.features is None:
            return ExampleDecoder(forms_of_records(islice(self._usable(), FIRST_RECORDS), where))
        forms = forms_said(self.settings.features)
        refuse_unknown_features(forms, islice(self._usable(), MOST_RECORDS_WITHOUT), where)
        return ExampleDecoder(forms)

    def _usable(self) -> Iterator[bytes]:
        """All records that can be read."""
        for path in self._paths:
            for number in range(self._files.count(path)):
                with contextlib.suppress(ReadError):
                    yield self._files.read(path, number)

    @property
    def fields(self) -> tuple[Field, ...]:
        """The numeric features."""
        return self._decoder.fields

    # --- while an index is made ---

    def stamp(self) -> str:
        """Of the files."""
        return self.files.stamp(self._paths)

    def survey(self) -> Inventory:
        """Each file knows how many records it has."""
        about = {"features": {form.key: str(form) for form in self._decoder.forms}}
        total = sum(map(self._files.count, self._paths))
        return Inventory(total=total, pieces=self._pieces, origin=self._origin, about=about)

    def _pieces(self, rows: int) -> Iterator[ArrayRecordPiece]:
        row = 0
        for file, path in enumerate(self._paths):
            count = self._files.count(path)
            for start in range(0, count, rows):
                stop = min(start + rows, count)
                yield ArrayRecordPiece(path, file, start, stop, row + start)
            row += count

    def probe(self, piece: ArrayRecordPiece) -> Found:
        """Take the records apart."""
        where, own = self.files.where(piece.path), self._decoder.columns
        good, bad = list[list[int]](), dict[int, BadRow]()
        for row, number in enumerate(range(piece.start, piece.stop), piece.row):
            try:
                raw = self._files.read(piece.path, number)
                good.append([row, piece.file, number, _digest(raw), *self._decoder.look(raw, where)])
            except (ReadError, SampleError) as error:
                reason = error.reason if isinstance(error, SampleError) else "corrupted"
                bad[row] = BadRow(where, number, reason, f"expected {error.expected}, got {error.got}")
        columns = np.array(good, np.int64).reshape(len(good), 4 + len(own)).T
        numbers = dict(zip(("file", "record", "digest", *own), columns[1:], strict=True))
        return Found(rows=columns[0].tolist(), numbers=numbers, bad=bad)

    # --- once there is an index ---

    def open(self, indexed: Indexed) -> None:
        """Take the index, if the files have the sizes that they had."""
        self.files.refuse_changed(indexed.origin, indexed.place)
        self.indexed = indexed
        self._columns = indexed.numbers
        self._paths = [facts["path"] for facts in indexed.origin]
        self._decoder = ExampleDecoder(forms_said(indexed.about["features"].items()))

    @property
    def parts(self) -> tuple[int, ...]:
        """Where each file starts that has samples."""
        return tuple(np.flatnonzero(np.diff(self._columns["file"], prepend=-1)).tolist())

    def read(self, samples: Sequence[int]) -> Iterator[bytes]:
        """The records."""
        return map(self._read, samples)

    def _read(self, sample: int) -> bytes:
        columns, sample = self._columns, self.checked(sample)
        raw = self._files.read(self._paths[columns["file"][sample]], int(columns["record"][sample]))
        if _digest(raw) != columns["digest"][sample]:
            raise changed("the record that was indexed", "other bytes", "{}, record {}".format(*self.place(sample)))
        return raw

    @property
    def gathers(self) -> bool:
        """Whole batches are written from the bytes of their records, unless files have to be fetched first."""
        return not self.files.are_remote

    def gather(self, samples: NDArray[np.int64], out: Mapping[str, NDArray[Any]]) -> None:
        """Write the numeric features of these records, as decoding would give them."""
        records = [(raw, 0, len(raw)) for raw in self.read(samples.tolist())]
        gather_examples(self._decoder.forms, self._columns, samples, records, out)

    def expect(self, samples: NDArray[np.int64]) -> None:
        """Their files."""
        if self.files.are_remote:
            self.files.expect_local(self._paths[file] for file in np.unique(self._columns["file"][samples]).tolist())

    def decode(self, sample: int, raw: bytes) -> dict[str, Any]:
        """Each feature under its key."""
        return self._decoder.decode(raw, self._columns, sample)

    def name(self, sample: int) -> str:
        """The file as the job file names it, and the record's number in it."""
        return f"{self._paths[self._columns['file'][self.checked(sample)]]}:{self._columns['record'][sample]}"

    def place(self, sample: int) -> tuple[str, int]:
        """The file, and the record's number in it, from 0."""
        return self.files.where(self._paths[self._columns["file"][sample]]), int(self._columns["record"][sample])

    def identity(self, sample: int) -> str:
        """The file, and the record's digest, so that a record keeps it when others come or go."""
        path = self._paths[self._columns["file"][sample]]
        return f"{path}, a record of digest {int(self._columns['digest'][sample]) % 2**64:016x}"

    def close(self) -> None:
        """Close the files."""
        self._files.close()
        super().close()


def _digest(raw: bytes) -> int:
    return int.from_bytes(xxhash.xxh3_64_digest(raw), "big", signed=True)
