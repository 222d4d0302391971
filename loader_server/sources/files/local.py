"""Files on this machine: which of them a path stands for, their bytes, and whether they have changed.

Paths are relative to the job file's folder. Knows nothing about remote files, which have their own room.
"""

from __future__ import annotations

import errno
import glob
import os
import stat
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = ["LocalHandle", "bytes_at", "files_meant", "is_hidden", "local_stamp", "named_twice", "open_local"]


def files_meant(base: Path, name: str, suffixes: tuple[str, ...]) -> list[str] | None:
    """The files of a folder or a pattern, in any order; None if `name` is neither, and so the name of a file."""
    path, ends = base / name, suffixes or ("",)
    if os.path.isdir(path):  # pathlib's raises where a name is too long
        return [os.path.join(name, found) for found in _below(path) if found.endswith(ends)]
    if not glob.has_magic(name) or os.path.exists(path):
        return None
    matching = glob.glob(name, root_dir=base, recursive=True)  # relative, as they are named
    return [found for found in matching if (base / found).is_file()]


def _below(folder: Path) -> Iterable[str]:
    """The files in a folder and its sub-folders, except hidden ones."""
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not is_hidden(name)]
        for name in files:
            if not is_hidden(name):
                yield os.path.relpath(os.path.join(place, name), folder)


def named_twice(base: Path, names: Iterable[str]) -> tuple[str, str] | None:
    """Return two names of one file, which may be links to it, if there are such; a file that is absent has one name."""
    known: dict[tuple[int, int] | str, str] = {}
    for name in names:
        try:
            status = os.stat(base / name)  # pathlib's raises where a name is too long
        except (OSError, ValueError):
            key: tuple[int, int] | str = str(base / name)
        else:
            key = status.st_dev, status.st_ino
        if key in known and (isinstance(key, str) or _is_one_file(base / known[key], base / name)):
            return known[key], name
        known[key] = name
    return None


def _is_one_file(path: Path, other: Path) -> bool:
    """Tell whether names of one inode are of one file: some network file systems number different files alike, of which
    none has a second link.
    """
    return path.resolve() == other.resolve() or path.stat().st_nlink > 1


def is_hidden(path: str) -> bool:
    """Whether a file, or a folder that it is in, is one that tools keep for themselves."""
    return any(part.startswith((".", "_")) for part in path.split("/"))


def local_stamp(base: str, path: str) -> str:
    """Size and times of change, or the error in reading them."""
    try:
        status = os.stat(path if path.startswith("/") else os.path.join(base, path))
    except (OSError, ValueError) as error:
        return type(error).__name__
    return f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}"


def open_local(path: Path) -> BinaryIO:
    """Open a file of a user's; an OSError if it is no file: a pipe would be waited for, and a device never ends."""
    return open(path, "rb", opener=_descriptor)


def _descriptor(path: str | Path, flags: int = os.O_RDONLY) -> int:
    number = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(number).st_mode):
            raise OSError(errno.EINVAL, "a folder, pipe or device", str(path))
    except BaseException:  # an interrupt too: nobody else closes it
        os.close(number)
        raise
    return number


class LocalHandle:
    """An open file, which its last user closes, even if it has been forgotten elsewhere meanwhile."""

    __slots__ = ("number",)

    def __init__(self, path: Path) -> None:
        self.number = -1
        self.number = _descriptor(path)

    def __del__(self) -> None:
        if self.number >= 0:
            os.close(self.number)


def bytes_at(handle: int, offset: int, nbytes: int) -> bytes:
    """`nbytes` bytes, or as many as there are; the system may return many of them in pieces."""
    raw = os.pread(handle, nbytes, offset)
    while len(raw) < nbytes and (more := os.pread(handle, nbytes - len(raw), offset + len(raw))):
        raw += more
    return raw
