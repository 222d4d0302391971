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
import os
from typing import TYPE_CHECKING

from shared.errors import ReadError
from shared.stores.eviction import evict, remove_unlocked, stored_files
from shared.stores.locks import has_name, lock, locked
from shared.stores.own_files import open_own, why_closed

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

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
        """Return whether there is a finished entry of this key; raise an OSError if that cannot be looked at."""
        return self._entry(key).exists()

    def find(self, key: str) -> int | None:
        """Return a descriptor of the entry, or None if there is none; the entry counts as used now.

        It may be evicted while it is open: then reads give no bytes, unless its key ends in `MAPPED`. Raise a
        MachineError if a link or the like is in its place, and an OSError if it cannot be opened.
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

        The entry is not evicted until the descriptor is closed. Return None as well if it was evicted just now; errors
        are those of `find`, and an OSError if the file system has no locks.
        """
        handle = self.find(key)
        if handle is None:
            return None
        lock(handle, wait=True, shared=True)
        # Eviction may have come between opening and locking: then the file has lost its name, and is empty unless
        # mapped.
        if os.fstat(handle).st_nlink:
            return handle, self._entry(key)
        os.close(handle)
        return None

    def lead(self, what: str) -> int | None:
        """Return a descriptor that locks `what` until it is closed, or None if another process has the lock.

        Raise a ReadError if the folder cannot be used, a MachineError if a link or the like is in the lock's place, and
        an OSError if the lock cannot be opened or the file system has no locks.
        """
        self._prepare()
        path = self._underway / f"lead-{what}"
        handle = open_own(path, os.O_RDWR | os.O_CREAT)
        # A sweep may have removed the file between opening and locking: the next process would create and lock another
        # file of this name, and there would be two leaders.
        if lock(handle, wait=False) and has_name(handle, path):
            return handle
        os.close(handle)
        return None

    def make(self, key: str, nbytes: int, fill: Callable[[int], None], *, wait: bool = True) -> bool:
        """Make sure that the entry exists, and return True: `fill` writes it into an open file of `nbytes` bytes.

        If another process is making it, wait until it is done, or return False at once if not `wait`. Raise a ReadError
        if there is no room or the folder cannot be used, a MachineError if a link or the like is in a file's place, and
        an OSError if the unfinished file cannot be opened or the file system has no locks. What `fill` raises passes
        through, except that an OSError becomes a ReadError.
        """
        self._prepare()
        entry, underway = self._entry(key), self._underway / key
        while not entry.exists():
            handle = open_own(underway, os.O_RDWR | os.O_CREAT)
            try:
                if not lock(handle, wait=wait):
                    return False
                # While we waited for the lock, the other process renamed this file to the entry or, if it failed,
                # removed it. Then the descriptor is of a file that nobody would find: look again.
                if has_name(handle, underway):
                    self._fill(entry, underway, handle, nbytes, fill)
            finally:
                os.close(handle)
        return True

    def _fill(self, entry: Path, underway: Path, handle: int, nbytes: int, fill: Callable[[int], None]) -> None:
        """Write the entry into the locked file and rename it, unless it exists; remove the file if anything fails.

        Raise a ReadError if the cache is too small or an OSError occurs, and a MachineError if a link or the like is in
        the ledger's place; other errors of `fill` pass through.
        """
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
        """Make the folders, and remove what killed processes left; once for each object.

        Raise a ReadError if the folders cannot be made or this user may not write there.
        """
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
        """Reserve room for `nbytes` on the disk and in the ledger; raise a ReadError if the cache is too small.

        Raise an OSError if the disk is full or fails or the file system has no locks, and a MachineError if a link or
        the like is in the ledger's place.
        """
        if nbytes > self.most_bytes:
            raise self.too_small(nbytes)
        with locked(self._ledger) as ledger:
            total = int(os.pread(ledger, 32, 0) or -1)
            # An empty ledger (-1) is new: count what is there.
            if total < 0 or total + nbytes > self.most_bytes:
                total = self._evict(nbytes)
            if nbytes:
                os.posix_fallocate(handle, 0, nbytes)
            # If we fail from here on, the room stays in the ledger until somebody counts again.
            os.pwrite(ledger, b"%-32d" % (total + nbytes), 0)

    def _evict(self, nbytes: int) -> int:
        """Remove the least recently used entries until `nbytes` bytes fit; return the bytes that are left.

        Entries that somebody holds stay; nothing is removed if there is room. Raise a ReadError if what stays leaves
        too little room, and an OSError if a folder of the cache is missing or entries cannot be looked at.
        """
        underway = self._sweep()
        entries = [entry for folder in self._entries.iterdir() for entry in stored_files(folder)]
        total = underway + sum(size for _, size, _ in entries)
        # The ledger may have been too high: if the count shows that there is room, nothing is evicted.
        if total + nbytes > self.most_bytes:
            wanted = self.most_bytes - nbytes - self.most_bytes * _FREED
            total -= evict(entries, total - int(max(wanted, 0)), _remove)
        if total + nbytes > self.most_bytes:
            raise self.too_small(total + nbytes)
        return total

    def _sweep(self) -> int:
        """Remove unfinished entries that nobody is making; return the bytes of the rest.

        Raise an OSError if their folder is missing, or entries cannot be opened or locked.
        """
        return sum(size for _, size, path in stored_files(self._underway) if not _remove(path))

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


def _remove(path: str) -> bool:
    """Remove an entry unless somebody holds it; return whether it is gone.

    Raise an OSError if it cannot be opened or removed, or the file system has no locks.
    """
    return remove_unlocked(path, truncate=not path.endswith(MAPPED))
