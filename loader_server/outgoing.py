"""What goes by TCP: memory that batches are built in, and the packed and sealed forms of them.

Rules: memory is used again, because fresh pages cost more than a copy; the building thread takes, the poll loop gives
back once the socket is through with it; what is lost on the way is only made anew. What is kept for later is bounded:
beyond that, what nobody asked for the longest goes back to the system.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np

from shared.mapping import HUGE_PAGE, anonymous
from shared.packing import pack
from shared.sealing import TAG_BYTES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shared.layout import Layout
    from shared.packing import Packing
    from shared.sealing import Sealer

__all__ = ["Outgoing"]


class Outgoing:
    """Buffers of whole huge pages; smaller batches are not worth keeping memory for."""

    def __init__(self, packing: Packing, keep_bytes: int) -> None:
        self._packing = packing
        self._keep_bytes = keep_bytes
        #: Free ones, in the order in which they came back.
        self._free: list[NDArray[np.uint8]] = []
        self._lock = threading.Lock()

    @property
    def packs(self) -> bool:
        """Whether what is sent of a payload lies elsewhere than the payload."""
        return not self._packing.plain

    def packed(self, payload: NDArray[np.uint8], layout: Layout) -> memoryview:
        """What is sent of a built payload; where nothing is packed, its own bytes."""
        return pack(payload, layout, self._packing)

    def sealed(self, sealer: Sealer, sent: memoryview) -> tuple[int, NDArray[np.uint8]]:
        """The same under a key, and its number."""
        buffer = self.take(sent.nbytes + TAG_BYTES)
        return sealer.payload(sent, buffer), buffer

    def take(self, nbytes: int) -> NDArray[np.uint8]:
        """So many bytes, whatever is in them."""
        if nbytes < HUGE_PAGE:
            return np.empty(nbytes, np.uint8)
        size = -(-nbytes // HUGE_PAGE) * HUGE_PAGE
        with self._lock:
            fit = [at for at, one in enumerate(self._free) if one.nbytes == size]
            buffer = self._free.pop(fit[-1]) if fit else None  # the last one may still be in the processor's cache
        return (buffer if buffer is not None else anonymous(size))[:nbytes]

    def give_back(self, buffer: NDArray[np.uint8]) -> None:
        """Nobody looks into it any more."""
        whole = buffer.base
        if not isinstance(whole, np.ndarray):
            return
        with self._lock:
            self._free.append(whole)
            while self.kept_bytes > self._keep_bytes:
                del self._free[0]

    @property
    def kept_bytes(self) -> int:
        """Bytes of free buffers."""
        return sum(one.nbytes for one in self._free)
