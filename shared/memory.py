"""Shared memory without names: a memfd that the trainer owns, and a lock that proves that a writer is alive.

The file holds one page with a nonce, then slots of equal size. A worker opens it through /proc/<pid>/fd/<n> and takes
an open file description lock on one byte of the first page. Such a lock survives SIGSTOP and goes with the process,
even with kill -9; process ids would not prove it, because a zombie keeps its id and ids are reused. Nothing has a name
in /dev/shm, so nothing can be left behind.

The lock lasts as long as anybody holds that opening of the file: a descriptor, or a mapping made through it. A worker
keeps only its mapping, which no child inherits, so a child that a transform left behind neither holds the lock nor can
write.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from shared.huge_pages import HUGE_PAGE, collapse, drop_pages, keep_from_children, map_anonymous, map_file
from shared.stores.locks import is_byte_locked, lock_byte
from shared.wire.message_parts import SharedSlots

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["OpenedSlots", "SlotMemory", "boot_id"]

_PAGE = 4096
_NAME = "stoker-slots"
_NONCE_BYTES = 16

#: Held while a descriptor with the lock is open: a child forked just then would inherit the descriptor, and the lock
#: with it, and the worker would seem to be alive after its death.
_no_forks = threading.Lock()
os.register_at_fork(before=_no_forks.acquire, after_in_parent=_no_forks.release, after_in_child=_no_forks.release)


def boot_id() -> str:
    """Return an id that two processes share exactly if they run on one host since the same boot; "" if unknown."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


