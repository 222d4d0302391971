"""An HDF5 file, open in one process: its layout, and the values of any row.

Rules: values that lie in one piece of the file are read from there, by any number of threads, and so are those in most
chunks (see chunked_values); all others by h5py, which lets one thread at a time read. A file that is cut short or
damaged is a DataError when it is opened, a ReadError when it is read.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from loader_server.sources.hdf5.chunked_values import ChunkedValues
from loader_server.sources.hdf5.layout import Hdf5Column, layout_of_file
from loader_server.sources.hdf5.virtual_rows import VirtualRows
from shared.errors import DataError, ReadError, SettingsError
from shared.extras import library

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from loader_server.sources.files.opening import Files
    from loader_server.sources.hdf5.virtual_rows import PartPlaces

__all__ = ["Hdf5File"]


class Hdf5File:
    """One open file; close it after use.

    Raise a DataError if the file is missing, damaged or has no usable layout. `places` says where parts of its virtual
    datasets may be.
    """

    def __init__(self, files: Files, path: str, group: str, keys: Sequence[str], places: PartPlaces) -> None:
        files.facts(path)
        h5py = library("h5py", extra="hdf5", use="which reads HDF5", where=files.where(path))
        self.path = path
        self.where = files.where(path)
        self._files = files
        self._local = files.local(path)
        self._virtual: dict[str, VirtualRows] = {}
        try:
            self.file = h5py.File(self._local.path, "r")
        except OSError as error:
            raise self._damaged(str(error)) from None
        try:
            self.layout = layout_of_file(self.file, group, keys, self.where)
            self._datasets = {column.key: self.file[column.dataset] for column in self.layout.columns}
            for column in self.layout.columns:
                if (dataset := self._datasets[column.key]).is_virtual:
                    self._virtual[column.dataset] = VirtualRows(files, path, dataset, places)
            self._places = {column.key: self._place(column) for column in self.layout.columns}
            self._chunked = {column.key: self._in_chunks(column) for column in self.layout.columns}
        except (OSError, KeyError, RuntimeError) as error:
            self.close()
            raise self._damaged(str(error)) from None
        except (DataError, SettingsError):
            self.close()
            raise

    def _damaged(self, got: str) -> DataError:
        """Return the DataError for a file that h5py cannot read."""
        remedy = "It is cut short or damaged, or something else: write or copy it anew, or mend `paths`."
        return DataError(expected="a whole HDF5 file", got=" ".join(got.split()), where=self.where, remedy=remedy)

    def _place(self, column: Hdf5Column) -> int | None:
        """Return where a column's values begin in the file; None unless they lie there in one plain piece."""
        offset: int | None = self._datasets[column.key].id.get_offset() if self._is_plain(column) else None
        return offset

    def _is_plain(self, column: Hdf5Column) -> bool:
        """Return whether the file holds a column's values in the bytes that numpy has for them."""
        dataset = self._datasets[column.key]
        # With a user block in front, offsets need not count from the beginning of the file: the library knows.
        elsewhere = column.is_text or column.nested or dataset.is_virtual or self.file.userblock_size
        return not elsewhere and bool(dataset.dtype.newbyteorder("=") == dataset.dtype)

    def _in_chunks(self, column: Hdf5Column) -> ChunkedValues | None:
        """Return the reader of a column's chunks; None if the library has to read them."""
        dataset = self._datasets[column.key]
        if not self._is_plain(column) or not ChunkedValues.can_read(dataset):
            return None
        return ChunkedValues(dataset, functools.partial(self._files.read, self.path))

    def values(self, column: Hdf5Column, begin: int, end: int) -> bytes:
        """Return the bytes of a column's values from `begin` to before `end`.

        For strings and nested rows, return those of row `begin`. Raise a ReadError if the file is damaged there.
        """
        dataset, place = self._datasets[column.key], self._places[column.key]
        if place is not None:
            nbytes = dataset.dtype.itemsize * int(np.prod(column.inner, dtype=np.int64))
            return self._files.read(self.path, place + begin * nbytes, (end - begin) * nbytes)
        chunked = self._chunked[column.key]
        if chunked is not None and (read := chunked.read(begin, end)) is not None:
            return read
        try:
            found = self.rows(column.dataset, begin, end)
        except (OSError, KeyError) as error:
            raise ReadError(
                expected=f'the values of "{column.key}" from row {begin} on',
                got=str(error),
                where=self.where,
                remedy="The file is damaged there, or its filter is not installed: write or copy it anew.",
            ) from None
        if column.is_text or column.nested:
            found = found[0]
        return bytes(found) if column.is_text else np.asarray(found, column.dtype).tobytes()

    def rows(self, dataset: str, start: int, stop: int) -> NDArray[Any]:
        """Return rows of a dataset as h5py returns them, those of a virtual one from its parts.

        Raise an OSError or a KeyError if they cannot be read.
        """
        virtual = self._virtual.get(dataset)
        found: NDArray[Any] = self.file[dataset][start:stop] if virtual is None else virtual.read(start, stop)
        return found

    @property
    def parts(self) -> list[str]:
        """Return the other files that hold rows of this one's virtual datasets."""
        return list(dict.fromkeys(path for virtual in self._virtual.values() for path in virtual.paths))

    def close(self) -> None:
        """Close the file and the parts of its virtual datasets."""
        for virtual in self._virtual.values():
            virtual.close()
        self.file.close()
        self._local.close()
