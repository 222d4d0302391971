"""A machine's memory of files whose content was looked at: which file had which digest of its content.

A file's status changes whenever its bytes do: nobody can set back its time of status change (ctime), as `touch -r` sets
back its time of change. But a status also changes when the file gets other rights or another link, and is another one
for a copy. So a status that is not remembered is a reason to look at the content, never to refuse the file.

Rules: what is remembered is true of this machine until it starts again, so it lies beside the job's state, never in an
index, and names the machine's uptime, the device and the inode. Forgetting costs a look, so nothing waits for a disk,
is locked or fails. A status is only remembered once it is some seconds old: file systems count time in ticks, and a
file that is written twice within one has the same time of status change.
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

from shared.memory import boot_id

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["SeenFiles", "is_settled", "seen_files", "status_of"]

#: Entries are 64-bit digests, found by their last bits in rows of a fixed size.
_ROW = struct.Struct("<8Q")
#: Device, inode, time of status change, size, time of change.
_STATUS = struct.Struct("<QQqqq")
#: A million entries in a file that is mostly a hole; in memory, where there is no file, 130 000.
_ROWS, _ROWS_IN_MEMORY = 2**17, 2**14
#: The slowest clock of a file system ticks every two seconds.
_SETTLED_NS = 3_000_000_000
_NAME = "seen_files"


class _Memory:
    """Rows of entries in an open file, which its last user closes, even if another thread has gone on to another."""

    def __init__(self, handle: int, rows: int) -> None:
        self._handle, self._rows = handle, rows
        os.truncate(handle, rows * _ROW.size)
        weakref.finalize(self, os.close, handle)

    def row(self, key: int) -> tuple[int, ...]:
        """Return the entries among which a key is, if it is anywhere."""
        try:
            raw = os.pread(self._handle, _ROW.size, self._place(key))
        except OSError:
            raw = b""
        return _ROW.unpack(raw.ljust(_ROW.size, b"\0"))  # somebody may have cut the file

    def write(self, key: int, entry: int) -> None:
        """Put a key in place of an entry of its row; other processes see the old one or the new one."""
        os.pwrite(self._handle, struct.pack("<Q", key), self._place(key) + 8 * entry)

    def _place(self, key: int) -> int:
        return key % self._rows * _ROW.size


class SeenFiles:
    """Which content files were seen to have; it is open until nobody holds it."""

    def __init__(self, place: Path | None = None) -> None:
        self._memory = _opened(place)
        self._uptime = (boot_id() or os.uname().nodename).encode()

    def has(self, status: os.stat_result, digest: str) -> bool:
        """Tell whether a file of this status was seen to have content of this digest."""
        key = self._key(status, digest)
        return key in self._memory.row(key)

    def keep(self, status: os.stat_result, digest: str) -> None:
        """Remember a file whose content was read after its status; nothing is kept that may change within a tick."""
        if not is_settled(status):
            return
        key, memory = self._key(status, digest), self._memory
        row = memory.row(key)
        if key in row:
            return
        try:
            memory.write(key, row.index(0) if 0 in row else key >> 61)
        except OSError:  # a full disk: this process goes on without it
            self._memory = _opened(None)

    def _key(self, status: os.stat_result, digest: str) -> int:
        facts = _STATUS.pack(*status_of(status)) + digest.encode() + self._uptime
        return xxhash.xxh3_64_intdigest(facts) or 1


def status_of(status: os.stat_result) -> tuple[int, int, int, int, int]:
    """Return what changes whenever the bytes of a file do, or which file it is."""
    return status.st_dev, status.st_ino, status.st_ctime_ns, status.st_size, status.st_mtime_ns


def is_settled(status: os.stat_result) -> bool:
    """Tell whether another write would give the file another status."""
    # The clock of file systems, which is compared with nothing but what they say.
    return time.clock_gettime_ns(time.CLOCK_REALTIME) - status.st_ctime_ns > _SETTLED_NS


def _opened(place: Path | None) -> _Memory:
    """A memory that others share; without a folder, or where it cannot be written, one that only this process has."""
    if place is not None:
        with contextlib.suppress(OSError):
            return _Memory(os.open(place, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600), _ROWS)
    return _Memory(os.memfd_create(_NAME), _ROWS_IN_MEMORY)


@lru_cache(maxsize=64)
def seen_files(state: Path | None) -> SeenFiles:
    """Return the memory that lies in a job's state folder, which all who ask in a process share; or one without a
    name.
    """
    return SeenFiles(None if state is None else state / _NAME)
