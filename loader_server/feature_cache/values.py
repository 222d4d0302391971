"""A sample's values as bytes: numpy arrays and numbers, strings and plain numbers. Pure.

Rules: the values that come back equal those that went in, with the same types, and arrays are writable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgpack
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["as_bytes", "from_bytes"]

#: Arrays start at multiples of this many bytes, so that views of them are aligned.
_ALIGNMENT = 16
#: Exact types: a value of a subclass would come back as its base class, and so is not kept.
_PLAIN = (str, bytes, bool, int, float, type(None))


def as_bytes(values: Mapping[str, Any]) -> bytes | None:
    """Return the values as bytes; None if a value is of a type that cannot be kept."""
    said: list[tuple[str, Any]] = []
    parts: list[bytes] = []
    for key, value in values.items():
        if isinstance(value, np.ndarray | np.generic):
            if value.dtype.hasobject or type(value) not in (np.ndarray, value.dtype.type):
                return None
            raw = value.tobytes()
            said.append((key, [value.dtype.str, list(value.shape), isinstance(value, np.generic)]))
            parts += (raw, bytes(-len(raw) % _ALIGNMENT))
        elif type(value) in _PLAIN:
            said.append((key, value))
        else:
            return None
    try:
        header: bytes = msgpack.packb(said)
    except (OverflowError, ValueError):  # an integer of more than 64 bits, a lone surrogate
        return None
    size = len(header).to_bytes(4, "little")
    return b"".join((size, header, bytes(-(4 + len(header)) % _ALIGNMENT), *parts))


def from_bytes(raw: bytearray) -> dict[str, Any]:
    """Return the values; arrays are views of `raw`."""
    size = int.from_bytes(raw[:4], "little")
    at = 4 + size
    at += -at % _ALIGNMENT
    values: dict[str, Any] = {}
    for key, said in msgpack.unpackb(memoryview(raw)[4 : 4 + size]):
        if not isinstance(said, list):
            values[key] = said
            continue
        dtype, shape, single = np.dtype(said[0]), said[1], said[2]
        count = int(np.prod(shape, dtype=np.int64))
        array = np.frombuffer(raw, dtype, count, at).reshape(shape)
        values[key] = array[()] if single else array
        at += array.nbytes + -array.nbytes % _ALIGNMENT
    return values
