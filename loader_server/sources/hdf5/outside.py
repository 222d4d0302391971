"""Values that an HDF5 file takes from other files: external links, raw external storage, virtual datasets.

The library follows all three silently, and where another file is gone, short or cannot be opened, it makes zeros up.
They may lead to any file of the machine, and neither the index nor its checks know of them. So links and external
storage are refused, and the parts of virtual datasets are opened here, where whatever is wrong with a part is an error.

Rules: links are looked at before they are followed, so that nothing outside is opened that may not be. A part is whole
rows of a plain dataset in a local file below the stream's paths, or in the same file; parts cover all rows, each once.
Anything else is refused. One thread at a time reads parts, and few of them are open at a time.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from loader_server.sources.remote.urls import is_url
from shared.errors import DataError
from shared.extras import library

if TYPE_CHECKING:
    from collections.abc import Collection

    import h5py
    from numpy.typing import NDArray

    from loader_server.sources.files.opening import Files

__all__ = ["PartPlaces", "VirtualRows", "link_outside", "refuse_link_outside", "refuse_values_outside"]

#: How many soft links a path may pass: more are a circle, which the library refuses as well.
_MOST_LINKS = 16
#: How many files a message names at most.
_NAMED_FILES = 3
#: How many parts are open at once at most.
_MOST_OPEN = 64
#: HDF5's name for the file that the virtual dataset itself is in.
_SAME_FILE = "."

_COPY_VALUES = "Copy the values into the file, with h5repack or h5py for instance, or leave the dataset out by `keys`."
_MEND_PART = "Mend the part, copy the values into the file, or leave the dataset out by `keys`."


def link_outside(file: h5py.File, path: str, links_left: int = _MOST_LINKS) -> str:
    """Return where a path leads if an external link takes it out of the file; else an empty text.

    Soft links on the way are followed, at most `links_left` of them. A path that leads nowhere, or in a circle, gives
    an empty text, too. Raise a SettingsError if h5py is missing.
    """
    h5py = library("h5py", extra="hdf5", use="which reads HDF5")
    names = [name for name in path.split("/") if name and name != "."]
    group = file["/"]
    for place, name in enumerate(names):
        # With getlink the library returns the link itself; without, it would open the file that the link names.
        link = group.get(name, getlink=True)
        if isinstance(link, h5py.ExternalLink):
            return f"{link.filename}:{link.path}"
        rest = "/".join(names[place + 1 :])
        if isinstance(link, h5py.SoftLink):
            target = link.path if link.path.startswith("/") else f"{group.name}/{link.path}"
            return link_outside(file, f"{target}/{rest}", links_left - 1) if links_left else ""
        group = group.get(name)
        if not isinstance(group, h5py.Group):
            break
    return ""


def refuse_link_outside(file: h5py.File, path: str, where: str) -> None:
    """Raise a DataError if a path leads out of the file, or a SettingsError if h5py is missing."""
    target = link_outside(file, path)
    if target:
        raise _outside_values(path, f"an external link to {target}", where)


def refuse_values_outside(file: h5py.File, path: str, where: str, *, may_be_virtual: bool = False) -> None:
    """Raise a DataError if the values of a dataset lie in other files, or a KeyError if there is no such dataset.

    `may_be_virtual` accepts a virtual dataset, whose parts the caller checks itself. Raise a SettingsError if h5py is
    missing.
    """
    refuse_link_outside(file, path, where)
    dataset = file[path]
    if dataset.external:
        names = [name for name, _, _ in dataset.external]
        raise _outside_values(path, f"raw external storage in {_listed(names)}", where)
    if dataset.is_virtual and not may_be_virtual:
        names = [source.file_name for source in dataset.virtual_sources()]
        raise _outside_values(path, f"a virtual dataset with parts in {_listed(names)}", where)


def _listed(names: list[str]) -> str:
    """Return the first few of these names, and how many others there are."""
    distinct = list(dict.fromkeys(names))
    more = len(distinct) - _NAMED_FILES
    return ", ".join(distinct[:_NAMED_FILES]) + (f" and {more} other files" if more > 0 else "")


def _outside_values(path: str, got: str, where: str) -> DataError:
    """Return the DataError for values that lie outside of the file."""
    return DataError(
        expected=f'values of "{path.strip("/")}" in the file itself, where the index can check them',
        got=got,
        where=where,
        remedy=_COPY_VALUES,
    )


# --- virtual datasets ---


@dataclass(frozen=True, slots=True, kw_only=True)
class PartPlaces:
    """Where the parts of a stream's virtual datasets may be: below `folders`, but not among `files`.

    `files` are the stream's own, which are read by themselves. All paths are resolved, without symbolic links.
    """

    folders: Collection[str]
    files: Collection[str]


@dataclass(frozen=True, slots=True)
class _VirtualPart:
    """Rows of a virtual dataset that one other dataset holds.

    They are the rows from `begin` to before `end` of the virtual dataset, and begin at `first` in their own. `is_row`
    says that the other dataset as a whole is one row.
    """

    begin: int
    end: int
    path: str
    dataset: str
    first: int
    is_row: bool


class VirtualRows:
    """One virtual dataset of the open file `path`; close it after use.

    Raise a DataError if the file is remote, the number of rows is not fixed, or a part is missing or not acceptable; a
    SettingsError if h5py is missing.
    """

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
        """Return the other files that hold rows, by their paths beside `path`; empty if this one holds all."""
        return list(dict.fromkeys(part.path for part in self._parts if part.path != self._path))

    def read(self, begin: int, end: int) -> NDArray[Any]:
        """Return the rows from `begin` to before `end`, all of which have to be there.

        Raise an OSError or a KeyError if a part is missing, damaged or too short, or a SettingsError if h5py is
        missing; an OSError or an IndexError beyond the last row.
        """
        with self._lock:
            at = bisect_right(self._parts, begin, key=lambda part: part.begin) - 1
            blocks = [np.empty((0, *self._shape[1:]), self._dtype)]
            while begin < end:
                part = self._parts[at]
                blocks.append(self._rows_of(part, begin, min(end, part.end)))
                begin, at = part.end, at + 1
        return np.concatenate(blocks)

    def _rows_of(self, part: _VirtualPart, begin: int, end: int) -> NDArray[Any]:
        """Return rows of one part; raise an OSError if it holds fewer or its file cannot be opened.

        Raise a KeyError if its dataset is missing, or a SettingsError without h5py.
        """
        dataset = self._opened(part.path)[part.dataset]
        if part.is_row:
            return np.asarray(dataset[()])[None]
        first = part.first + begin - part.begin
        rows: NDArray[Any] = dataset[first : first + end - begin]
        if len(rows) != end - begin:  # h5py cuts a slice at the dataset's end
            raise OSError(f"{part.path} has no rows from {first + len(rows)} on")
        return rows

    def _opened(self, path: str) -> h5py.File:
        """Return the open file of a part.

        Raise an OSError if it is missing or damaged, a SettingsError without h5py.
        """
        if path not in self._open:
            # All at once: rows are read in order, so parts that were read are not needed again soon. A data set may
            # have thousands of parts, more than a process may have descriptors.
            if len(self._open) >= _MOST_OPEN:
                self._close_parts()
            h5py = library("h5py", extra="hdf5", use="which reads HDF5")
            self._open[path] = h5py.File(self._files.where(path), "r")
        return self._open[path]

    # --- what may be a part ---

    def _part(self, source: Any) -> _VirtualPart:
        """Return the part that one entry of the dataset's list describes.

        Raise a DataError if it is not whole rows, or its file or dataset is missing or not acceptable; a SettingsError
        without h5py.
        """
        path, inner = self._path_of(source.file_name), self._shape[1:]
        shape = self._shape_of(path, source.dset_name)
        try:
            (begins, ends), (firsts, lasts) = _block(source.vspace, self._shape), _block(source.src_space, shape)
        except ValueError:
            raise self._other_selection(source.file_name) from None
        rows, own = ends[0] - begins[0], tuple(np.subtract(lasts, firsts).tolist())
        # Whole rows: both blocks begin at 0 in all axes but the first, the virtual one spans all of them, and the
        # source's lies within its dataset.
        is_outside = any((*begins[1:], *firsts[1:])) or ends[1:] != inner or any(np.greater(lasts, shape))
        # Stacked parts: each is one row of the virtual dataset, and has one axis less.
        is_row = (rows, *own) == (1, *inner) and not any(firsts)
        if is_outside or not (is_row or own == (rows, *inner)):
            raise self._other_selection(source.file_name)
        return _VirtualPart(begins[0], ends[0], path, source.dset_name, 0 if is_row else firsts[0], is_row)

    def _other_selection(self, name: str) -> DataError:
        """Return the DataError for a part that is not whole rows."""
        return self._unusable("parts that are whole rows, which are there", f"another selection of {name}")

    def _path_of(self, name: str) -> str:
        """Return the path of a part's file; raise a DataError if the file is missing or may not be a part.

        That is so for a pattern of names, a file outside of the stream's folders, and one of the stream's own files.
        """
        if name == _SAME_FILE:
            return self._path
        # HDF5 replaces %b in a name by the number of a block, so such a name stands for any number of files.
        if "%" in name:
            raise self._unusable("parts that are named one by one", f"a pattern of names, {name}")
        path = os.path.normpath(self._files.beside(self._path, name))
        self._files.facts(path)  # reports a missing file as for any other file
        # Symbolic links are resolved before comparing: a link below the folders must not lead out of them.
        real = os.path.realpath(self._files.where(path))
        if not any(os.path.commonpath([real, folder]) == folder for folder in self._places.folders):
            raise self._unusable("parts below the paths of the stream", f"{name}, which is {real}")
        if real in self._places.files:
            raise self._unusable(
                "parts that are not among the stream's own files", f"{name}, whose rows would count twice"
            )
        return path

    def _refuse_gaps(self) -> None:
        """Raise a DataError unless the parts cover all rows, each once."""
        # A gap would be read as zeros that the library makes up, and an overlap as whichever part it takes.
        ends = [0, *(part.end for part in self._parts)]
        if [part.begin for part in self._parts] != ends[:-1] or ends[-1] != self._shape[0]:
            raise self._unusable(
                f"parts that cover {self._shape[0]} rows, each once",
                ", ".join(f"{part.begin} to {part.end}" for part in self._parts[:8]) or "none",
            )

    def _shape_of(self, path: str, name: str) -> tuple[int, ...]:
        """Return the shape of a part's dataset.

        Raise a DataError if the file is damaged, the dataset is missing or of another dtype, or its values lie in yet
        another file; a SettingsError without h5py.
        """
        where = f"{self._files.where(path)} (a part of {self._where})"
        try:
            file = self._opened(path)
            refuse_values_outside(file, name, where)
            shape, dtype = file[name].shape, file[name].dtype
        except (OSError, KeyError) as error:
            raise DataError(
                expected=f'a whole HDF5 file with a dataset "{name}"', got=str(error), where=where, remedy=_MEND_PART
            ) from None
        if dtype != self._dtype:
            raise DataError(expected=f'"{name}" of {self._dtype}', got=str(dtype), where=where, remedy=_MEND_PART)
        return tuple(shape)

    def _unusable(self, expected: str, got: str) -> DataError:
        """Return the DataError for a virtual dataset that is not acceptable."""
        return DataError(
            expected=expected,
            got=got,
            where=f'{self._where}, the virtual dataset "{self._name.strip("/")}"',
            remedy=_MEND_PART,
        )

    def _close_parts(self) -> None:
        """Close all open parts; each opens again when its rows are next read."""
        for file in self._open.values():
            file.close()
        self._open.clear()

    def close(self) -> None:
        """Close the parts, once no thread reads them; each opens again when its rows are next read."""
        with self._lock:
            self._close_parts()


def _block(space: Any, shape: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return where the selected block of an array begins and ends in each axis.

    Raise a ValueError if the selection has holes or no end, or another number of axes than `shape`; a SettingsError
    without h5py.
    """
    h5py = library("h5py", extra="hdf5", use="which reads HDF5")
    if space.get_select_type() == h5py.h5s.SEL_ALL:  # "all" may have no extent of its own
        return (0,) * len(shape), shape
    try:
        begins, lasts = space.get_select_bounds()
        points = space.get_select_npoints()
    except (RuntimeError, TypeError, OverflowError) as error:  # a selection without an end
        raise ValueError(str(error)) from None
    ends = tuple(int(last) + 1 for last in lasts)
    if len(ends) != len(shape) or int(np.prod(np.subtract(ends, begins), dtype=np.int64)) != points:
        raise ValueError("a selection with holes")
    return tuple(map(int, begins)), ends
