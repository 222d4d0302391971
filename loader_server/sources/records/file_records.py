"""Base classes of sources whose samples are records in files.

Rules: the index columns of such a source include `file`, counted from 0 in the order of `paths`, and the sample's
number in its file. Opening the source refuses local files whose size has changed since indexing, and remote ones of
another version.
"""

from __future__ import annotations

import abc
import functools
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from loader_server.sources.records.examples.decoder import (
    FIRST_RECORDS,
    MOST_RECORDS_WITHOUT,
    ExampleDecoder,
    forms_of_records,
    refuse_unknown_features,
)
from loader_server.sources.records.examples.feature_forms import forms_said
from loader_server.sources.source import Indexed, Source

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from shared.wire.batch_layout import Field

__all__ = ["FileRecordsSource", "FilesOfExamplesSource"]


class FileRecordsSource(Source):
    """Base of sources whose samples lie in the files that the setting `paths` names."""

    #: Suffixes of the files that are taken from a folder.
    suffixes: ClassVar[tuple[str, ...]]
    #: The index column with the sample's number in its file.
    number_column: ClassVar[str] = "record"

    @functools.cached_property
    def _origin(self) -> list[dict[str, Any]]:
        return self.files.origin(self.files.found(self.settings.paths, *self.suffixes))

    @functools.cached_property
    def _paths(self) -> list[str]:
        return [facts["path"] for facts in self._origin]

    def stamp(self) -> str:
        """Return a text that changes with any of the files."""
        return self.files.stamp(self._paths)

    def open(self, indexed: Indexed) -> None:
        """Take the index; raise a DataError if a local file has another size, or a remote one another version."""
        self.files.refuse_changed(indexed.origin, indexed.place)
        self.indexed = indexed
        self._columns = indexed.numbers
        self._paths = [facts["path"] for facts in indexed.origin]

    @property
    def parts(self) -> tuple[int, ...]:
        """The first sample of each file that has samples."""
        return tuple(np.flatnonzero(np.diff(self._columns["file"], prepend=-1)).tolist())

    def expect(self, samples: NDArray[np.int64]) -> None:
        """Start fetching the files of these samples, if they are remote."""
        if self.files.are_remote:
            self._expect_files(self._paths[file] for file in np.unique(self._columns["file"][samples]).tolist())

    @abc.abstractmethod
    def _expect_files(self, paths: Iterable[str]) -> None: ...

    def _path(self, sample: int) -> str:
        return str(self._paths[self._columns["file"][self.checked(sample)]])

    def place(self, sample: int) -> tuple[str, int]:
        """Return the file, and the sample's number in it, counted from 0."""
        return self.files.where(self._path(sample)), int(self._columns[self.number_column][sample])


class FilesOfExamplesSource(FileRecordsSource):
    """Base of sources whose records are Examples: each feature becomes a value under its key."""

    @abc.abstractmethod
    def _first_records(self) -> Iterator[bytes]:
        """Yield records from the beginning, file after file; the caller takes as many as it needs."""

    @functools.cached_property
    def _decoder(self) -> ExampleDecoder:
        """The decoder of the features that the job file names, or else of those in the first records."""
        where = ", ".join(self.settings.paths)
        if self.settings.features is None:
            return ExampleDecoder(forms_of_records(islice(self._first_records(), FIRST_RECORDS), where))
        forms = forms_said(self.settings.features)
        refuse_unknown_features(forms, islice(self._first_records(), MOST_RECORDS_WITHOUT), where)
        return ExampleDecoder(forms)

    @property
    def _about(self) -> dict[str, Any]:
        """The forms of the features as text: indexing stores them, and `open` reads them back."""
        return {"features": {form.key: str(form) for form in self._decoder.forms}}

    def open(self, indexed: Indexed) -> None:
        """Take the index, and decode by the forms that it was made with."""
        super().open(indexed)
        self._decoder = ExampleDecoder(forms_said(indexed.about["features"].items()))

    @property
    def fields(self) -> tuple[Field, ...]:
        """The numeric features."""
        return self._decoder.fields

    def decode(self, sample: int, raw: bytes) -> dict[str, Any]:
        """Return the value of each feature by key."""
        return self._decoder.decode(raw, self._columns, sample)

    def name(self, sample: int) -> str:
        """Return the file as the job file names it, and the record's number in it."""
        return f"{self._path(sample)}:{self._columns[self.number_column][sample]}"
