"""Strings of a batch as the bytes of one tensor: how many there are, where each ends, and their bytes.

The tensor begins with two integers of four bytes: how many strings there are, and after how many bytes each of them
ends; their UTF-8 follows, and zeros up to the tensor's end. A batch has a number of strings for each row, the same for
all: one, or in packed rows as many as the fullest row has samples, with empty ones behind. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shared.wire.batch_layout import Layout

__all__ = ["MOST_BYTES", "StringArray", "arrays_of", "bytes_needed", "read_strings", "room_for", "write_strings"]

#: The most bytes that the strings of one key may take in a batch, as their ends are 32-bit integers.
MOST_BYTES = 2**31 - 1

_INTEGER = np.dtype("<i4")
#: A tensor's bytes are a multiple of this, or of an eighth of a power of two, so that batches of one stream have few
#: layouts.
_LEAST_ROOM = 512


def bytes_needed(strings: int, nbytes: int) -> int:
    """Return the bytes of a tensor for so many strings, which have so many bytes together."""
    return _INTEGER.itemsize * (1 + strings) + nbytes


def room_for(needed: int, most: int) -> int:
    """Return the bytes that a tensor gets which needs so many: up to an eighth or 511 more, but not above `most`."""
    step = max(_LEAST_ROOM, 1 << needed.bit_length() >> 4)
    return min(-(-needed // step) * step, most)


def write_strings(sizes: NDArray[np.int64], text: NDArray[np.uint8], tensor: NDArray[np.uint8]) -> None:
    """Write strings of these sizes, given one after another as `text`, over all bytes of a tensor.

    Raise ValueError, with nothing written, if they need more of them.
    """
    count = len(sizes)
    start = bytes_needed(count, 0)
    stop = start + len(text)
    if stop > len(tensor):
        raise ValueError(f"strings that take {stop} bytes do not fit into {len(tensor)}")
    integers = tensor[:start].view(_INTEGER)
    integers[0] = count
    sizes.cumsum(out=integers[1:])
    tensor[start:stop] = text
    tensor[stop:] = 0


class StringArray(Sequence[Any]):
    """The strings of a batch: one for each row or, in packed rows, a list of as many as the fullest row has samples.

    They are decoded when they are first looked at, and once. `np.asarray` makes an array of objects of them, `tolist`
    a list. Looking at them raises ValueError if the bytes are no such tensor, or not UTF-8.
    """

    __slots__ = ("_array", "_shape", "_tensor")

    def __init__(self, tensor: NDArray[np.uint8], shape: tuple[int, ...]) -> None:
        self._tensor = tensor
        self._shape = shape
        self._array: NDArray[np.object_] | None = None

    def __array__(self, dtype: Any = None, copy: Any = None) -> NDArray[Any]:
        if self._array is None:
            self._array = _as_array(_texts(*_ends_and_text(self._tensor)), self._shape)
        return np.array(self._array, dtype, copy=copy)

    def as_bytes(self) -> NDArray[np.object_]:
        """Return the strings as an array of `bytes` objects, their UTF-8; raise ValueError if there are none."""
        return _as_array(read_strings(self._tensor), self._shape)

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of the array that they make; raise ValueError if the bytes are no strings."""
        return np.asarray(self).shape

    def tolist(self) -> list[Any]:
        """Return the strings as a list with an entry for each row; raise ValueError if there are none."""
        return np.asarray(self).tolist()  # type: ignore[no-any-return] # a list, as the array has axes

    def __len__(self) -> int:
        return self._shape[0]

    def __getitem__(self, at: Any) -> Any:
        return np.asarray(self)[at]

    def __contains__(self, value: object) -> bool:
        # By all strings at once: the rows of packed batches are arrays, which have no truth.
        return bool((np.asarray(self) == value).any())

    def __eq__(self, other: object) -> Any:
        return np.asarray(self) == np.asarray(other)

    def __ne__(self, other: object) -> Any:
        # Python would take the opposite of what `__eq__` returns, and an array has none.
        return np.asarray(self) != np.asarray(other)

    __hash__ = None  # type: ignore[assignment] # like an array

    def __repr__(self) -> str:
        return repr(np.asarray(self))


def read_strings(tensor: NDArray[np.uint8]) -> list[bytes]:
    """Return the strings of all rows, one row after another; raise ValueError for bytes that are no such tensor."""
    ends, text = _ends_and_text(tensor)
    return [text[before:end] for before, end in pairwise(ends)]


def _texts(ends: Sequence[int], raw: bytes) -> list[str]:
    """Return the texts between these places; raise a UnicodeDecodeError if one is not UTF-8."""
    if raw.isascii():
        # Where each character is a byte, all are decoded at once: in a third of the time.
        text = raw.decode()
        return [text[before:end] for before, end in pairwise(ends)]
    return [raw[before:end].decode() for before, end in pairwise(ends)]


def _ends_and_text(tensor: NDArray[np.uint8]) -> tuple[list[int], bytes]:
    """Return 0 and where each string ends in the text, and the text; raise ValueError for bytes that are none."""
    first = _INTEGER.itemsize
    count = int(tensor[:first].view(_INTEGER)[0]) if len(tensor) >= first else -1
    start = bytes_needed(count, 0)
    if count < 0 or start > len(tensor):
        raise ValueError(f"{count} strings in {len(tensor)} bytes")
    ends = [0, *tensor[first:start].view(_INTEGER).tolist()]
    # Sorting what is sorted is quicker than looking at each pair.
    if sorted(ends) != ends or ends[-1] > len(tensor) - start:
        raise ValueError(f"strings that end at {ends[-1]} of {len(tensor) - start} bytes, or before they begin")
    return ends, tensor[start : start + ends[-1]].tobytes()


def _as_array(strings: Sequence[str | bytes], shape: tuple[int, ...]) -> NDArray[np.object_]:
    array = np.empty(len(strings), object)
    array[:] = strings
    return array.reshape(shape)


def arrays_of(layout: Layout, payload: NDArray[np.uint8]) -> dict[str, Any]:
    """Return views of a payload's tensors by key, and its strings."""
    arrays: dict[str, Any] = layout.arrays(payload)
    for tensor in layout.strings:
        arrays[tensor.key] = StringArray(arrays[tensor.key], tensor.shape)
    return arrays
