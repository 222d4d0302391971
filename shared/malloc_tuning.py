"""Tuning of malloc: keep freed memory, because fresh pages cost more than the work done in them.

After a flood the memory is given back, because so much is not needed again.

Rules: called when a process starts working, never at import; does nothing without glibc. `Aftermath` is used in the
thread that serves.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Aftermath", "give_back_freed_memory", "keep_freed_memory"]

# <malloc.h>: numbers of mallopt parameters.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3

#: Give memory back after this many looks without a flood: soon, and once more after stopped connections have ended.
_LOOKS = (1, 10)


def keep_freed_memory(*, trim_bytes: int, mmap_bytes: int) -> None:
    """Make malloc keep up to `trim_bytes` of freed memory, and map only blocks of at least `mmap_bytes` separately.

    Do nothing without glibc.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_TRIM_THRESHOLD, trim_bytes)
        libc.mallopt(_M_MMAP_THRESHOLD, mmap_bytes)


def give_back_freed_memory() -> None:
    """Give the kernel the freed memory that malloc has kept, of all threads; takes some milliseconds.

    Do nothing without glibc.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)


class Aftermath:
    """Return of memory after a flood: call `note` during a flood, and `look` a few times a second or less."""

    def __init__(self, give_back: Callable[[], None] = give_back_freed_memory) -> None:
        self._give_back = give_back
        #: Looks since the last flood; at the start as if it were long over.
        self._calm_looks = _LOOKS[-1]

    def note(self) -> None:
        """Note a flood: a peer is ignored, not answered, or sends faster than we take in."""
        # While the flood lasts nothing is given back, because it would be taken again at once.
        self._calm_looks = -1

    def look(self) -> None:
        """Count a look since the last flood, and give memory back at the 2nd and at the 11th of them."""
        self._calm_looks += 1
        if self._calm_looks in _LOOKS:
            self._give_back()
