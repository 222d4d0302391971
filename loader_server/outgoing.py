"""What goes by TCP: memory that batches are built in, and the packed and sealed forms of them.

Rules: memory is used again, because fresh pages cost more than a copy; the building thread takes, the poll loop gives
back once the socket is through with it; what is lost on the way is only made anew. What is kept is bounded by what was
once in use at a time, which the worker's queue bounds.
"""

from __future__ import annotations

from collections import deque
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

    def __init__(self, packing: Packing) -> None:
        self._packing = packing
        self._free: dict[int, deque[NDArray[np.uint8]]] = {}

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
        try:
            return self._free[size].pop()[:nbytes]
        except (KeyError, IndexError):
            return anonymous(size)[:nbytes]

    def give_back(self, buffer: NDArray[np.uint8]) -> None:
        """Nobody looks into it any more."""
        whole = buffer.base
        if isinstance(whole, np.ndarray):
            self._free.setdefault(whole.nbytes, deque()).append(whole)
