"""A folder of cached bytes, bounded, which the processes of a machine share.

An entry is a file with a key for its name; it is written elsewhere in the folder and renamed once it is whole, so that
a file with a key for its name is complete, whichever process was killed meanwhile. Rules: room is reserved before
anything is fetched, under the lock of the ledger; only one process makes an entry, others wait for it; the least
recently used entries are evicted, except those that somebody holds. What a killed process left is removed by the next
one. Locks are the kernel's, which end with their process. Knows nothing about networks, nor about what the bytes mean.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from pathlib import Path
from typing import TYPE_CHECKING

from shared.errors import MachineError, ReadError
from shared.system.own_files import open_own, why_closed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["MAPPED", "DiskCache"]

#: The suffix of keys of entries that may be mapped into memory. Eviction unlinks these without truncating them, because
#: a process that reads beyond the end of a mapped file is killed (SIGBUS).
MAPPED = "-mapped"

#: Making room frees this fraction of the cache at once, because it takes a scan of all entries.
_FREED = 0.1


class DiskCache:
    """Entries by key; `most_bytes` bounds finished and unfinished entries of all processes together."""

    def __init__(self, folder: Path, most_bytes: int) -> None:
        self.folder = folder
        self.most_bytes = most_bytes
        self._entries = folder / "entries"
        self._underway = folder / "underway"
        self._ledger = folder / "ledger"
        self._is_ready = False

    def has(self, key: str) -> bool:
        """Return whether there is such an entry."""
        return self._entry(key).exists()

    def find(self, key: str) -> int | None:
        """Return a descriptor of the entry, or None if there is none; the entry counts as used now.

        It may be evicted while it is open: then reads give no bytes, unless its key ends in `MAPPED`.
        """
        try:
            handle = open_own(self._entry(key), os.O_RDONLY)
        except FileNotFoundError:
            return None
        with contextlib.suppress(OSError):  # another user's entry, or the file system is read-only now
            os.utime(handle)
        return handle

    def hold(self, key: str) -> tuple[int, Path] | None:
        """Return a descriptor of the entry, and its path, or None if there is no such entry.

        The entry is not evicted until the descriptor is closed.
        """
        handle = self.find(key)
        if handle is None:
            return None
        fcntl.flock(handle, fcntl.LOCK_SH)
        # Eviction may have come between opening and locking: then the file has lost its name, and is empty unless
        # mapped.
        if os.fstat(handle).st_nlink:
            return handle, self._entry(key)
        os.close(handle)
        return None

    def lead(self, what: str) -> int | None:
        """Return a descriptor that locks `what` until it is closed, or None if another process has the lock."""
        self._prepare()
        path = self._underway / f"lead-{what}"
        handle = open_own(path, os.O_RDWR | os.O_CREAT)
        # A sweep may have removed the file between opening and locking: the next process would create and lock another
        # file of this name, and there would be two leaders.
        if _lock(handle, wait=False) and _is_at(path, handle):
            return handle
        os.close(handle)
        return None

    def make(self, key: str, nbytes: int, fill: Callable[[int], None], *, wait: bool = True) -> bool:
        """Make sure that the entry exists: `fill` writes it into an open file of `nbytes` bytes.

        If another process is making it, wait for that, or return False at once if not `wait`. Raise a ReadError if
        there is no room or the folder cannot be used.
        """
        self._prepare()
        entry, underway = self._entry(key), self._underway / key
        while not entry.exists():
            handle = open_own(underway, os.O_RDWR | os.O_CREAT)
            try:
                if not _lock(handle, wait=wait):
                    return False
                # While we waited for the lock, the other process renamed this file to the entry or, if it failed,
                # removed it. Then the descriptor is of a file that nobody would find: look again.
                if _is_at(underway, handle):
                    self._fill(entry, underway, handle, nbytes, fill)
            finally:
                os.close(handle)
        return True

    def _fill(self, entry: Path, underway: Path, handle: int, nbytes: int, fill: Callable[[int], None]) -> None:
        """Write the entry into the locked file and rename it; remove the file if anything fails."""
        try:
            if not entry.exists():
                os.ftruncate(handle, 0)  # what a killed process wrote
                self._reserve(handle, nbytes)
                fill(handle)
                # Bytes before the name: after a power failure a renamed entry must not lack its bytes.
                os.fdatasync(handle)
                entry.parent.mkdir(exist_ok=True)
                underway.rename(entry)
        except OSError as error:
            raise self._unusable(error) from error
        finally:
            with contextlib.suppress(OSError):
                underway.unlink()

    def _entry(self, key: str) -> Path:
        return self._entries / key[:2] / key

    def _prepare(self) -> None:
        """Make the folders, and remove what killed processes left; once for each object."""
        if self._is_ready:
            return
        try:
            self._entries.mkdir(parents=True, exist_ok=True)
            self._underway.mkdir(exist_ok=True)
            closed = why_closed(self._underway)
            if closed:  # checked only before writing: existing entries can be read all the same
                raise PermissionError(errno.EACCES, closed)
            self._sweep()
        except OSError as error:
            raise self._unusable(error) from error
        self._is_ready = True

    # --- room ---

    def _reserve(self, handle: int, nbytes: int) -> None:
        """Reserve room for `nbytes` on the disk and in the ledger; raise a ReadError if the cache is too small."""
        if nbytes > self.most_bytes:
            raise self.too_small(nbytes)
        ledger = open_own(self._ledger, os.O_RDWR | os.O_CREAT)
        try:
            _lock(ledger, wait=True)
            total = int(os.pread(ledger, 32, 0) or -1)
            # An empty ledger (-1) is new: count what is there.
            if total < 0 or total + nbytes > self.most_bytes:
                total = self._evict(nbytes)
            if nbytes:
                os.posix_fallocate(handle, 0, nbytes)
            # If we fail from here on, the room stays in the ledger until somebody counts again.
            os.pwrite(ledger, b"%-32d" % (total + nbytes), 0)
        finally:
            os.close(ledger)

    def _evict(self, nbytes: int) -> int:
        """Remove the least recently used entries until `nbytes` bytes fit; return the bytes that are left.

        Entries that somebody holds stay. Raise a ReadError if what stays leaves too little room.
        """
        underway = self._sweep()
        found = sorted(_files_below(self._entries))
        total = underway + sum(size for _, size, _ in found)
        # The ledger may have been too high: if the count shows that there is room, nothing is evicted.
        wanted = self.most_bytes - nbytes - (self.most_bytes * _FREED if total + nbytes > self.most_bytes else 0)
        for _, size, path in found:
            if total <= max(wanted, 0):
                break
            total -= size * _remove(path)
        if total + nbytes > self.most_bytes:
            raise self.too_small(total + nbytes)
        return total

    def _sweep(self) -> int:
        """Remove unfinished entries that nobody is making; return the bytes of the rest."""
        return sum(size for _, size, path in _files_of(self._underway) if not _remove(path))

    def too_small(self, needed: int) -> ReadError:
        """Return the error for a cache that cannot hold what is in use at once."""
        return ReadError(
            expected=f"a cache of at least {needed} bytes, for what is in use at once",
            got=f"remote_cache_bytes = {self.most_bytes} B",
            where=str(self.folder),
            remedy="Raise remote_cache_bytes in [job].",
        )

    def _unusable(self, error: OSError) -> ReadError:
        return ReadError(
            expected="a folder that remote files can be kept in",
            got=error.strerror or type(error).__name__,
            where=str(self.folder),
            remedy="Make room there, let this user write there, name another folder (remote_cache in [job]), or lower "
            "remote_cache_bytes.",
        )


def _lock(handle: int, *, wait: bool) -> bool:
    """Lock an open file and return True; if another process has it locked, wait for it, or return False."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(path: Path, handle: int) -> bool:
    """Return whether this path is still a name of the open file."""
    try:
        return path.stat().st_ino == os.fstat(handle).st_ino
    except FileNotFoundError:
        return False


