"""Strings of a batch as the bytes of one tensor: how many there are, where each ends, and their bytes.

The tensor begins with two integers of four bytes: how many strings there are, and after how many bytes each of them
ends; their UTF-8 follows, and zeros up to the tensor's end. A batch has a number of strings for each row, the same for
all: one, or in packed rows as many as the fullest row has samples, with empty ones behind. Pure.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shared.wire.batch_layout import Layout

__all__ = ["MOST_BYTES", "arrays_of", "bytes_needed", "encoded_room", "read_strings", "string_array", "write_strings"]

#: The most bytes that the strings of one key may take in a batch, as their ends are 32-bit integers.
MOST_BYTES = 2**31 - 1

_INTEGER = np.dtype("<i4")
#: A tensor's bytes are a power of two times this, so that batches of one stream have few layouts.
_LEAST_ROOM = 512


def bytes_needed(strings: int, nbytes: int) -> int:
    """Return the bytes of a tensor for so many strings, which have so many bytes together."""
    return _INTEGER.itemsize * (1 + strings) + nbytes


def encoded_room(needed: int, most: int) -> int:
    """Return the bytes that a tensor gets which needs so many: up to twice as many, but not above `most`."""
    room = _LEAST_ROOM
    while room < needed:
        room *= 2
    return min(room, most)


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
    np.cumsum(sizes, out=integers[1:])
    tensor[start:stop] = text
    tensor[stop:] = 0


def read_strings(tensor: NDArray[np.uint8]) -> list[bytes]:
    """Return the strings of all rows, one row after another; raise ValueError for bytes that are no such tensor."""
    ends, text = _ends_and_text(tensor)
    return [text[before:end] for before, end in pairwise(ends)]


def _ends_and_text(tensor: NDArray[np.uint8]) -> tuple[list[int], bytes]:
    """Return 0 and where each string ends in the text, and the text; raise ValueError for bytes that are none."""
    first = _INTEGER.itemsize
    count = int(tensor[:first].view(_INTEGER)[0]) if len(tensor) >= first else -1
    start = bytes_needed(count, 0)
    if count < 0 or start > len(tensor):
        raise ValueError(f"{count} strings in {len(tensor)} bytes")
    integers = tensor[first:start].view(_INTEGER)
    ends = [0, *integers.tolist()]
    # Sorting what is sorted is quicker than looking at each pair.
    if sorted(ends) != ends or ends[-1] > len(tensor) - start:
        raise ValueError(f"strings that end at {ends[-1]} of {len(tensor) - start} bytes, or before they begin")
    return ends, tensor[start : start + ends[-1]].tobytes()


def string_array(tensor: NDArray[np.uint8], shape: tuple[int, ...], *, as_bytes: bool = False) -> NDArray[np.object_]:
    """Return the strings of a tensor of this shape as an array of `str` objects, or of `bytes` objects.

    Raise ValueError for bytes that are no such tensor, or, without `as_bytes`, not UTF-8.
    """
    ends, raw = _ends_and_text(tensor)
    array = np.empty(len(ends) - 1, object)
    if as_bytes:
        array[:] = [raw[before:end] for before, end in pairwise(ends)]
    elif raw.isascii():
        # Where each character is a byte, all are decoded at once: in a third of the time.
        text = raw.decode()
        array[:] = [text[before:end] for before, end in pairwise(ends)]
    else:
        array[:] = [raw[before:end].decode() for before, end in pairwise(ends)]
    return array.reshape(shape)


def arrays_of(layout: Layout, payload: NDArray[np.uint8]) -> dict[str, NDArray[Any]]:
    """Return views of a payload's tensors by key, and its strings as arrays of `str` objects.

    Raise what `string_array` raises.
    """
    arrays: dict[str, NDArray[Any]] = layout.arrays(payload)
    return arrays | {tensor.key: string_array(arrays[tensor.key], tensor.shape) for tensor in layout.strings}
