"""Room for the frames of Python's calls, so that calls do not leave and enter it again and again.

CPython 3.11 and later keep frames in pieces of 16 KB: they map another piece when a call does not fit, and unmap it
when that call returns. A loop whose calls cross the end of a piece maps memory, has the kernel clear it and unmaps it,
each time. Below pytest and TensorFlow calls are deep, and a third of the page faults of tests that trace graphs were of
this kind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["call_with_room"]

#: More than a quarter of a megabyte, in words of eight bytes; as pieces double, the frame gets half a megabyte, and
#: what it calls has the rest.
_FRAME_WORDS = 33_000


def call_with_room(call: Callable[[], object]) -> None:
    """Call it; what it raises passes through. Threads have pieces of their own, of the usual size."""
    call()


call_with_room.__code__ = call_with_room.__code__.replace(co_stacksize=_FRAME_WORDS)
