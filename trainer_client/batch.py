"""What a consumer gets: the arrays of one minibatch, and which one it is.

The arrays are views into a slot. The last view to go gives the slot back: that is how memory stays bounded without a
copy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from shared.hashing import digest64

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from shared.messages import Pushed

__all__ = ["Batch", "owned"]


class Batch(dict[str, Any]):
    """The arrays of a minibatch by key; `number` in `epoch`; `empty` where a round went past its group's end."""

    __slots__ = ("_digest", "_payload", "empty", "epoch", "masked", "number", "rows")

    def __init__(self, arrays: dict[str, Any], payload: NDArray[np.uint8], header: Pushed) -> None:
        super().__init__(arrays)
        self.epoch = header.epoch
        self.number = header.number
        self.empty = header.empty
        #: Rows that hold a sample; the others are masked.
        self.rows = header.rows
        #: Rows masked because their sample could not be used.
        self.masked = header.masked
        self._digest = header.digest
        self._payload = payload

    @property
    def digest(self) -> int:
        """xxh3-64 of all its bytes: as the worker wrote it, or counted now where none had been asked for."""
        return self._digest or digest64(self._payload.data)


class _Owner:
    """Owns a slot's bytes on behalf of all views of them; its end is the slot's return."""

    __slots__ = ("__array_interface__", "_give_back", "_keeps")

    def __init__(self, data: NDArray[np.uint8], give_back: Callable[[], None]) -> None:
        self.__array_interface__ = data.__array_interface__
        self._keeps = data  # and with it the memory map
        self._give_back = give_back

    def __del__(self) -> None:
        self._give_back()


def owned(data: NDArray[np.uint8], give_back: Callable[[], None]) -> NDArray[np.uint8]:
    """The same bytes; `give_back` is called, in whichever thread drops it, once no view of the result is left."""
    return np.asarray(_Owner(data, give_back))
