"""An HDF5 file, open in one process: its layout, and the values of any row.

Rules: values that lie in one piece of the file are read from there, by any number of threads, and so are those in
chunks of whole rows, plain or compressed by deflate ("gzip"); all others by h5py, which lets one thread at a time read.
So are chunks that turn out to be damaged, because the library reports best what is wrong. A file that is cut short or
damaged is a DataError when it is opened, a ReadError when it is read.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from loader_server.sources.hdf5.file_layout import Hdf5Column, layout_of_file
from loader_server.sources.hdf5.outside import VirtualRows
from shared.errors import DataError, ReadError, SettingsError
from shared.extras import library

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import h5py
    from numpy.typing import NDArray

    from loader_server.sources.files.opening import Files
    from loader_server.sources.hdf5.outside import PartPlaces

__all__ = ["ChunkedValues", "Hdf5File"]

#: HDF5's number for the deflate filter.
_DEFLATE = 1
#: In place of a chunk's place in the file: not looked up yet, and left to the library.
_UNKNOWN, _OTHER = -1, -2


class ChosenDatasets(Protocol):
    """Which datasets of a file are read: the group, the keys (none: all), and those of any size."""

    @property
    def group(self) -> str:
        """Return the group that they are in."""

    @property
    def keys(self) -> Sequence[str]:
        """Return the keys to read; empty for all."""

    @property
    def any_size(self) -> Sequence[str]:
        """Return the keys whose values differ along two axes."""


class Hdf5File:
    """One open file; close it after use.

    Raise a DataError if the file is missing, damaged or has no usable layout. `places` says where parts of its virtual
    datasets may be. Raise a SettingsError if h5py is missing, or isal for compressed chunks, and a ReadError if a
    remote file cannot be fetched; other errors of `Files.facts` and `Files.local` pass, such as a MachineError.
    """

    def __init__(self, files: Files, path: str, settings: ChosenDatasets, places: PartPlaces) -> None:
        files.facts(path)
        h5py = library("h5py", extra="hdf5", use="which reads HDF5", where=files.where(path))
        self.path = path
        self.where = files.where(path)
        self._files = files
        self._local = files.local(path)
        #: Readers of virtual datasets, by dataset.
        self._virtual: dict[str, VirtualRows] = {}
        try:
            self.file = h5py.File(self._local.path, "r")
        except OSError as error:
            raise self._damaged(str(error)) from None
        try:
            self.layout = layout_of_file(self.file, settings.group, settings.keys, self.where, settings.any_size)
            self._datasets = {column.key: self.file[column.dataset] for column in self.layout.columns}
            for column in self.layout.columns:
                if (dataset := self._datasets[column.key]).is_virtual:
                    self._virtual[column.dataset] = VirtualRows(files, path, dataset, places)
            self._readers = {column.key: self._reader(column) for column in self.layout.columns}
        # Closed at once: while it is open here, nobody can open it for writing, to mend it.
        except (OSError, KeyError, RuntimeError) as error:
            self.close()
            raise self._damaged(str(error)) from None
        except (DataError, SettingsError):
            self.close()
            raise

    def _damaged(self, got: str) -> DataError:
        """Return the DataError for a file that h5py cannot read."""
        return DataError(
            expected="a whole HDF5 file",
            got=" ".join(got.split()),
            where=self.where,
            remedy="It is cut short or damaged, or something else: write or copy it anew, or mend `paths`.",
        )

    def _reader(self, column: Hdf5Column) -> Callable[[int, int], bytes | None] | None:
        """Return what reads the bytes of a range of rows from their place in the file; None if the library has to.

        Values have to lie there in the bytes that numpy has for them, in one piece or in chunks that can be read. Raise
        a SettingsError if chunks are compressed and isal is missing. Errors of h5py pass.
        """
        dataset = self._datasets[column.key]
        # With a user block in front, offsets need not count from the beginning of the file: the library knows.
        elsewhere = column.is_text or column.nested or dataset.is_virtual or self.file.userblock_size
        if elsewhere or dataset.dtype.newbyteorder("=") != dataset.dtype:
            return None
        # Nothing that is kept may refer to this object: a cycle would keep the file open after the last user is gone.
        if (offset := dataset.id.get_offset()) is not None:
            row_bytes = dataset.dtype.itemsize * int(np.prod(column.inner, dtype=np.int64))
            return functools.partial(_rows_of_piece, self._files, self.path, offset, row_bytes)
        if not ChunkedValues.can_read(dataset):
            return None
        return ChunkedValues(dataset, functools.partial(self._files.read, self.path)).read

    def values(self, column: Hdf5Column, begin: int, end: int) -> bytes:
        """Return the bytes of a column's values from `begin` to before `end`; for strings and nested rows, of one row.

        That is row `begin`. Raise a ReadError if the file is damaged there, or ends there where it is read without
        h5py; through h5py fewer come back beyond a dataset's end, or an IndexError for a string or nested row. Raise an
        OSError if the disk fails where it is read without h5py. Other errors of `Files.read` and SettingsError of
        `rows` pass through.
        """
        read = self._readers[column.key]
        if read is not None and (raw := read(begin, end)) is not None:
            return raw
        try:
            rows: Any = self.rows(column.dataset, begin, end)
        except (OSError, KeyError) as error:
            raise ReadError(
                expected=f'the values of "{column.key}" from row {begin} on',
                got=str(error),
                where=self.where,
                remedy="The file is damaged there, or its filter is not installed: write or copy it anew.",
            ) from None
        values = rows[0] if column.is_text or column.nested else rows
        return bytes(values) if column.is_text else np.asarray(values, column.dtype).tobytes()

    def rows(self, dataset: str, start: int, stop: int) -> NDArray[Any]:
        """Return rows of a dataset as h5py returns them, those of a virtual one from its parts.

        Raise an OSError or a KeyError if they cannot be read. Fewer come back if a dataset that is not virtual ends
        before; a virtual one has to have them all. SettingsError of `read` passes through.
        """
        source = self._virtual.get(dataset)
        rows: NDArray[Any] = self.file[dataset][start:stop] if source is None else source.read(start, stop)
        return rows

    @property
    def parts(self) -> list[str]:
        """Return the other files that hold rows of this one's virtual datasets."""
        return list(dict.fromkeys(path for virtual in self._virtual.values() for path in virtual.paths))

    def close(self) -> None:
        """Close the file, the parts of its virtual datasets and, if it is remote, its copy here; it stays closed."""
        for virtual in self._virtual.values():
            virtual.close()
        self.file.close()
        self._local.close()


