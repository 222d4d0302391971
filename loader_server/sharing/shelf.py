"""The last batches built on a machine, in memory that its workers share: a ring, overwritten as it goes.

The file is a memfd of the machine's supervisor, which workers open through /proc, so nothing has a name and nothing can
be left behind. It holds a page with the size of the ring and where the next batch goes, a table with an entry for each
key, and the ring. Rules: an entry is found only under its key, and counts only if its checksums are right, which cover
every byte of facts and payload; so whatever a kill -9, two simultaneous writers or the ring's next round left behind is
not found, and readers need no lock. What cannot be kept at once is not kept. Locks are the kernel's, on bytes past the
file's end: they survive SIGSTOP and go with their process. Nothing here waits for another process, but for a moment for
room.
"""

from __future__ import annotations

import contextlib
import os
import struct
import time
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING

import xxhash

from shared.hashing import digest64
from shared.stores.locks import lock_byte, unlock_byte

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["KEY_BYTES", "Shelf", "Shelved", "make_shelf"]

KEY_BYTES = 16

_PAGE = 4096
_MAGIC = b"stoker-shelf-1\0\0"
#: Magic, bytes of the ring, where the next batch goes in it.
_HEAD = struct.Struct("<16sQQ")
_END_AT = 24
#: Key, where the facts begin in the ring (the payload follows them), bytes of either, a checksum of facts and entry,
#: the payload's digest.
_ENTRY = struct.Struct("<16sQQQQQ8x")
#: Table entries: many more than the ring has room for batches, so that few keys overwrite each other's entry.
_ENTRIES = 2**17
_RING_AT = _PAGE + _ENTRIES * _ENTRY.size

#: The byte to lock while taking room in the ring, and the first of the bytes that stand for claims on batches.
_ROOM_BYTE, _CLAIM_BYTES = 2**61, 2**60

#: Attempts to lock the ring's end, which others hold for microseconds. A holder that is stopped just then keeps the
#: lock, so we give up soon and do not share the batch.
_TRIES, _PAUSE_S = 5, 0.0002

#: A batch larger than the ring divided by this is not kept: it would push most others out.
_MOST_SHARE = 4


@dataclass(frozen=True, slots=True)
class Shelved:
    """A batch whose entry was found: its facts, and the place and digest of its payload, which is not checked yet."""

    facts: bytes
    payload_at: int
    payload_bytes: int
    digest: int


def make_shelf(ring_bytes: int) -> int:
    """Return the memfd of a new shelf with a ring of this many bytes; pages are allocated as they are written.

    Raise an OSError if it cannot be made.
    """
    handle = os.memfd_create("stoker-shelf", os.MFD_CLOEXEC)
    os.ftruncate(handle, _RING_AT + ring_bytes)
    os.pwrite(handle, _HEAD.pack(_MAGIC, ring_bytes, 0), 0)
    return handle


