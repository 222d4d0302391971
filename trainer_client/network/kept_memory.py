"""Keeps large batches that come by TCP from costing page faults, and puts what they come in into huge pages.

libzmq takes memory from malloc for each frame. A GeneratorDataset of TensorFlow (2.21 does it) lowers glibc's trim
threshold to 128 kB, once in a process; that also ends glibc's own adapting, so that from then on each frame of more
than 128 kB is mapped anew and unmapped again.
Measured with 10 MB batches: 77 a second and 8.6 ms CPU each, against 135 and 4.1 ms with what is set here. Rules:
nothing but the bounds that glibc reaches by itself; elsewhere than on glibc it does nothing.
"""

from __future__ import annotations

import ctypes

import numpy as np

from shared.mapping import HUGE_PAGE, collapse

__all__ = ["keep_freed_memory", "keep_in_huge_pages"]

# <malloc.h>: numbers of mallopt parameters; and the bounds up to which glibc adapts by itself.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_MMAP_BYTES = 32 * 2**20
_TRIM_BYTES = 2 * _MMAP_BYTES


def keep_freed_memory() -> None:
    """Let malloc reuse the memory of frames; to be called once the generator runs, for TensorFlow undoes it before."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES)
        libc.mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)


#: Where frames lay: malloc gives the same few places again and again.
_seen: set[int] = set()
_MOST_SEEN = 256


def keep_in_huge_pages(frame: memoryview) -> None:
    """The next frame in this place is received and copied faster."""
    if frame.nbytes < 2 * HUGE_PAGE:
        return
    bytes_ = np.frombuffer(frame, np.uint8)
    place = bytes_.ctypes.data
    if place in _seen:
        return
    if len(_seen) >= _MOST_SEEN:
        _seen.clear()
    _seen.add(place)
    collapse(bytes_)
