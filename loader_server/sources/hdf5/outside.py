"""Values that an HDF5 file takes from other files: external links, raw external storage, virtual datasets.

The library follows all three silently, and where another file is gone or short it makes zeros up. They may lead to any
file of the machine, and neither the index nor its checks know of them, unless they are parts of a virtual dataset that
`virtual_rows` accepts.

Rules: links are looked at before they are followed, so that nothing outside is ever opened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.errors import DataError
from shared.extras import library

if TYPE_CHECKING:
    import h5py

__all__ = ["link_outside", "refuse_link_outside", "refuse_values_outside"]

#: How many soft links a path may pass: more are a circle, which the library refuses as well.
_MOST_LINKS = 16
#: How many files a message names at most.
_NAMED_FILES = 3

_REMEDY = "Copy the values into the file, with h5repack or h5py for instance, or leave the dataset out by `keys`."


def link_outside(file: h5py.File, path: str) -> str:
    """Return where a path leads if an external link takes it out of the file; else an empty text.

    Soft links on the way are followed. A path that leads nowhere, or in a circle, gives an empty text, too.
    """
    return _outside(file, path, _MOST_LINKS)


def _outside(file: h5py.File, path: str, links_left: int) -> str:
    """Follow a path link by link, as `link_outside`, through at most `links_left` more soft links."""
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
            return _outside(file, f"{target}/{rest}", links_left - 1) if links_left else ""
        child = group.get(name)
        if not isinstance(child, h5py.Group):
            return ""
        group = child
    return ""


def refuse_link_outside(file: h5py.File, path: str, where: str) -> None:
    """Raise a DataError if a path leads out of the file."""
    target = link_outside(file, path)
    if target:
        raise _outside_values(path, f"an external link to {target}", where)


def refuse_values_outside(file: h5py.File, path: str, where: str, *, may_be_virtual: bool = False) -> None:
    """Raise a DataError if the values of a dataset lie in other files.

    `may_be_virtual` accepts a virtual dataset, whose parts the caller checks itself.
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
        remedy=_REMEDY,
    )