class Shelf:
    """One worker's opening of the shelf, which may hold one claim at a time.

    For one thread, except that any thread may `find`.
    """

    def __init__(self, path: str) -> None:
        """Open the shelf at this path; raise an OSError that says why if there is none."""
        self._handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        magic, self.ring_bytes, _ = _HEAD.unpack(os.pread(self._handle, _HEAD.size, 0).ljust(_HEAD.size, b"\0"))
        if magic != _MAGIC:
            os.close(self._handle)
            raise OSError(f"{path} is no shelf of built batches")
        self._claimed: int | None = None
        #: Whether memory ran out; from then on nothing more is kept.
        self.is_full = False
        _close_in_children(self)

    def find(self, key: bytes) -> Shelved | None:
        """Return the facts of the batch with this key and the place of its payload; None if there is no valid entry.

        The payload is not looked at. An OSError of reading passes through, as after `close`.
        """
        entry = os.pread(self._handle, _ENTRY.size, _entry_at(key))
        named, at, facts_bytes, payload_bytes, check, digest = _ENTRY.unpack(entry)
        # The entry may be another key's, or torn: check its bounds before memory is taken for it.
        if named != key or at + facts_bytes + payload_bytes > self.ring_bytes:
            return None
        facts = os.pread(self._handle, facts_bytes, _RING_AT + at)
        if _check(key, facts, payload_bytes, digest) != check:
            return None
        return Shelved(facts, _RING_AT + at + facts_bytes, payload_bytes, digest)

    def copy(self, kept: Shelved, payload: NDArray[np.uint8]) -> bool:
        """Copy a payload and return True; return False if it was overwritten, or `payload` has another size.

        The bytes in `payload` are undefined if it was overwritten. An OSError of reading passes through.
        """
        if payload.nbytes != kept.payload_bytes:
            return False
        # The digest is checked after copying, over the copy: the ring may wrap around while we copy.
        is_whole = os.preadv(self._handle, [payload.data], kept.payload_at) == payload.nbytes
        return is_whole and digest64(payload.data) == kept.digest

    def put(self, key: bytes, facts: bytes, payload: NDArray[np.uint8], digest: int) -> bool:
        """Keep a batch with the digest of its payload; return False if there is no room or no memory for it, else True.

        There is none for a batch above a quarter of the ring, while others hold the ring's end for too long, and for
        any batch once writing one has failed, as without memory. An OSError of locking or moving the ring's end passes
        through.
        """
        nbytes = len(facts) + payload.nbytes
        at = self._take_room(nbytes) if not self.is_full and nbytes <= self.ring_bytes // _MOST_SHARE else None
        if at is None:
            return False
        check = _check(key, facts, payload.nbytes, digest)
        try:
            # Data first, then the entry: a writer that is killed in between leaves an entry that fails its checks, or
            # the one before.
            is_whole = os.pwritev(self._handle, [facts, payload.data], _RING_AT + at) == nbytes
            if is_whole:
                entry = _ENTRY.pack(key, at, len(facts), payload.nbytes, check, digest)
                os.pwrite(self._handle, entry, _entry_at(key))
        except OSError:  # no memory for it
            self.is_full = True
            return False
        return is_whole

    def _take_room(self, nbytes: int) -> int | None:
        """Return where in the ring this many bytes may be written; None if others hold the lock for too long.

        An OSError of locking, reading or writing passes through.
        """
        for _ in range(_TRIES):
            if lock_byte(self._handle, _ROOM_BYTE):
                try:
                    (at,) = struct.unpack("<Q", os.pread(self._handle, 8, _END_AT))
                    at = at if at + nbytes <= self.ring_bytes else 0
                    # The end moves before anything is written there, so no two writers get the same room. A writer that
                    # is killed next leaves a hole without an entry.
                    os.pwrite(self._handle, struct.pack("<Q", at + nbytes), _END_AT)
                    return int(at)
                finally:
                    unlock_byte(self._handle, _ROOM_BYTE)
            time.sleep(_PAUSE_S)
        return None

    # --- claims ---

    def claim(self, key: bytes) -> bool:
        """Claim the batch of this key for this worker until `release`; return False if another worker has the claim.

        Two keys may share a lock; then the second worker only builds its batch later. An earlier claim has to be
        released first, which is not checked. Raise an OSError if the file cannot be locked.
        """
        # 56 bits of the key, so that all claims lie below `_ROOM_BYTE`.
        byte = _CLAIM_BYTES + int.from_bytes(key[:7], "little")
        if not lock_byte(self._handle, byte):
            return False
        self._claimed = byte
        return True

    def release(self) -> None:
        """Give the claim back, if there is one."""
        if self._claimed is not None:
            unlock_byte(self._handle, self._claimed)
            self._claimed = None

    def close(self) -> None:
        """Close the file, which ends a claim; closing again does nothing."""
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)


def _entry_at(key: bytes) -> int:
    return _PAGE + int.from_bytes(key[-4:], "little") % _ENTRIES * _ENTRY.size


def _check(key: bytes, facts: bytes, payload_bytes: int, digest: int) -> int:
    """Return the checksum of an entry and its facts; the payload has a digest of its own."""
    return xxhash.xxh3_64_intdigest(b"".join((key, facts, struct.pack("<QQ", payload_bytes, digest))))


def _close_in_children(shelf: Shelf) -> None:
    """Have the shelf closed in children forked later: one that outlives a killed worker would keep its claims."""
    reference = weakref.ref(shelf)

    def close() -> None:
        opened = reference()
        if opened is not None:
            with contextlib.suppress(OSError):
                opened.close()

    os.register_at_fork(after_in_child=close)
