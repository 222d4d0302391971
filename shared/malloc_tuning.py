"""Lets malloc keep what was freed: fresh pages cost more than what is done in them.

Rules: called when a process starts working, never at import; elsewhere than on glibc it does nothing.
"""

from __future__ import annotations

import ctypes

__all__ = ["keep_freed_memory"]

# <malloc.h>: numbers of mallopt parameters.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3


def keep_freed_memory(*, trim_bytes: int, mmap_bytes: int) -> None:
    """Return memory to the system only beyond `trim_bytes`; map blocks on their own only from `mmap_bytes` on."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_TRIM_THRESHOLD, trim_bytes)
        libc.mallopt(_M_MMAP_THRESHOLD, mmap_bytes)
