"""The hdf5 source: rows of datasets in HDF5 files, fixed or ragged, and RETURNN's sequences.

Rules: each process opens files for itself. The index has where each sample's values begin, and how many there are. All
files of a stream have the same keys. Where no key is ragged, the first axis of each sample counts as its length.
"""

from __future__ import annotations

import math
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from loader_server.sources.any_size import any_size_keys
from loader_server.sources.batch_columns import array_of, fields_of_rows, joined_parts, parted, shown_axes
from loader_server.sources.files.file_facts import changed
from loader_server.sources.files.same_files import FilesInUse, noted_origin, refuse_other_files
from loader_server.sources.hdf5.file import Hdf5File
from loader_server.sources.hdf5.outside import PartPlaces
from loader_server.sources.remote.urls import is_url
from loader_server.sources.source import BadRow, Found, Indexed, Inventory, Source
from shared.errors import DataError
from shared.settings.parsers import setting, text, texts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from loader_server.sources.hdf5.file_layout import Hdf5Column
    from shared.wire.batch_layout import Field

__all__ = ["Hdf5Piece", "Hdf5Settings", "Hdf5Source"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hdf5Settings:
    """Settings of a stream with source = "hdf5", besides those of every stream."""

    paths: tuple[str, ...] = setting(texts, "HDF5 files, or folders of .h5, .hdf5 and .hdf, relative to the job file")
    keys: tuple[str, ...] = setting(texts, "the keys that are taken; all, if left out", default=())
    any_size: tuple[str, ...] = any_size_keys()
    group: str = setting(text, "the group that the datasets are in; RETURNN's layout has its own", default="/")


@dataclass(frozen=True, slots=True)
class Hdf5Piece:
    """Consecutive rows of one file.

    `start` is the first row's number over all files, `row` its number in this file. `ends` has a column for each ragged
    key: where each row's values begin, and at last where the last row's end.
    """

    start: int
    file: int
    row: int
    ends: NDArray[np.int64]


class Hdf5Source(Source):
    """Rows of datasets.

    The index has these columns: file (counted from 0), row, `begin_<key>` for ragged keys, and lengths; and as strings
    the tags of sequences, if all files have them.
    """

    Settings = Hdf5Settings
    piece_rows = 4096
    settings: Hdf5Settings

    def __init__(self, settings: Any, base: Any) -> None:
        super().__init__(settings, base)
        #: Held while the files are opened, which the first of several reading threads does.
        self._lock = threading.Lock()
        self._open: list[Hdf5File] = []

    @property
    def _files(self) -> list[Hdf5File]:
        """Return all files, opened by the first call.

        Raise a DataError if there is none, or if one is named twice, is unusable or has other keys; a ReadError if one
        has parts that the index does not know, or a store cannot be asked or read; a SettingsError if h5py or a store's
        library is missing. MachineError of `Hdf5File` passes through.
        """
        with self._lock:
            if not self._open:
                paths = self._found_paths()
                places = self._places_of_parts(paths)
                for path in paths:
                    self._open.append(Hdf5File(self.files, path, self.settings, places))
                    _refuse_other_keys(self._open[0], self._open[-1])
                self._refuse_unknown_parts()
            return self._open

    def _found_paths(self) -> list[str]:
        """Return the files that `paths` stands for; raise a DataError if there is none, or if one is named twice.

        Raise a ReadError if a store cannot be asked, or a SettingsError for braces that stand for too many names or a
        store's missing library.
        """
        return self.files.found(self.settings.paths, ".h5", ".hdf5", ".hdf")

    def _refuse_unknown_parts(self) -> None:
        """Raise a ReadError if an open file has parts that the index does not know; without an index do nothing.

        Nobody would notice a change of them.
        """
        if not hasattr(self, "indexed"):
            return
        known = {facts["path"] for facts in self.indexed.origin}
        for file in self._open:
            for part in file.parts:
                if part not in known:
                    raise changed("a file with the parts that were indexed", f"a part {part} as well", file.where)

    def _places_of_parts(self, paths: Sequence[str]) -> PartPlaces:
        """Return where parts of virtual datasets may be.

        They may be below the folders of the stream's files, and below folders that the stream names.
        """
        # A virtual dataset may name any file of the machine, and would put its content into batches.
        files = [self.files.where(path) for path in paths if not is_url(path)]
        named = [self.files.where(path) for path in self.settings.paths if not is_url(path)]
        folders = {os.path.dirname(file) for file in files} | {path for path in named if Path(path).is_dir()}
        return PartPlaces(folders=sorted(set(map(os.path.realpath, folders))), files=set(map(os.path.realpath, files)))

    def _all_paths(self) -> list[str]:
        """Return the stream's files, and then the other files that hold rows of theirs; raise what `_files` raises."""
        return [*self._found_paths(), *dict.fromkeys(path for file in self._files for path in file.parts)]

    @property
    def _columns(self) -> tuple[Hdf5Column, ...]:
        """Return the columns, which all files have in common; raise what `_files` raises."""
        return self._files[0].layout.columns

    @property
    def fields(self) -> tuple[Field, ...]:
        """Return the field of each key that holds numbers; none if all hold strings.

        Raise what opening the files raises: a DataError if there is none, or one is unusable or has other keys, a
        SettingsError if h5py is missing, a ReadError if a remote file cannot be fetched or one has parts that the index
        does not know, or a MachineError.
        """
        return fields_of_rows(
            (column.key, column.dtype, column.axes, column.ragged) for column in self._columns if not column.is_text
        )

    # --- while an index is made ---

    def stamp(self) -> str:
        """Return a text that changes when the files do, or other files that hold rows of theirs; opens the files.

        Raise a DataError if there are no files, one is named twice or unusable, or they differ in their keys; a
        SettingsError if h5py is missing, or a ReadError if a store cannot be asked or read. MachineError of
        `_all_paths` passes through.
        """
        return self.files.stamp(self._all_paths())

    def survey(self) -> Inventory:
        """Count the rows of all files.

        Raise a DataError if there are none, one is named twice or unusable, or they differ in their keys; a
        SettingsError if h5py is missing, a ReadError if a store cannot be asked, and an OSError if the disk fails.
        MachineError of `_files` passes through.
        """
        return Inventory(
            total=sum(file.layout.samples for file in self._files),
            pieces=self._pieces,
            origin=noted_origin(self.files, self._all_paths()),
            about={
                "columns": [[column.key, column.dtype, list(column.axes)] for column in self._columns],
                "tags": all(file.layout.tags for file in self._files),
            },
        )

    def _pieces(self, rows: int) -> Iterator[Hdf5Piece]:
        """Yield the rows of all files in pieces of at most `rows` rows; raise what `_files` raises.

        Errors of h5py pass.
        """
        start = 0
        for number, file in enumerate(self._files):
            for row, ends in file.layout.begins(file.file, rows):
                yield Hdf5Piece(start + row, number, row, ends)
            start += file.layout.samples

    def probe(self, piece: Hdf5Piece) -> Found:
        """Return where the values of these rows begin, their lengths, and the bad rows.

        Only strings, variable-length rows, shapes and tags are read; the survey's pieces have the rest. A string that
        is not UTF-8 makes a bad row, and so do rows and columns of other cells. Raise an OSError or a KeyError if rows
        cannot be read, or what opening the files raises, such as a DataError.
        """
        file, count = self._files[piece.file], len(piece.ends) - 1
        numbers: dict[str, NDArray[np.int64]] = {"row": np.arange(piece.row, piece.row + count)}
        bad: dict[int, BadRow] = {}
        padded = {field.key for field in self.fields if field.padded}
        counted = (column for column in self._columns if column.ragged and not column.nested)
        for column, ends in zip(counted, piece.ends.T, strict=True):
            numbers |= {f"begin_{column.key}": ends[:-1], f"length_{column.key}": np.diff(ends)}
        for column in self._columns:
            if column.is_text or column.nested:
                values = file.rows(column.dataset, piece.row, piece.row + count)
                lengths = np.fromiter(map(len if column.nested else _characters, values), np.int64, count)
                numbers[f"length_{column.key}"] = lengths
                for place in np.flatnonzero(lengths < 0).tolist():
                    detail = f'expected UTF-8 in "{column.key}"'
                    bad[piece.start + place] = BadRow(file.where, piece.row + place, "not_utf8", detail)
            elif column.key in padded and not column.ragged:
                numbers[f"length_{column.key}"] = np.full(count, column.inner[0])
            if column.shapes:
                shapes = file.rows(column.shapes, piece.row, piece.row + count).astype(np.int64)
                cells = numbers[f"length_{column.key}"]
                for place in np.flatnonzero((shapes < 0).any(axis=1) | (shapes.prod(axis=1) != cells)).tolist():
                    got = " x ".join(map(str, shapes[place]))
                    detail = f'expected {cells[place]} cells of "{column.key}" in rows and columns, got {got}'
                    bad[piece.start + place] = BadRow(file.where, piece.row + place, "other_shape", detail)
                numbers |= {f"length_{column.key}": shapes[:, 0], f"length_{column.key}_width": shapes[:, 1]}
        return self._found(piece, numbers, bad)

    def _found(self, piece: Hdf5Piece, numbers: dict[str, NDArray[np.int64]], bad: dict[int, BadRow]) -> Found:
        """Return the columns of the rows that are not bad, with their tags if all files have tags.

        Raise an OSError or a KeyError if tags cannot be read. DataError, SettingsError and MachineError of `_files`
        pass through.
        """
        rows = np.array([row for row in range(len(piece.ends) - 1) if piece.start + row not in bad], np.int64)
        columns = {name: column[rows] for name, column in numbers.items()}
        columns["file"] = np.full(len(rows), piece.file)
        strings = {}
        # Only if all files have tags: every piece has the same columns.
        if all(file.layout.tags for file in self._files):
            file = self._files[piece.file]
            tags = file.rows(file.layout.tags, piece.row, piece.row + len(piece.ends) - 1)
            strings["tag"] = [bytes(tags[row]).decode("utf-8", "replace") for row in rows]
        return Found(rows=(piece.start + rows).tolist(), numbers=columns, strings=strings, bad=bad)

    # --- once there is an index ---

    def open(self, indexed: Indexed) -> None:
        """Take the index; raise a DataError if a file is gone or has changed since it was made.

        Raise a ReadError if a store cannot be asked, and an OSError if a file cannot be read. SettingsError of
        `refuse_other_files` passes through.
        """
        refuse_other_files(self.files, indexed)
        self.indexed = indexed
        self._in_use = FilesInUse(self.files, indexed)
        self._tags = indexed.strings.get("tag")

    @property
    def parts(self) -> tuple[int, ...]:
        """Return the first sample of each file that has samples."""
        return tuple(np.flatnonzero(np.diff(self.indexed.numbers["file"], prepend=-1)).tolist())

    def read(self, samples: Sequence[int]) -> Iterator[bytes]:
        """Yield the bytes of each sample's values, all keys in one piece.

        Raise a ReadError if a file is damaged or no longer the indexed one, or a remote one cannot be fetched. Raise an
        IndexError if a number is out of range, an OSError if the disk fails, and a DataError if a file cannot be
        opened. Other errors of `_files` and `Hdf5File.values` pass through, such as a SettingsError or MachineError.
        """
        before, parts = "", tuple[str, ...]()
        for sample in samples:
            path = self._path(self.checked(sample))
            # Before reading as well, because h5py may find a replaced file damaged. The check after a sample is that of
            # the next one of its file, too: each takes a twentieth of a worker's time.
            if path != before:
                self._in_use.refuse_changed(path)
                before, parts = path, self._files[self.indexed.numbers["file"][sample]].parts
                if parts:  # none would mean all files
                    self._in_use.refuse_changed(*parts)
            raw = self._read(sample)
            # After reading: a write in between gives the files another status.
            self._in_use.refuse_changed(path, *parts)
            yield raw

    def _read(self, sample: int) -> bytes:
        """Return the bytes of a sample's values, all keys in one piece.

        Raise a ReadError if the file is damaged there, an OSError if the disk fails, or what opening the files raises,
        such as a DataError.
        """
        numbers = self.indexed.numbers
        file, parts = self._files[numbers["file"][sample]], []
        for column in self._columns:
            begins = numbers.get(f"begin_{column.key}")
            begin = int(numbers["row"][sample] if begins is None else begins[sample])
            count = 1 if begins is None else math.prod(self._lengths_of(column, sample))
            parts.append(file.values(column, begin, begin + count))
        return joined_parts(parts)

    def _lengths_of(self, column: Hdf5Column, sample: int) -> tuple[int, ...]:
        """Return a ragged sample's length, and its width if the column has shapes."""
        names = (f"length_{column.key}", f"length_{column.key}_width")[: 2 if column.shapes else 1]
        return tuple(int(self.indexed.numbers[name][sample]) for name in names)

    def decode(self, sample: int, raw: bytes) -> dict[str, Any]:
        """Return a new array for each key of numbers, and each string as text.

        Raise an IndexError for an unknown number, a ValueError if the bytes are not those of such values, or what
        opening the files raises, such as a DataError.
        """
        self.checked(sample)
        columns = self._columns
        return {
            column.key: bytes(part).decode()
            if column.is_text
            else array_of(part, column.dtype, (*self._lengths_of(column, sample), *column.inner), ragged=False)
            if column.shapes
            else array_of(part, column.dtype, column.inner, ragged=column.ragged)
            for column, part in zip(columns, parted(raw, len(columns)), strict=True)
        }

    def name(self, sample: int) -> str:
        """Return the sequence's tag, or else the file and the row.

        Raise an IndexError if the number is out of range.
        """
        if self._tags is not None:
            return str(self._tags[self.checked(sample)])
        return f"{self._path(self.checked(sample))}, row {self.indexed.numbers['row'][sample]}"

    def _path(self, sample: int) -> str:
        """Return the path of the sample's file."""
        return str(self.indexed.origin[self.indexed.numbers["file"][sample]]["path"])

    def place(self, sample: int) -> tuple[str, int]:
        """Return the file, and the row in it, counted from 0; whether the number is in range is not checked."""
        return self.files.where(self._path(sample)), int(self.indexed.numbers["row"][sample])

    def identity(self, sample: int) -> str:
        """Return path, size and digest of the file, digests of its parts, the row, and the tag.

        Raise what opening the files raises, such as a DataError.
        """
        facts = self.indexed.origin[self.indexed.numbers["file"][sample]]
        known = f"{facts['path']}, {facts['bytes']} bytes, {facts['digest']}{self._digests_of_parts(facts['path'])}"
        tag = "" if self._tags is None else f", {self._tags[sample]}"
        return f"{known}, row {self.indexed.numbers['row'][sample]}{tag}"

    def _digests_of_parts(self, path: str) -> str:
        """Return the digests of the parts of a file's virtual datasets; an empty text without parts.

        Raise what opening the files raises, such as a DataError.
        """
        # A part with other bytes makes other samples, though the file itself has not changed.
        # The origin lists the stream's files first and their parts behind: none has parts if there are no more entries.
        if len(self.indexed.origin) == len(self._files):
            return ""
        known = {facts["path"]: facts["digest"] for facts in self.indexed.origin}
        parts = next(file.parts for file in self._files if file.path == path)
        return "".join(f", {known[part]}" for part in parts)

    def close(self) -> None:
        """Close the files; they open again when they are next needed."""
        for file in self._open:
            file.close()
        self._open.clear()
        super().close()


def _characters(value: bytes) -> int:
    """Return how many characters a string has; -1 if it is not UTF-8."""
    try:
        return len(bytes(value).decode())
    except UnicodeDecodeError:
        return -1


def _refuse_other_keys(first: Hdf5File, other: Hdf5File) -> None:
    """Raise a DataError if a file's columns, in their order, differ from those of the first file."""
    if list(map(_kind, other.layout.columns)) != list(map(_kind, first.layout.columns)):
        raise DataError(
            expected=f"the keys of {first.path}: {_shown(first)}",
            got=_shown(other),
            where=other.where,
            remedy="All files of a stream have the same keys, dtypes and shapes: choose by `keys`, or mend the file.",
        )


def _kind(column: Hdf5Column) -> tuple[object, ...]:
    """Return what has to be equal in the columns of all files."""
    return column.key, column.dtype, column.axes, column.ragged, column.nested


def _shown(file: Hdf5File) -> str:
    """Return a file's keys as messages show them."""
    return ", ".join(f'"{column.key}" as {column.dtype} [{shown_axes(column.axes)}]' for column in file.layout.columns)
