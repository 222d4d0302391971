"""Base classes of sources whose samples are records in files.

Rules: the index columns of such a source include `file`, counted from 0 in the order of `paths`, and the sample's
number in its file. Opening the source refuses local files whose size has changed since indexing, and remote ones of
another version.
"""

from __future__ import annotations

import abc
import functools
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from loader_server.sources.records.examples.decoder import (
    FIRST_RECORDS,
    MOST_RECORDS_WITHOUT,
    ExampleDecoder,
    RecordPlace,
    forms_of_records,
    refuse_unknown_features,
)
from loader_server.sources.records.examples.feature_forms import parsed_forms
from loader_server.sources.source import BadRow, Found, Indexed, Source

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from loader_server.sources.records.array_record_files import ArrayRecordFiles
    from loader_server.sources.records.mapped_files import MappedFiles
    from shared.wire.batch_layout import Field

__all__ = ["FileRecordsSource", "FilesOfExamplesSource", "RecordPiece", "found_rows"]


@dataclass(frozen=True, slots=True)
class RecordPiece:
    """A run of `rows` consecutive records of file number `file`; a damaged rest of the file counts as one record."""

    path: str
    file: int
    #: Where the run begins: a byte of the file, or a record's number in a file that has a table of records.
    start: int
    rows: int
    #: The first record's number in its file, from 0.
    number: int
    #: The first record's number among the records of all files, from 0.
    row: int


class FileRecordsSource(Source):
    """Base of sources whose samples lie in the files that the setting `paths` names."""

    #: Suffixes of the files that are taken from a folder.
    suffixes: ClassVar[tuple[str, ...]]
    #: The index column with the sample's number in its file.
    number_column: ClassVar[str] = "record"
    #: What opens the files: a format maps them into memory itself, or has a library that reads them.
    Opens: ClassVar[type[MappedFiles | ArrayRecordFiles]]
    _opened: MappedFiles | ArrayRecordFiles

    def __init__(self, settings: Any, base: Path) -> None:
        super().__init__(settings, base)
        self._opened = self.Opens(self.files)

    @functools.cached_property
    def _origin(self) -> list[dict[str, Any]]:
        return self.files.origin(self.files.found(self.settings.paths, *self.suffixes))

    @functools.cached_property
    def _paths(self) -> list[str]:
        return [facts["path"] for facts in self._origin]

    def stamp(self) -> str:
        """Return a text that changes with any of the files.

        Raise a DataError if `paths` gives no file or a file twice or if a file is absent, a ReadError if a store cannot
        be asked, and a SettingsError if its library is missing or braces stand for too many names.
        """
        return self.files.stamp(self._paths)

    @abc.abstractmethod
    def _blocks(self, path: str, rows: int) -> Iterator[tuple[int, int]]:
        """Yield where each block of at most `rows` records of a file begins, and how many it has.

        Raise a DataError if the file is not of this format, a ReadError if it has changed or cannot be fetched, and an
        OSError if it cannot be opened.
        """

    def _pieces(self, rows: int) -> Iterator[RecordPiece]:
        """Yield pieces of at most `rows` records, none of which spans two files.

        Raise a DataError if `paths` gives no file, or one is absent, named twice or not of this format; a ReadError if
        a store cannot be asked, or a file has changed or cannot be fetched; a SettingsError if a store's library is
        missing or braces stand for too many names; an OSError if a file cannot be opened. MachineError of `_blocks`
        passes through.
        """
        row = 0
        for file, path in enumerate(self._paths):
            number = 0
            for start, count in self._blocks(path, rows):
                yield RecordPiece(path, file, start, count, number, row)
                number, row = number + count, row + count

    def open(self, indexed: Indexed) -> None:
        """Take the index; raise a DataError if a local file has another size, or a remote one another version.

        Raise it as well if a file is gone, a ReadError if its store cannot be asked, and a SettingsError if the store's
        library is missing.
        """
        self.files.refuse_changed(indexed.origin, indexed.place)
        self.indexed = indexed
        self._columns = indexed.numbers
        self._paths = [facts["path"] for facts in indexed.origin]

    @property
    def parts(self) -> tuple[int, ...]:
        """Return the first sample of each file that has samples, in the files' order; () without samples."""
        return tuple(np.flatnonzero(np.diff(self._columns["file"], prepend=-1)).tolist())

    def expect(self, samples: NDArray[np.int64]) -> None:
        """Start fetching the files of these samples, if they are remote.

        Raise a DataError if a file is gone when it is first looked at, or a ReadError if its store cannot be asked.
        SettingsError of `expect` passes through.
        """
        if self.files.are_remote:
            self._opened.expect(self._paths[file] for file in np.unique(self._columns["file"][samples]).tolist())

    def _path(self, sample: int) -> str:
        return str(self._paths[self._columns["file"][self.checked(sample)]])

    def place(self, sample: int) -> tuple[str, int]:
        """Return the file, and the sample's number in it, counted from 0.

        Raise an IndexError if `sample` is out of range.
        """
        return self.files.where(self._path(sample)), int(self._columns[self.number_column][sample])

    def _where(self, sample: int) -> str:
        return "{}, record {}".format(*self.place(sample))

    def close(self) -> None:
        """Drop the open files; each is closed when its last reader lets go of it, and opens again when next read."""
        self._opened.close()
        super().close()


