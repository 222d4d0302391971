"""Moves the memory that large frames are received in to huge pages; libzmq allocates it with malloc for each frame."""

from __future__ import annotations

import numpy as np

from shared.huge_pages import HUGE_PAGE, collapse

__all__ = ["keep_in_huge_pages"]

#: Where frames have been: malloc returns the same few places again and again.
_seen: set[int] = set()
_MOST_SEEN = 256


def keep_in_huge_pages(frame: memoryview) -> None:
    """Make the next frame in this place faster to receive and to copy."""
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
