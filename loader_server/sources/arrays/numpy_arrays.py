"""The numpy source: arrays in `.npy` files or one `.npz`, whose rows are samples, ragged ones with offsets.

Rules: arrays are mapped and shared between the processes of a host; a batch is gathered from them at once. Where no
array is ragged, the first axis of each sample counts as its length.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from loader_server.sources.any_size import any_size_keys
from loader_server.sources.arrays.numpy_files import ArrayColumn, open_columns
from loader_server.sources.batch_columns import (
    array_of,
    fields_of_rows,
    joined_parts,
    parted,
    write_padded,
    write_rectangles,
)
from loader_server.sources.files.same_files import FilesInUse, noted_origin, refuse_other_files
from loader_server.sources.source import Found, Indexed, Inventory, Source
from shared.errors import DataError
from shared.settings.parsers import setting, texts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from loader_server.sources.source import Chunk
    from shared.wire.batch_layout import Field

__all__ = ["NumpySettings", "NumpySource"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NumpySettings:
    """Settings of a stream with source = "numpy", besides those of every stream."""

    paths: tuple[str, ...] = setting(
        texts, "the files of one data set, .npy or .npz, or folders of them, relative to the job file"
    )
    keys: tuple[str, ...] = setting(texts, "the keys that are taken; all, if left out", default=())
    any_size: tuple[str, ...] = any_size_keys()


class NumpySource(Source):
    """Rows of arrays; the index has each sample's row, and the lengths of padded keys."""

    Settings = NumpySettings
    #: Only offsets are read, so a piece may be large.
    piece_rows = 2**20
    gathers = True
    settings: NumpySettings

    @cached_property
    def _columns(self) -> list[ArrayColumn]:
        """Return the arrays of the chosen keys, mapped by the first call.

        Raise a DataError if a file or array cannot be used, or a ReadError if a remote file cannot be fetched.
        SettingsError of `_found_paths` and MachineError of `open_columns` pass through.
        """
        return open_columns(self.files, self._found_paths(), self.settings.keys, self.settings.any_size)

    def _found_paths(self) -> list[str]:
        """Return the files that `paths` stands for; raise a DataError if there is none, or if one is named twice.

        Raise a ReadError if a store cannot be asked, or a SettingsError for braces that stand for too many names or a
        store's missing library.
        """
        return self.files.found(self.settings.paths, ".npy", ".npz")

    @property
    def fields(self) -> tuple[Field, ...]:
        """Return the field of each array, which the first call maps.

        Raise a DataError if a file or array cannot be used, or a ReadError if a remote file cannot be fetched.
        SettingsError and MachineError of `_columns` pass through.
        """
        return fields_of_rows(
            (
                column.key,
                str(column.values.dtype),
                (*([None] if column.shapes is not None else []), *column.values.shape[1:]),
                column.offsets is not None,
            )
            for column in self._columns
        )

    # --- while an index is made ---

    def stamp(self) -> str:
        """Return a text that changes when the files do (`Files.stamp`).

        Raise a DataError if there is none or one is named twice; a ReadError if a store cannot be asked, or a
        SettingsError for braces that stand for too many names or a store's missing library.
        """
        return self.files.stamp(self._found_paths())

    def survey(self) -> Inventory:
        """Count the rows of the arrays.

        Raise a DataError if there is no file, a file or array cannot be used, or rows differ in number; a ReadError if
        a store cannot be asked or read, and an OSError if the disk fails. SettingsError and MachineError of `_columns`
        pass through.
        """
        total = self._columns[0].samples
        return Inventory(
            total=total,
            pieces=lambda rows: (range(start, min(start + rows, total)) for start in range(0, total, rows)),
            origin=noted_origin(self.files, self._found_paths()),
            about={"arrays": [[field.key, field.dtype, list(field.shape)] for field in self.fields]},
        )

    def probe(self, piece: range) -> Found:
        """Return the lengths of these rows: of a ragged array the differences of its offsets, or else its shapes.

        Where no array is ragged, the size of the first axis counts; other arrays have no lengths. Raise a DataError if
        offsets fall or shapes do not fit them, or a file or array cannot be used; a ReadError if a remote file cannot
        be fetched. SettingsError and MachineError of `_columns` pass through.
        """
        numbers = {"row": np.arange(piece.start, piece.stop)}
        for column, field in zip(self._columns, self.fields, strict=True):
            if field.padded:
                numbers[f"length_{field.key}"] = self._lengths_of(column, piece)
            if column.shapes is not None:
                shapes = self._shapes_of(column, piece, numbers[f"length_{field.key}"])
                numbers |= {f"length_{field.key}": shapes[:, 0], f"length_{field.key}_width": shapes[:, 1]}
        return Found(rows=piece, numbers=numbers)

    def _lengths_of(self, column: ArrayColumn, piece: range) -> NDArray[np.int64]:
        """Return the lengths of these rows in one array; raise a DataError if its offsets fall."""
        if column.offsets is None:
            return np.full(len(piece), column.values.shape[1])
        # As signed integers: where unsigned offsets fall, their difference would wrap around to a huge length.
        offsets = column.offsets[piece.start : piece.stop + 1].astype(np.int64)
        lengths = offsets[1:] - offsets[:-1]
        if len(lengths) and lengths.min() < 0:
            raise DataError(
                expected=f'offsets of "{column.key}" that never fall',
                got=f"a fall after number {piece.start + int(lengths.argmin())}",
                where=self._where,
                remedy="Offsets say where each sample's values begin: write them anew.",
            )
        return lengths

    def _shapes_of(self, column: ArrayColumn, piece: range, cells: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return rows and columns of these samples; raise a DataError if one has another number of cells."""
        assert column.shapes is not None
        shapes = column.shapes[piece.start : piece.stop].astype(np.int64)
        other = (shapes < 0).any(axis=1) | (shapes.prod(axis=1) != cells)
        if other.any():
            at = int(np.argmax(other))
            raise DataError(
                expected=f'shapes of "{column.key}" with as many cells as its offsets say: {cells[at]} of sample '
                f"{piece.start + at}",
                got=" x ".join(map(str, shapes[at])),
                where=self._where,
                remedy="Shapes are the rows and columns of each sample: write them anew.",
            )
        return shapes

    # --- once there is an index ---

    def open(self, indexed: Indexed) -> None:
        """Take the index; raise a DataError if a file is gone or has changed since it was made.

        Raise a ReadError if a store cannot be asked, and an OSError if a file cannot be read. SettingsError of
        `refuse_other_files` passes through.
        """
        refuse_other_files(self.files, indexed)
        self.indexed = indexed
        self._in_use = FilesInUse(self.files, indexed)
        self._rows = indexed.numbers["row"]
        self._known = "; ".join(f"{file['path']}, {file['bytes']} bytes, {file['digest']}" for file in indexed.origin)
        self._lengths = self.lengths

    def read(self, samples: Sequence[int]) -> Iterator[bytes]:
        """Yield the bytes of each sample's arrays, all keys in one piece.

        Raise a ReadError if a file is no longer the indexed one or a remote one cannot be fetched, a DataError if it
        cannot be used, an OSError if the disk fails, and an IndexError if a number is out of range. SettingsError and
        MachineError of `_columns` pass through.
        """
        self._in_use.refuse_changed()  # before as well: reading a mapped file beyond its end kills the process (SIGBUS)
        columns = self._columns
        for sample in samples:
            row = int(self._rows[self.checked(sample)])
            raw = joined_parts([_values_of(column, row).tobytes() for column in columns])
            self._in_use.refuse_changed()
            yield raw

    def read_chunks(self, chunks: Sequence[Chunk]) -> Iterator[bytes]:
        """Yield the bytes of each chunk: of keys that are cut only the stretch's, of others all.

        Raise what `read` raises: a ReadError if a file is no longer the indexed one, a DataError if it cannot be used,
        an OSError if the disk fails, and an IndexError if a number is out of range.
        """
        self._in_use.refuse_changed()  # before as well, as in `read`
        for chunk in chunks:
            row, cut = int(self._rows[self.checked(chunk.sample)]), slice(chunk.start, chunk.stop)
            values = {column.key: _table_of(column, row) for column in self._columns}
            values |= {key: values[key][cut] for key in chunk.keys}
            raw = joined_parts([array.tobytes() for array in values.values()])
            self._in_use.refuse_changed()
            yield raw

    def decode_chunk(self, chunk: Chunk, raw: bytes) -> dict[str, Any]:
        """Return a new array for each key; the bytes hold the stretch already.

        Raise what `decode` raises, such as an IndexError if there is no such sample.
        """
        steps = dict.fromkeys(chunk.keys, chunk.stop - chunk.start)
        return self._decoded(chunk.sample, raw, steps)

    def decode(self, sample: int, raw: bytes) -> dict[str, Any]:
        """Return a new array for each key; raise an IndexError if the number is out of range.

        Raise a ValueError if the bytes do not fill the arrays, or what mapping the arrays raises, such as a DataError.
        """
        return self._decoded(sample, raw, {})

    def _decoded(self, sample: int, raw: bytes, steps: Mapping[str, int]) -> dict[str, Any]:
        """Return a new array for each key, of so many steps where `steps` has its key; raise what `decode` raises."""
        self.checked(sample)
        values, columns = dict[str, Any](), self._columns
        for column, part in zip(columns, parted(raw, len(columns)), strict=True):
            key, shape = column.key, column.values.shape[1:]
            is_ragged = column.offsets is not None and column.shapes is None
            if column.shapes is not None:
                rows, width = (int(self._lengths[name][sample]) for name in (key, f"{key}_width"))
                shape = (steps.get(key, rows), width, *shape)
            values[key] = array_of(part, column.values.dtype, shape, ragged=is_ragged)
        return values

    def gather(self, samples: NDArray[np.int64], out: Mapping[str, NDArray[Any]]) -> None:
        """Write all rows of a batch at once, padded, for the keys that `out` has; plain rows are copied as they are.

        Raise a ReadError if a file is no longer the indexed one or a remote one cannot be fetched, a DataError if it
        cannot be used, and an OSError if the disk fails. SettingsError and MachineError of `_columns` pass through.
        """
        self._in_use.refuse_changed()  # before as well, as in `read`
        rows = self._rows[samples]
        for column in self._columns:
            key, values = column.key, column.values
            if key not in out:
                continue
            if key not in self._lengths:
                # Rows are within the array; mode="raise" would make numpy buffer `out`.
                np.take(values, rows, axis=0, out=out[key], mode="clip")
                continue
            lengths = out[f"{key}_length"][:] = self._lengths[key][samples]
            if column.shapes is not None:
                assert column.offsets is not None
                widths = out[f"{key}_width"][:] = self._lengths[f"{key}_width"][samples]
                starts = column.offsets[rows].astype(np.int64)
                write_rectangles(values, starts, np.stack([lengths, widths], axis=1), out[key])
                continue
            if column.offsets is None:
                # Not ragged, but the first axis counts as its length: the rows lie one after another, each equally
                # long.
                starts, values = rows * values.shape[1], values.reshape(-1, *values.shape[2:])
            else:
                starts = column.offsets[rows].astype(np.int64)
            write_padded(values, starts, lengths, out[key])
        self._in_use.refuse_changed()

    def name(self, sample: int) -> str:
        """Return the paths as the job file names them, and the row.

        Raise an IndexError if the number is out of range.
        """
        return f"{', '.join(self.settings.paths)}, row {self._rows[self.checked(sample)]}"

    def place(self, sample: int) -> tuple[str, int]:
        """Return the files as one text, and the row, counted from 0; whether the number is in range is not checked."""
        return self._where, int(self._rows[sample])

    def identity(self, sample: int) -> str:
        """Return path, size and digest of each file, and the row; whether the number is in range is not checked."""
        return f"{self._known}, row {self._rows[sample]}"

    def close(self) -> None:
        """Drop the arrays and close the files; arrays are mapped again when they are next needed."""
        self.__dict__.pop("_columns", None)
        super().close()

    @property
    def _where(self) -> str:
        """Return how messages name the files."""
        return ", ".join(map(self.files.where, self.settings.paths))


def _table_of(column: ArrayColumn, row: int) -> NDArray[Any]:
    """Return the values of one sample, with rows and columns if its values are cells."""
    values = _values_of(column, row)
    if column.shapes is None:
        return values
    return values.reshape(*map(int, column.shapes[row]), *values.shape[1:])


def _values_of(column: ArrayColumn, row: int) -> NDArray[Any]:
    """Return the values of one sample: a row of the array, or of a ragged one what lies between two offsets."""
    if column.offsets is None:
        return np.asarray(column.values[row])
    return column.values[int(column.offsets[row]) : int(column.offsets[row + 1])]
