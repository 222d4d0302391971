"""Stable integer hashing: the same numbers on every machine, with every library version, at any time.

Rules: pure; only wrapping 64-bit arithmetic of our own (splitmix64); vectorised. Orders, keys and generator seeds come
from here and never from a library's generator, whose numbers may change between versions. Digests of bytes are xxh3.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import xxhash

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["copy_and_digest64", "digest64", "fingerprint", "hashed", "key_of"]

Words: TypeAlias = "NDArray[np.uint64]"

#: Chunk size that is still in the processor's cache when it is read a second time.
_CHUNK = 2**18

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


def hashed(words: NDArray[np.integer] | Words, key: int) -> Words:
    """Return the splitmix64 hash of each word under a 64-bit key, which is a bijection of the words for each key."""
    with np.errstate(over="ignore"):
        mixed: Words = words.astype(np.uint64) * _GOLDEN + np.uint64(key & 0xFFFFFFFFFFFFFFFF)
        mixed ^= mixed >> np.uint64(30)
        mixed *= _FIRST
        mixed ^= mixed >> np.uint64(27)
        mixed *= _SECOND
        mixed ^= mixed >> np.uint64(31)
    return mixed


def key_of(*parts: int | str) -> int:
    """Return a 64-bit key of integers and strings, which depends on their types, lengths and positions.

    Raise UnicodeEncodeError for a string that is not valid Unicode.
    """
    # Lengths stand before the parts, so that no two sequences of parts join to the same text.
    return xxhash.xxh3_64_intdigest("\x1f".join(map(_named, parts)).encode())


def _named(part: int | str) -> str:
    """Return a part as text with its type and length.

    A numpy integer counts as the plain integer of its value, so that a key does not depend on who computed it.
    """
    if isinstance(part, str):
        return f"str:{len(part)}:{part}"
    text = str(operator.index(part))
    return f"int:{len(text)}:{text}"


def digest64(data: bytes | memoryview) -> int:
    """Return the xxh3-64 digest of a payload."""
    return xxhash.xxh3_64_intdigest(data)


def copy_and_digest64(source: NDArray[np.uint8], target: NDArray[np.uint8]) -> int:
    """Copy a payload into `target`, which has to be as long, and return its `digest64`.

    It reads memory only once, chunk by chunk: a quarter quicker than copying and then hashing.
    """
    # Between two hosts, batches came at 0.833 of bare sockets' speed, instead of 0.805 with hashing after the copy.
    state = xxhash.xxh3_64()
    for start in range(0, len(source), _CHUNK):
        chunk = target[start : start + _CHUNK]
        chunk[...] = source[start : start + _CHUNK]
        state.update(chunk.data)
    return state.intdigest()


def fingerprint(*parts: bytes | memoryview | str) -> str:
    """Return a 128-bit fingerprint, in hex, of a sequence of parts; the boundaries between parts count.

    Raise UnicodeEncodeError for a string that is not valid Unicode.
    """
    state = xxhash.xxh3_128()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        state.update(len(data).to_bytes(8, "little"))
        state.update(data)
    return state.hexdigest()