class SlotMemory:
    """Slots on the trainer's side: `slots` page-aligned buffers of at least `slot_bytes`, which workers may open.

    Where the system provides no memfd they are private memory, and batches have to come by TCP. Making it raises
    OSError if that memory cannot be mapped either.
    """

    def __init__(self, slots: int, slot_bytes: int) -> None:
        self.slots = slots
        self.slot_bytes = -(-max(slot_bytes, 1) // _PAGE) * _PAGE
        size = _PAGE + slots * self.slot_bytes
        # A descriptor's number alone proves nothing: in another PID namespace it is another process' file.
        self._nonce = secrets.token_bytes(_NONCE_BYTES)
        self._fd: int | None = None
        #: Why workers cannot open the slots; empty if they can.
        self.why_not_shared = ""
        try:
            self._bytes: NDArray[np.uint8] | None = self._make_shareable(size)
        except (AttributeError, OSError) as error:  # no memfd in this Python, or none from this kernel
            self._close_file()
            self.why_not_shared = f"no shared memory can be made: {error}"
            self._bytes = map_anonymous(size)
        self._collapsed = [0] * slots

    def _make_shareable(self, size: int) -> NDArray[np.uint8]:
        """Create and map the memfd; raise AttributeError or OSError where that is impossible.

        It is sealed against resizing, because a worker that writes behind the end of a shrunk file is killed by SIGBUS.
        """
        self._fd = os.memfd_create(_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self._fd, size)
        # After ftruncate, which a seal against growth would refuse.
        fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        os.pwrite(self._fd, self._nonce, 0)
        return map_file(self._fd, size)

    @property
    def shareable(self) -> bool:
        """Return whether workers can open the slots."""
        return not self.why_not_shared

    def slot(self, slot: int) -> NDArray[np.uint8]:
        """Return a writable view of all bytes of a slot; the memory must be open, and the number one of a slot."""
        assert self._bytes is not None, "closed"
        start = _PAGE + slot * self.slot_bytes
        return self._bytes[start : start + self.slot_bytes]

    def note_written(self, slot: int, nbytes: int) -> None:
        """Collapse the slot's first `nbytes`, now written, into huge pages, so that the next write is faster.

        Only bytes not collapsed before are, and only once they span a huge page: pages that were never written have no
        memory to collapse.
        """
        done = self._collapsed[slot]
        if nbytes >= done + HUGE_PAGE:
            self._collapsed[slot] = nbytes
            collapse(self.slot(slot)[done:nbytes])

    def drop(self, slot: int) -> bool:
        """Give a slot's pages back to the system, which has zeros there until it is written again.

        Nobody may use the slot meanwhile. Return False if the system keeps the pages.
        """
        self._collapsed[slot] = 0
        return drop_pages(self.slot(slot), of_file=self.shareable)

    def offer(self, lock_byte: int) -> SharedSlots | None:
        """Return what a worker needs to open the slots, with its own `lock_byte`.

        Return None if the slots cannot be shared, or are closed.
        """
        if self._fd is None:
            return None
        return SharedSlots(
            boot_id(), os.getuid(), os.getpid(), self._fd, self._nonce, self.slots, self.slot_bytes, lock_byte
        )  # fmt: skip

    def is_locked(self, lock_byte: int) -> bool:
        """Return whether a living process holds this lock byte; False if the slots cannot be shared or are closed."""
        return self._fd is not None and is_byte_locked(self._fd, lock_byte)

    def close(self) -> None:
        """Close the file; memory that a consumer still views lives until the last view is gone."""
        self._close_file()
        self._bytes = None

    def _close_file(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


class OpenedSlots:
    """Slots on the worker's side: a trainer's slots, opened, verified by their nonce, and locked.

    Making it raises OSError if shared memory cannot be used.
    """

    def __init__(self, offer: SharedSlots) -> None:
        """Open the offered slots; raise OSError with the reason if shared memory cannot be used."""
        _require(offer.boot_id != "" and offer.boot_id == boot_id(), "the trainer runs on another host")
        _require(offer.uid == os.getuid(), f"the trainer runs as user {offer.uid}, this worker as {os.getuid()}")
        # A short nonce, or one of zeros, could match a file that is not the trainer's.
        has_nonce = len(offer.nonce) == _NONCE_BYTES and any(offer.nonce)
        _require(has_nonce, "the offer has no nonce: the file could be anybody's")
        self.offer = offer
        # While the descriptor is open, no child may be forked: see `_no_forks`.
        with _no_forks:
            fd = _open_slots(offer)
            try:
                self._bytes: NDArray[np.uint8] | None = _map_and_lock(fd, offer)
            finally:
                os.close(fd)

    def slot(self, slot: int, nbytes: int) -> NDArray[np.uint8]:
        """Return the first `nbytes` bytes of a slot, for writing; raise ValueError if closed, or outside the slots."""
        slots, slot_bytes, memory = self.offer.slots, self.offer.slot_bytes, self._bytes
        if memory is None:
            raise ValueError("these slots were let go of")
        if not 0 <= slot < slots or nbytes > slot_bytes:
            raise ValueError(f"slot {slot} with {nbytes} bytes is outside {slots} slots of {slot_bytes}")
        start = _PAGE + slot * slot_bytes
        return memory[start : start + nbytes]

    def close(self) -> None:
        """Drop memory and lock; a view that is still alive keeps both, because it could be written through."""
        self._bytes = None


def _require(is_met: bool, reason: str) -> None:  # noqa: FBT001 - as of `assert`
    """Raise OSError with this reason unless a condition is met; the trainer then gets its batches by TCP."""
    if not is_met:
        raise OSError(reason)


def _open_slots(offer: SharedSlots) -> int:
    """Open the offered file once it is known to be a trainer's memfd; raise OSError otherwise.

    Looking through O_PATH first opens nothing: opening a pipe or a device may block, or do harm.
    """
    looked_at = os.open(f"/proc/{offer.pid}/fd/{offer.fd}", os.O_PATH | os.O_CLOEXEC)
    try:
        here = Path(f"/proc/self/fd/{looked_at}")
        # In another PID namespace the same number is another process, and its descriptor another file.
        is_ours = str(here.readlink()) == f"/memfd:{_NAME} (deleted)"
        _require(is_ours, "the offered file is no trainer's memory: another process stands behind that number here")
        return os.open(here, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    finally:
        os.close(looked_at)


def _map_and_lock(fd: int, offer: SharedSlots) -> NDArray[np.uint8]:
    """Map the verified slots for this process alone and lock them; the lock lasts as long as the mapping.

    Raise OSError if the file is not sealed, has another size or nonce, cannot be mapped, or if the lock is held.
    """
    size = _PAGE + offer.slots * offer.slot_bytes
    is_sealed, has_nonce = _cannot_shrink(fd), os.pread(fd, _NONCE_BYTES, 0) == offer.nonce
    _require(is_sealed, "the offered file is no sealed memfd: a process that shrinks it would kill this worker")
    _require(os.fstat(fd).st_size == size, "the offered file has another size than its slots")
    _require(has_nonce, "the offered file carries another nonce: another process stands behind that number here")
    # Mapped before it is locked: the mapping keeps the lock once the descriptor is closed.
    memory = map_file(fd, size)
    keep_from_children(memory)
    if not lock_byte(fd, offer.lock_byte):
        raise OSError(f"lock byte {offer.lock_byte} is held: the worker before this one still lives")
    return memory


def _cannot_shrink(fd: int) -> bool:
    with contextlib.suppress(OSError):  # only a memfd has seals
        return bool(fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK)
    return False