class FilesOfExamplesSource(FileRecordsSource):
    """Base of sources whose records are Examples: each feature becomes a value under its key."""

    @abc.abstractmethod
    def _first_records(self) -> Iterator[bytes]:
        """Yield records from the beginning, file after file; the caller takes as many as it needs.

        Raise a DataError if a file is not of this format, a ReadError if it cannot be fetched, and an OSError if it
        cannot be opened.
        """

    @functools.cached_property
    def _decoder(self) -> ExampleDecoder:
        """Return the decoder of the features that the job file names, or else of those in the first records.

        Raise a SettingsError for a named feature that none of the first records has, and a DataError if none is named
        and the records have no features. Errors of `_first_records` pass through, such as a DataError if a file is not
        of this format.
        """
        where = ", ".join(self.settings.paths)
        if self.settings.features is None:
            return ExampleDecoder(forms_of_records(islice(self._first_records(), FIRST_RECORDS), where))
        forms = parsed_forms(self.settings.features)
        refuse_unknown_features(forms, islice(self._first_records(), MOST_RECORDS_WITHOUT), where)
        return ExampleDecoder(forms)

    @property
    def _about(self) -> dict[str, Any]:
        """Return the forms of the features as text, which `open` reads back from the index.

        Raise a SettingsError for a named feature that no record has, and a DataError if the records have no features;
        errors of reading the first records pass through.
        """
        return {"features": {form.key: str(form) for form in self._decoder.forms}}

    def open(self, indexed: Indexed) -> None:
        """Take the index, and decode by the forms that it was made with; raise what the base class raises.

        That is a DataError if a file is gone or has another size. Raise a SettingsError as well if the index's forms
        cannot be parsed.
        """
        super().open(indexed)
        # Not by those of the first records as they are now: a job decodes as its index says, whatever was added since.
        self._decoder = ExampleDecoder(parsed_forms(indexed.about["features"].items()))

    @property
    def fields(self) -> tuple[Field, ...]:
        """Return the fields of the numeric features; text and bytes have none.

        Before there is an index, raise a SettingsError for a named feature that no record has, and a DataError if the
        records have no features or a file is not of this format; other errors of reading the first records pass
        through.
        """
        return tuple(form.field for form in self._decoder.forms if form.field is not None)

    def decode(self, sample: int, raw: bytes) -> dict[str, Any]:
        """Return the value of each feature by key, from bytes that indexing has accepted.

        Others give other values, or raise MalformedExample, UnfitFeature or another ValueError, or an IndexError.
        """
        return self._decoder.decode(raw, self._columns, sample)

    def gather(self, samples: NDArray[np.int64], out: Mapping[str, NDArray[Any]]) -> None:
        """Write the numeric features of these records that `out` has, byte for byte what decoding would give.

        Raise what `_records` raises, such as a ReadError if a record is not the indexed one or cannot be read; for
        bytes that indexing has not accepted, raise MalformedExample or UnfitFeature.
        """
        self._decoder.gather(self._columns, samples, self._records(samples), out)

    def _records(self, samples: NDArray[np.int64]) -> list[RecordPlace]:
        """Return the place of each record; raise a ReadError if one is not the indexed one or cannot be read.

        Raise an IndexError if a sample's number is out of range, and besides what `read` raises.
        """
        return [(raw, 0, len(raw)) for raw in self.read(samples.tolist())]

    def name(self, sample: int) -> str:
        """Return the file as the job file names it, and the record's number in it.

        Raise an IndexError if the sample's number is out of range.
        """
        return f"{self._path(sample)}:{self._columns[self.number_column][sample]}"


def found_rows(
    columns: Sequence[str],
    good: Sequence[Sequence[int]],
    bad: Mapping[int, BadRow],
    strings: Mapping[str, Sequence[str]],
) -> Found:
    """Return what a piece holds, from a sequence for each good row: its number, then its value in each column."""
    # Given its shape, because a piece without a good row has to have the same columns.
    table = np.array(good, np.int64).reshape(len(good), 1 + len(columns)).T
    return Found(rows=table[0].tolist(), numbers=dict(zip(columns, table[1:], strict=True)), strings=strings, bad=bad)
