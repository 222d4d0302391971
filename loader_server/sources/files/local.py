"""Files on this machine: those that a path stands for, their bytes, and whether they have changed.

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
    """Return the files of a folder or a pattern, in any order; None if `name` is neither, so names a file.

    They are relative to `base` as `name` is. A file that is itself called like a pattern gives None, too. Of a folder,
    only files that end in a suffix count, if there are suffixes, and no hidden ones. The list is empty if there are
    none; folders that cannot be read have none.
    """
    path, ends = base / name, suffixes or ("",)
    if os.path.isdir(path):  # Path.is_dir raises if a name is too long
        return [os.path.join(name, below) for below in _below(path) if below.endswith(ends)]
    # A file may itself be called like a pattern.
    if not glob.has_magic(name) or os.path.exists(path):
        return None
    matching = glob.glob(name, root_dir=base, recursive=True)  # relative, as they are named
    return [match for match in matching if (base / match).is_file()]


def _below(folder: Path) -> Iterable[str]:
    """Yield the files in a folder and its sub-folders, relative to it, except hidden ones.

    Files in hidden folders, or in folders that cannot be read, are left out.
    """
    for place, folders, files in os.walk(folder):
        # In place, which keeps os.walk from entering them.
        folders[:] = [name for name in folders if not is_hidden(name)]
        for name in files:
            if not is_hidden(name):
                yield os.path.relpath(os.path.join(place, name), folder)


def named_twice(base: Path, names: Iterable[str]) -> tuple[str, str] | None:
    """Return two names of the same file, by links or not, or None; a file that is absent is known by its path.

    The pair is the name that came first, and the first later name of that file. An OSError passes if one of two
    vanishes while they are compared.
    """
    known: dict[tuple[int, int] | str, str] = {}
    # By inode: two names of one file need not look alike (links, `./`, `..`), and each sample would count twice.
    for name in names:
        try:
            status = os.stat(base / name)  # raises OSError too if a name is too long
        except (OSError, ValueError):
            key: tuple[int, int] | str = str(base / name)
        else:
            key = status.st_dev, status.st_ino
        if key in known and (isinstance(key, str) or _are_same_file(base / known[key], base / name)):
            return known[key], name
        known[key] = name
    return None


def _are_same_file(path: Path, other: Path) -> bool:
    """Return whether two names of one inode number are of one file: both lead to one path, or it has several links."""
    # Some network file systems give different files the same inode number; those have no second link.
    return path.resolve() == other.resolve() or path.stat().st_nlink > 1


def is_hidden(path: str) -> bool:
    """Return whether a file or one of its folders begins with a dot or an underscore, as tools name their own files.

    The parts `.` and `..` of a path count as well.
    """
    return any(part.startswith((".", "_")) for part in path.split("/"))


def local_stamp(base: str, path: str) -> str:
    """Return size and times of change as text, or the class of the error in reading them.

    An error is no failure here: a stamp has to change as well when a missing file appears.
    """
    try:
        status = os.stat(os.path.join(base, path))
    except (OSError, ValueError) as error:
        return type(error).__name__
    return f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}"


def open_local(path: Path) -> BinaryIO:
    """Open a user's file for reading; raise an OSError if it cannot be opened or is not a regular file.

    A pipe would block until somebody writes, and a device may never end.
    """
    return open(path, "rb", opener=_descriptor)


def _descriptor(path: str | Path, flags: int = os.O_RDONLY) -> int:
    # O_NONBLOCK: opening a pipe that nobody writes to would block before its type can be looked at.
    number = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(number).st_mode):
            raise OSError(errno.EINVAL, "a folder, pipe or device", str(path))
    except BaseException:  # also KeyboardInterrupt: nobody else closes the descriptor
        os.close(number)
        raise
    return number


class LocalHandle:
    """An open file that closes with its last reference, even if it has been dropped elsewhere meanwhile.

    Making it opens the file: raise an OSError if it cannot be opened or is not a regular file.
    """

    __slots__ = ("number",)

    def __init__(self, path: Path) -> None:
        # Set first, because `__del__` also runs if opening raises.
        self.number = -1
        self.number = _descriptor(path)

    def __del__(self) -> None:
        if self.number >= 0:
            os.close(self.number)


def bytes_at(handle: int, offset: int, nbytes: int) -> bytes:
    """Return `nbytes` bytes, or fewer at the end of the file; one read may return less than was asked for.

    Raise an OSError if the disk fails.
    """
    # pread has no position, so threads may share a descriptor.
    raw = os.pread(handle, nbytes, offset)
    while len(raw) < nbytes and (more := os.pread(handle, nbytes - len(raw), offset + len(raw))):
        raw += more
    return raw