# --- reading without the library ---


def _rows_of_piece(files: Files, path: str, offset: int, row_bytes: int, begin: int, end: int) -> bytes:  # noqa: PLR0913, PLR0917 - a place in a file
    """Return the bytes of the rows from `begin` to before `end`, which lie in one piece from byte `offset` on.

    Raise a ReadError if the file ends before or a remote one cannot be fetched, or an OSError if the disk fails.
    DataError, SettingsError and MachineError of `read` pass through.
    """
    return files.read(path, offset + begin * row_bytes, (end - begin) * row_bytes)


class ChunkedValues:
    """One dataset in chunks, read without the library; the argument `read` returns bytes by offset and number.

    Any number of threads may read. A chunk is unpacked whole, which tests its checksum. Raise a SettingsError if chunks
    are compressed and isal is missing.
    """

    def __init__(self, dataset: h5py.Dataset, read: Callable[[int, int], bytes]) -> None:
        self._dataset, self._read = dataset, read
        self._rows = int(dataset.chunks[0])
        self._row_bytes = dataset.dtype.itemsize * int(np.prod(dataset.shape[1:], dtype=np.int64))
        self._deflated = bool(_filters(dataset))
        if self._deflated:
            # Python's own zlib takes 370 µs for a chunk of 80 kB, this one 180.
            self._zlib = library("isal.isal_zlib", extra="hdf5", use="which unpacks compressed chunks of HDF5")
        chunks = -(-dataset.shape[0] // self._rows)
        #: Of each chunk, looked up when it is first read: a file may have millions.
        self._places, self._sizes = np.full(chunks, _UNKNOWN, np.int64), np.zeros(chunks, np.int64)

    @staticmethod
    def can_read(dataset: h5py.Dataset) -> bool:
        """Return whether the dataset's chunks are whole rows, plain or compressed by deflate.

        h5py has to be able to tell where they are, too. The caller has made sure that its values are plain numbers.
        """
        whole_rows = dataset.chunks is not None and dataset.chunks[1:] == dataset.shape[1:]
        return whole_rows and _filters(dataset) in ([], [_DEFLATE]) and hasattr(dataset.id, "get_chunk_info_by_coord")

    def read(self, begin: int, end: int) -> bytes | None:
        """Return the bytes of the rows from `begin` to before `end`; None if the library has to read them.

        Errors of the given `read` and of h5py pass.
        """
        parts = []
        for chunk in range(begin // self._rows, -(-end // self._rows)):
            first = chunk * self._rows
            part = self._part(chunk, max(begin - first, 0), min(end - first, self._rows))
            if part is None:
                return None
            parts.append(part)
        return b"".join(parts)

    def _part(self, chunk: int, start: int, stop: int) -> bytes | memoryview | None:
        """Return the bytes of some rows of a chunk; None if the library has to read them, as of a damaged chunk.

        Errors of the given `read` and of h5py pass.
        """
        place, size = self._place(chunk)
        begin, end = start * self._row_bytes, stop * self._row_bytes
        if place == _OTHER:
            return None
        if not self._deflated:
            return self._read(place + begin, end - begin)
        try:
            rows = self._zlib.decompress(self._read(place, size), bufsize=self._rows * self._row_bytes)
        # The library reads the chunk again and reports what is wrong with it.
        except self._zlib.error:
            return None
        return memoryview(rows)[begin:end] if len(rows) >= end else None

    def _place(self, chunk: int) -> tuple[int, int]:
        """Return where a chunk begins in the file, or _OTHER, and how many bytes it has there; errors of h5py pass."""
        if self._places[chunk] == _UNKNOWN:
            info = self._dataset.id.get_chunk_info_by_coord((chunk * self._rows, *[0] * (len(self._dataset.shape) - 1)))
            is_whole = self._deflated or info.size == self._rows * self._row_bytes
            is_there = info.byte_offset is not None and is_whole and not info.filter_mask  # of skipped filters
            # The size first: another thread takes the place for known as soon as it stands there, and reads both
            # without a lock.
            self._sizes[chunk] = info.size
            self._places[chunk] = info.byte_offset if is_there else _OTHER
        return int(self._places[chunk]), int(self._sizes[chunk])


def _filters(dataset: h5py.Dataset) -> list[int]:
    """Return the numbers of the filters that the dataset's chunks went through."""
    settings = dataset.id.get_create_plist()
    return [int(settings.get_filter(number)[0]) for number in range(settings.get_nfilters())]
