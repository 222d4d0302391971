"""Tuning of malloc: keep freed memory, because fresh pages cost more than the work done in them.

After a flood the memory is given back, because so much is not needed again.

Rules: called when a process starts working, never at import; does nothing without glibc.
"""

from __future__ import annotations

import ctypes

__all__ = ["give_back_freed_memory", "keep_freed_memory"]

# <malloc.h>: numbers of mallopt parameters.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3


def keep_freed_memory(*, trim_bytes: int, mmap_bytes: int) -> None:
    """Make malloc keep up to `trim_bytes` of freed memory, and map only blocks of at least `mmap_bytes` separately."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_TRIM_THRESHOLD, trim_bytes)
        libc.mallopt(_M_MMAP_THRESHOLD, mmap_bytes)


def give_back_freed_memory() -> None:
    """Give the kernel the freed memory that malloc has kept, of all threads; takes some milliseconds."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)