def _remove(path: str) -> bool:
    """Remove a file unless somebody has it locked; return whether it is gone.

    Its bytes are freed at once, even if others have it open, except those of entries that may be mapped.
    """
    try:
        handle = open_own(path, os.O_RDWR)
    except FileNotFoundError:
        return True
    except MachineError:  # somebody planted a link: remove it, and leave its target as it is
        os.unlink(path)
        return True
    try:
        if not _lock(handle, wait=False):
            return False
        if not _is_at(Path(path), handle):  # the process that had it locked has renamed or removed it
            return True
        os.unlink(path)  # faster than pathlib, for very many entries
        if not path.endswith(MAPPED):
            os.ftruncate(handle, 0)
    except FileNotFoundError:
        return True
    finally:
        os.close(handle)
    return True


def _files_below(folder: Path) -> Iterator[tuple[int, int, str]]:
    """Yield the files of all sub-folders, as `_files_of` does."""
    with os.scandir(folder) as folders:
        for one in folders:
            yield from _files_of(one.path)


def _files_of(folder: str | Path) -> Iterator[tuple[int, int, str]]:
    """Yield each file's time of last use, size and path; files that vanish meanwhile are skipped."""
    with os.scandir(folder) as files:
        for file in files:
            with contextlib.suppress(FileNotFoundError):
                status = file.stat()
                yield status.st_mtime_ns, status.st_size, file.path
