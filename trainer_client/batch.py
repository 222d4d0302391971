"""What a consumer gets: the arrays of one minibatch, and which one it is.

The arrays are views into a slot. The last view to go gives the slot back: that is how memory stays bounded without a
copy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

__all__ = ["Batch", "owned"]


class Batch(dict[str, Any]):
    """The arrays of a minibatch by key; `number` in `epoch`; `empty` where a round went past its group's end."""

    __slots__ = ("digest", "empty", "epoch", "masked", "number", "rows")

    def __init__(  # noqa: PLR0913 - what a header says
        self, arrays: dict[str, Any], *, epoch: int, number: int, empty: bool, digest: int, rows: int, masked: int
    ) -> None:
        super().__init__(arrays)
        self.epoch = epoch
        self.number = number
        self.empty = empty
        self.digest = digest
        #: Rows that hold a sample; the others are masked.
        self.rows = rows
        #: Rows masked because their sample could not be used.
        self.masked = masked


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
