"""A machine's memory of files whose content was looked at: which file had which content digest.

A file's status changes whenever its bytes do: nobody can set back its time of status change (ctime), as `touch -r` sets
back its mtime. But a status also changes when the file gets other rights or another link, and a copy has another one.
So a status that is not remembered is a reason to look at the content, never to refuse the file.

Rules: what is remembered is true of this machine until it reboots, so it lies beside the job's state, never in an
index, and its keys include the boot, the device and the inode. Forgetting costs a look, so nothing waits for a disk, is
locked or fails. A status is remembered only once it is some seconds old: file systems count time in ticks, and a file
that is written twice within one has the same ctime.
"""

from __future__ import annotations

import contextlib
import os
import struct
import time
import weakref
from functools import lru_cache
from typing import TYPE_CHECKING

import xxhash

from shared.errors import MachineError
from shared.memory import boot_id
from shared.stores.own_files import open_own

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["SeenFiles", "is_settled", "seen_files", "status_of"]

#: A row of entries: an entry is a 64-bit hash, which belongs to the row given by its remainder.
_ROW = struct.Struct("<8Q")
#: Device, inode, ctime, size, mtime.
_STATUS = struct.Struct("<QQqqq")
#: A million entries in a sparse file; 130 000 in memory, if there is no file.
_ROWS, _ROWS_IN_MEMORY = 2**17, 2**14
#: How old a ctime has to be to be trusted: the slowest clock of a file system ticks every two seconds.
_SETTLED_NS = 3_000_000_000
_NAME = "seen_files"


class _Memory:
    """Rows of entries in an open file, closed with its last user: threads may still read it once it was replaced."""

    def __init__(self, handle: int, rows: int) -> None:
        self._handle, self._rows = handle, rows
        os.truncate(handle, rows * _ROW.size)
        weakref.finalize(self, os.close, handle)

    def row(self, key: int) -> tuple[int, ...]:
        """Return the entries of a key's row, zeros if it cannot be read; the key is in it or nowhere."""
        try:
            raw = os.pread(self._handle, _ROW.size, self._place(key))
        except OSError:
            raw = b""
        return _ROW.unpack(raw.ljust(_ROW.size, b"\0"))  # short if somebody truncated the file

    def write(self, key: int, entry: int) -> None:
        """Write a key over an entry of its row; other processes see the old entry or the new one.

        Raise an OSError if the disk is full or fails.
        """
        os.pwrite(self._handle, struct.pack("<Q", key), self._place(key) + 8 * entry)

    def _place(self, key: int) -> int:
        return key % self._rows * _ROW.size


class SeenFiles:
    """The contents that files were seen to have, in a file that is open until nobody holds this object.

    Without `place`, or if that file cannot be made or opened, they are in this process's memory only.
    """

    def __init__(self, place: Path | None = None) -> None:
        self._memory = _opened(place)
        self._uptime = (boot_id() or os.uname().nodename).encode()

    def has(self, status: os.stat_result, digest: str) -> bool:
        """Return whether a file of this status was seen to have content of this digest.

        Return False as well once that was forgotten, or if the memory cannot be read.
        """
        key = self._key(status, digest)
        return key in self._memory.row(key)

    def keep(self, status: os.stat_result, digest: str) -> None:
        """Remember a content digest for a status taken before the reading; skip a status that is not settled yet.

        A full row loses another entry. If the file cannot be written, skip this one, and remember in this process's
        memory from then on.
        """
        if not is_settled(status):
            return
        key, memory = self._key(status, digest), self._memory
        row = memory.row(key)
        if key in row:
            return
        try:
            # No lock: two processes may overwrite each other's entry, which costs one of them another look. A full row
            # loses the entry chosen by the key's top three bits, which are as good as random.
            memory.write(key, row.index(0) if 0 in row else key >> 61)
        except OSError:  # a full disk: from here on this process remembers in its own memory
            self._memory = _opened(None)

    def _key(self, status: os.stat_result, digest: str) -> int:
        """Return the entry for a status and a digest on this boot of the machine; never 0, which marks a free place."""
        facts = _STATUS.pack(*status_of(status)) + digest.encode() + self._uptime
        # A zero would look like a free place.
        return xxhash.xxh3_64_intdigest(facts) or 1


def status_of(status: os.stat_result) -> tuple[int, int, int, int, int]:
    """Return device, inode, ctime, size and mtime, which identify a file or change whenever its bytes do."""
    return status.st_dev, status.st_ino, status.st_ctime_ns, status.st_size, status.st_mtime_ns


def is_settled(status: os.stat_result) -> bool:
    """Return whether the ctime is over 3 s ago, so that another write would give the file another status."""
    # The wall clock, because ctime is given by it; it is compared with nothing else.
    return time.clock_gettime_ns(time.CLOCK_REALTIME) - status.st_ctime_ns > _SETTLED_NS


def _opened(place: Path | None) -> _Memory:
    """Return a memory in a file that processes share, or in this process alone without a place.

    It is in this process alone as well if the file cannot be opened or made, or something else is in its place.
    """
    if place is not None:
        # A link that another user planted in the state folder is as good as no file.
        with contextlib.suppress(OSError, MachineError):
            return _Memory(open_own(place, os.O_RDWR | os.O_CREAT, 0o600), _ROWS)
    return _Memory(os.memfd_create(_NAME), _ROWS_IN_MEMORY)


@lru_cache(maxsize=64)
def seen_files(state: Path | None) -> SeenFiles:
    """Return the memory in a job's state folder, the same object for all callers in a process.

    Without a folder it is in this process's memory only.
    """
    return SeenFiles(None if state is None else state / _NAME)
