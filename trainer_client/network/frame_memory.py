"""Huge pages for the memory of large received frames, which libzmq allocates with malloc for each frame."""

from __future__ import annotations

import numpy as np

from shared.huge_pages import HUGE_PAGE, collapse

__all__ = ["keep_in_huge_pages"]

#: Addresses of earlier frames, which are not collapsed again: malloc returns the same few again and again.
_seen: set[int] = set()
_MOST_SEEN = 256


def keep_in_huge_pages(frame: memoryview) -> None:
    """Move the memory of a large frame to huge pages, so that the next frame there is faster to receive and to copy.

    Frames below two huge pages are left alone, as are addresses that were handled already.
    """
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
