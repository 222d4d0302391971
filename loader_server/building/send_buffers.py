"""Memory for batches sent by TCP: the buffers they are built in, and their encoded and sealed forms.

Rules: buffers are reused, because fresh pages cost more than a copy; the building thread takes them, and the poll loop
gives them back once the socket has finished with them; one that gets lost is simply replaced. Their total is bounded:
the more are in use, the fewer are kept for later, and those unused for longest go back to the system first.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING

import numpy as np

from shared.huge_pages import HUGE_PAGE, map_anonymous
from shared.wire.payload import encode_payload
from shared.wire.sealing import TAG_BYTES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shared.wire.batch_layout import Layout
    from shared.wire.payload import PayloadEncoding
    from shared.wire.sealing import Sealer

__all__ = ["SendBuffers"]


class SendBuffers:
    """Pool of buffers made of whole huge pages; smaller batches get fresh memory, which is not worth keeping."""

    def __init__(self, encoding: PayloadEncoding, most_bytes: int) -> None:
        self._encoding = encoding
        self._most_bytes = most_bytes
        #: Free buffers, in the order in which they were given back.
        self._free: list[NDArray[np.uint8]] = []
        #: Bytes of all buffers, in use or free.
        self.mapped_bytes = 0
        # Reentrant: dropping a free buffer under the lock runs its finaliser, `_note_gone`, which takes the lock again.
        self._lock = threading.RLock()

    @property
    def encodes(self) -> bool:
        """Whether encoding a payload makes a copy of it."""
        return not self._encoding.plain

    def encode(self, payload: NDArray[np.uint8], layout: Layout) -> memoryview:
        """Return the encoded form of a built payload; its own bytes if the encoding is plain.

        Raise SettingsError if the library of the compression is missing.
        """
        return encode_payload(payload, layout, self._encoding)

    def seal(self, sealer: Sealer, sent: memoryview) -> tuple[int, NDArray[np.uint8]]:
        """Seal encoded bytes into a buffer of their own; return the seal's number and the sealed bytes.

        Raise OSError if no memory can be mapped for it.
        """
        buffer = self.take(sent.nbytes + TAG_BYTES)
        return sealer.seal_payload(sent, buffer), buffer

    def take(self, nbytes: int) -> NDArray[np.uint8]:
        """Return a buffer of this many bytes, with arbitrary content; raise OSError if no memory can be mapped."""
        if nbytes < HUGE_PAGE:
            return np.empty(nbytes, np.uint8)
        # Rounded up to whole huge pages, so that batches of almost the same size reuse each other's buffers.
        size = -(-nbytes // HUGE_PAGE) * HUGE_PAGE
        with self._lock:
            fit = [at for at, buffer in enumerate(self._free) if buffer.nbytes == size]
            buffer = self._free.pop(fit[-1]) if fit else None  # the last one may still be in the processor's cache
            return (buffer if buffer is not None else self._make(size))[:nbytes]

    def _make(self, size: int) -> NDArray[np.uint8]:
        """Map a new buffer, dropping free ones if the total would exceed the bound; raise OSError if mapping fails."""
        # Make room first, so that the total stays within the bound as long as free buffers can be dropped.
        self._keep_within(self._most_bytes - size)
        buffer = map_anonymous(size)
        self.mapped_bytes += size
        # A buffer that is never given back is still unmapped with its array; this keeps the total right.
        weakref.finalize(buffer, self._note_gone, size).atexit = False
        return buffer

    def _note_gone(self, size: int) -> None:
        with self._lock:
            self.mapped_bytes -= size

    def _keep_within(self, nbytes: int) -> None:
        # From the front: these were given back first, so they have been unused for longest.
        while self._free and self.mapped_bytes > nbytes:
            del self._free[0]

    def give_back(self, buffer: NDArray[np.uint8]) -> None:
        """Put a buffer that no one references back into the pool; small ones are left to the garbage collector.

        If all buffers together exceed the bound, free ones are dropped, those unused for longest first.
        """
        # `take` lent a slice, whose base is the whole buffer. Small memory is no slice, and is not kept.
        whole = buffer.base
        if not isinstance(whole, np.ndarray):
            return
        with self._lock:
            self._free.append(whole)
            self._keep_within(self._most_bytes)
