"""Shared memory without names: a memfd that the trainer owns, and the lock that proves a writer's life.

The file: one page with a nonce, then slots of equal size. A worker opens it through /proc/<pid>/fd/<n> and holds an
open file description lock on one byte of the first page. Such a lock survives SIGSTOP and goes with the process, kill
-9 included; process ids lie about zombies and reuse. Nothing has a name in /dev/shm, so nothing can be left behind.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import struct
from pathlib import Path
from typing import TYPE_CHECKING

from shared.mapping import HUGE_PAGE, collapse, mapped
from shared.messages import SharedSlots

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Attachment", "SlotMemory", "boot_id"]

_PAGE = 4096
_FLOCK = "hhqqi4x"  # struct flock of Linux on 64 bits: type, whence, start, length, pid


def boot_id() -> str:
    """Equal on both sides exactly when they run on one host since its last start."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


class SlotMemory:
    """The trainer's side: `slots` buffers of at least `slot_bytes`, page-aligned, that workers may be let into."""

    def __init__(self, slots: int, slot_bytes: int) -> None:
        self.slots = slots
        self.slot_bytes = -(-max(slot_bytes, 1) // _PAGE) * _PAGE
        size = _PAGE + slots * self.slot_bytes
        self._fd = os.memfd_create("stoker-slots", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self._fd, size)
        fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        self._nonce = secrets.token_bytes(16)
        os.pwrite(self._fd, self._nonce, 0)
        self._bytes = mapped(self._fd, size)
        self._collapsed = [0] * slots

    def slot(self, slot: int) -> NDArray[np.uint8]:
        """All bytes of a slot."""
        start = _PAGE + slot * self.slot_bytes
        return self._bytes[start : start + self.slot_bytes]

    def was_written(self, slot: int, nbytes: int) -> None:
        """So many bytes of the slot have pages now: the next writing of them is to be faster."""
        done = self._collapsed[slot]
        if nbytes >= done + HUGE_PAGE:
            self._collapsed[slot] = nbytes
            collapse(self.slot(slot)[done:nbytes])

    def offer(self, lock_byte: int) -> SharedSlots:
        """What a worker has to know to open the slots; `lock_byte` is its own."""
        return SharedSlots(
            boot_id(), os.getuid(), os.getpid(), self._fd, self._nonce, self.slots, self.slot_bytes, lock_byte
        )  # fmt: skip

    def is_locked(self, lock_byte: int) -> bool:
        """Whether a living process holds this lock byte."""
        wish = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, lock_byte, 1, 0)
        answer = fcntl.fcntl(self._fd, fcntl.F_OFD_GETLK, wish)
        return bool(struct.unpack(_FLOCK, answer)[0] != fcntl.F_UNLCK)

    def close(self) -> None:
        """Give up the file; memory that a consumer still looks at lives until it looks away."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            del self._bytes


class Attachment:
    """The worker's side: a trainer's slots, opened, proved to be the right ones, and locked."""

    def __init__(self, offer: SharedSlots) -> None:
        """Raises OSError, saying why, where shared memory cannot be had."""
        if not offer.boot_id or offer.boot_id != boot_id():
            raise OSError("the trainer runs on another host")
        if offer.uid != os.getuid():
            raise OSError(f"the trainer runs as user {offer.uid}, this worker as {os.getuid()}")
        self._fd = os.open(f"/proc/{offer.pid}/fd/{offer.fd}", os.O_RDWR | os.O_CLOEXEC)
        try:
            self._open(offer)
        except (OSError, ValueError):
            os.close(self._fd)
            raise
        self.slots = offer.slots
        self._slot_bytes = offer.slot_bytes

    def _open(self, offer: SharedSlots) -> None:
        size = _PAGE + offer.slots * offer.slot_bytes
        if not _cannot_shrink(self._fd):
            raise OSError("the offered file is no sealed memfd: whoever shrinks it would kill this worker")
        if os.fstat(self._fd).st_size != size:
            raise OSError("the offered file has another size than its slots")
        if os.pread(self._fd, 16, 0) != offer.nonce:
            raise OSError("the offered file carries another nonce: another process stands behind that number here")
        lock = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, offer.lock_byte, 1, 0)
        try:
            fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, lock)
        except BlockingIOError:
            raise OSError(f"lock byte {offer.lock_byte} is held: the worker before this one still lives") from None
        self._bytes = mapped(self._fd, size)

    def slot(self, slot: int, nbytes: int) -> NDArray[np.uint8]:
        """The first bytes of a slot, to be written."""
        if not 0 <= slot < self.slots or nbytes > self._slot_bytes:
            raise ValueError(f"slot {slot} with {nbytes} bytes is outside {self.slots} slots of {self._slot_bytes}")
        start = _PAGE + slot * self._slot_bytes
        return self._bytes[start : start + nbytes]

    def close(self) -> None:
        """Let go of memory and lock; a view that is still alive keeps both, for it could be written through."""
        if self._fd >= 0:
            del self._bytes
            os.close(self._fd)
            self._fd = -1


def _cannot_shrink(fd: int) -> bool:
    with contextlib.suppress(OSError):  # what is no memfd has no seals
        return bool(fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK)
    return False
