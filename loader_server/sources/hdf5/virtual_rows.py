"""The rows of a virtual dataset, read from the files that hold them.

The library would read them too, but it takes a file that it cannot open, for whatever reason, for one that was left
out, and makes values up. So the parts are opened here, and whatever is wrong with one is an error.

Rules: a part is whole rows of a plain dataset in a local file below the stream's paths, or in the same file; parts
cover all rows, each once. Anything else is refused. One thread at a time reads, and few parts are open at a time.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from loader_server.sources.hdf5.outside import refuse_values_outside
from loader_server.sources.remote.urls import is_url
from shared.errors import DataError
from shared.extras import library

if TYPE_CHECKING:
    from collections.abc import Collection

    import h5py
    from numpy.typing import NDArray

    from loader_server.sources.files.opening import Files

__all__ = ["PartPlaces", "VirtualRows"]

_MOST_OPEN = 64
#: How the library calls the file that a virtual dataset is in.
_SAME_FILE = "."


@dataclass(frozen=True, slots=True, kw_only=True)
class PartPlaces:
    """Where the parts of a stream's virtual datasets may be: `folders`, but not `files`, which are read by themselves;
    all without links.
    """

    folders: Collection[str]
    files: Collection[str]


@dataclass(frozen=True, slots=True)
class _VirtualPart:
    """Rows of a dataset: `begin` is the first one's number in the virtual dataset, `first` in its own; `is_row` says
    that the dataset as a whole is one row.
    """

    begin: int
    end: int
    path: str
    dataset: str
    first: int
    is_row: bool


class VirtualRows:
    """One virtual dataset of an open file, which is called `path`; close it."""

    def __init__(self, files: Files, path: str, dataset: h5py.Dataset, places: PartPlaces) -> None:
        self._files, self._path, self._places = files, path, places
        self._name, self._where = dataset.name, files.where(path)
        self._shape, self._dtype = dataset.shape, dataset.dtype
        self._lock = threading.Lock()
        self._open: dict[str, h5py.File] = {}
        if is_url(path):
            raise self._unusable("values in the file itself, as it is remote", "a virtual dataset")
        if None in dataset.maxshape:
            raise self._unusable("a number of rows that is fixed", "a virtual dataset that grows with its parts")
        self._parts = sorted((self._part(source) for source in dataset.virtual_sources()), key=lambda part: part.begin)
        self._refuse_gaps()

    @property
    def paths(self) -> list[str]:
        """The other files that hold rows, as they are called beside `path`."""
        return list(dict.fromkeys(part.path for part in self._parts if part.path != self._path))

    def read(self, begin: int, end: int) -> NDArray[Any]:
        """Return the rows of a range; an OSError or a KeyError if a part cannot be read."""
        with self._lock:
            at = bisect_right(self._parts, begin, key=lambda part: part.begin) - 1
            found = []
            while begin < end:
                part = self._parts[at]
                stop = min(end, part.end)
                found.append(self._rows_of(part, begin, stop))
                begin, at = stop, at + 1
        return np.concatenate(found) if found else np.empty((0, *self._shape[1:]), self._dtype)

    def _rows_of(self, part: _VirtualPart, begin: int, end: int) -> NDArray[Any]:
        dataset = self._opened(part.path)[part.dataset]
        if part.is_row:
            return np.asarray(dataset[()])[None]
        first = part.first + begin - part.begin
        rows: NDArray[Any] = dataset[first : first + end - begin]
        if len(rows) != end - begin:  # the library gives as many as there are
            raise OSError(f"{part.path} has no rows from {first + len(rows)} on")
        return rows

    def _opened(self, path: str) -> h5py.File:
        if path not in self._open:
            if len(self._open) >= _MOST_OPEN:
                self._close_parts()
            h5py = library("h5py", extra="hdf5", use="which reads HDF5")
            self._open[path] = h5py.File(self._files.where(path), "r")
        return self._open[path]

    # --- what may be a part ---

    def _part(self, source: Any) -> _VirtualPart:
        """The part that one entry of the dataset's list describes."""
        path, inner = self._path_of(source.file_name), self._shape[1:]
        shape = self._shape_of(path, source.dset_name)
        try:
            (begins, ends), (firsts, lasts) = _block(source.vspace, self._shape), _block(source.src_space, shape)
        except ValueError:
            raise self._other_selection(source.file_name) from None
        rows, own = ends[0] - begins[0], tuple(np.subtract(lasts, firsts).tolist())
        if any((*begins[1:], *firsts[1:])) or ends[1:] != inner or any(np.greater(lasts, shape)):
            raise self._other_selection(source.file_name)
        if own == (rows, *inner):
            return _VirtualPart(begins[0], ends[0], path, source.dset_name, firsts[0], is_row=False)
        if (rows, *own) == (1, *inner) and not any(firsts):
            return _VirtualPart(begins[0], ends[0], path, source.dset_name, 0, is_row=True)
        raise self._other_selection(source.file_name)

    def _other_selection(self, name: str) -> DataError:
        return self._unusable("parts that are whole rows, which are there", f"another selection of {name}")

    def _path_of(self, name: str) -> str:
        """The path of a part's file, from where the library looks first; a DataError if it may not be one."""
        if name == _SAME_FILE:
            return self._path
        if "%" in name:
            raise self._unusable("parts that are named one by one", f"a pattern of names, {name}")
        path = os.path.normpath(self._files.beside(self._path, name))
        self._files.facts(path)  # so that one that is missing is told as any other file is
        real = os.path.realpath(self._files.where(path))
        if not any(os.path.commonpath([real, folder]) == folder for folder in self._places.folders):
            raise self._unusable("parts below the paths of the stream", f"{name}, which is {real}")
        if real in self._places.files:
            raise self._unusable(
                "parts that are not among the stream's own files", f"{name}, whose rows would count twice"
            )
        return path

    def _refuse_gaps(self) -> None:
        ends = [0, *(part.end for part in self._parts)]
        if [part.begin for part in self._parts] != ends[:-1] or ends[-1] != self._shape[0]:
            raise self._unusable(
                f"parts that cover {self._shape[0]} rows, each once",
                ", ".join(f"{part.begin} to {part.end}" for part in self._parts[:8]) or "none",
            )

    def _shape_of(self, path: str, name: str) -> tuple[int, ...]:
        """The shape of a part's dataset; a DataError if its values lie elsewhere again, or are others."""
        where = f"{self._files.where(path)} (a part of {self._where})"
        try:
            file = self._opened(path)
            refuse_values_outside(file, name, where)
            shape, dtype = file[name].shape, file[name].dtype
        except (OSError, KeyError) as error:
            expected = f'a whole HDF5 file with a dataset "{name}"'
            raise DataError(expected=expected, got=str(error), where=where, remedy=_REMEDY) from None
        if dtype != self._dtype:
            raise DataError(expected=f'"{name}" of {self._dtype}', got=str(dtype), where=where, remedy=_REMEDY)
        return tuple(shape)

    def _unusable(self, expected: str, got: str) -> DataError:
        where = f'{self._where}, the virtual dataset "{self._name.strip("/")}"'
        return DataError(expected=expected, got=got, where=where, remedy=_REMEDY)

    def _close_parts(self) -> None:
        for file in self._open.values():
            file.close()
        self._open.clear()

    def close(self) -> None:
        """Close the parts."""
        with self._lock:
            self._close_parts()


_REMEDY = "Mend the part, copy the values into the file, or leave the dataset out by `keys`."


def _block(space: Any, shape: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Where the block that is selected of an array begins and ends in each axis; a ValueError if it is no block."""
    h5py = library("h5py", extra="hdf5", use="which reads HDF5")
    if space.get_select_type() == h5py.h5s.SEL_ALL:  # such a space may have no extent of its own
        return (0,) * len(shape), shape
    try:
        begins, lasts = space.get_select_bounds()
        points = space.get_select_npoints()
    except (RuntimeError, TypeError, OverflowError) as error:  # of a selection without an end
        raise ValueError(str(error)) from None
    ends = tuple(int(last) + 1 for last in lasts)
    if len(ends) != len(shape) or int(np.prod(np.subtract(ends, begins), dtype=np.int64)) != points:
        raise ValueError("a selection with holes")
    return tuple(map(int, begins)), ends
