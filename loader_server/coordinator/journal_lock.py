"""The lock that only one process holds on a job's journal, and the address at which that process serves.

The lock is on the state folder itself, so it survives whatever happens to the files in it: nobody who tidies up can let
a second coordinator start beside the first. Where a folder cannot be locked (NFS), a lock file takes its place.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from typing import TYPE_CHECKING

from shared.stores.own_files import open_own, replacing

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["JournalLock", "LockedError"]

#: Errors of file systems that cannot lock a folder.
_NO_LOCKS = (errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EISDIR, errno.EACCES)

_LONGEST_ENDPOINT = 4096


class LockedError(Exception):
    """Another process holds the lock; `endpoint` is where it serves, empty if that is not known."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        super().__init__(endpoint)


class JournalLock:
    """The lock, held from construction until `close`.

    Raises LockedError if another process holds it, or OSError if the file system has no locks.
    """

    def __init__(self, journal: Path) -> None:
        self._where = journal.with_suffix(".endpoint")
        journal.parent.mkdir(parents=True, exist_ok=True)
        try:
            # The folder first: a lock on a file in it would be lost to anybody who deletes that file.
            self._descriptor = _lock(os.open(journal.parent, os.O_RDONLY | os.O_DIRECTORY))
            if self._descriptor is None:
                self._descriptor = _lock(open_own(journal.with_suffix(".lock"), os.O_RDWR | os.O_CREAT))
        except BlockingIOError:
            raise LockedError(self._read_endpoint()) from None
        if self._descriptor is None:
            raise OSError(errno.ENOLCK, "its file system has no locks")
        # A killed holder leaves its address behind, where nobody serves any more.
        self._forget_endpoint()

    def say_where(self, endpoint: str) -> None:
        """Write down where this process serves; ignore a disk that cannot be written."""
        # A full disk must not stop the coordinator: others then have to find its address in another way.
        with contextlib.suppress(OSError), replacing(self._where) as file:
            file.write(endpoint.encode())

    def _read_endpoint(self) -> str:
        try:
            with self._where.open(errors="replace") as file:
                return file.read(_LONGEST_ENDPOINT)
        except OSError:
            return ""

    def _forget_endpoint(self) -> None:
        with contextlib.suppress(OSError):
            self._where.unlink(missing_ok=True)

    def close(self) -> None:
        """Remove the address and release the lock."""
        self._forget_endpoint()
        assert self._descriptor is not None
        os.close(self._descriptor)


def _lock(descriptor: int) -> int | None:
    """Lock an open file and return its descriptor.

    Return None, with the file closed, if the file system cannot lock it. Raise BlockingIOError if another process holds
    the lock.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if error.errno in _NO_LOCKS:
            return None
        raise
    return descriptor
