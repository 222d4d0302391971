"""Lets malloc keep freed memory, because fresh pages cost more than the work that is done in them; and give it back
after a flood, because so much is not needed again.

Rules: called when a process starts working, never at import; does nothing without glibc.
"""

from __future__ import annotations

import ctypes

__all__ = ["give_back_freed_memory", "keep_freed_memory"]

# <malloc.h>: numbers of mallopt parameters.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3


def keep_freed_memory(*, trim_bytes: int, mmap_bytes: int) -> None:
    """Keep up to `trim_bytes` of freed memory; give only blocks of `mmap_bytes` and more a mapping of their own."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_TRIM_THRESHOLD, trim_bytes)
        libc.mallopt(_M_MMAP_THRESHOLD, mmap_bytes)


def give_back_freed_memory() -> None:
    """Give the kernel what malloc has kept, of the memory of all threads; takes some milliseconds."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)
