"""Exit of a process while TensorFlow still reads a feed: without help it may hang for ever.

When Python shuts down, a TensorFlow thread that is inside a generator, or about to enter one, never comes back out, and
destroying its iterator waits for it for ever. So before Python shuts down, the passes that TensorFlow reads are ended,
and the last of its threads is waited for: a thread that comes out either goes back in at once, or stays out. It
must not know TensorFlow.
"""

from __future__ import annotations

import atexit
import weakref
from time import monotonic, sleep
from typing import Protocol

__all__ = ["enter", "leave", "watch"]

#: A thread that stays out this long is not on its way back in.
_REST_S = 0.05
_PATIENCE_S = 1.0
_LOOK_AGAIN_S = 0.005


class Endable(Protocol):
    """Pass that a framework reads in its own threads."""

    def end(self) -> None:
        """Tell readers, waiting or later, that there are no more elements."""


_passes: weakref.WeakSet[Endable] = weakref.WeakSet()
_inside: set[int] = set()
_last_left_s = [0.0]


def watch(reading: Endable) -> None:
    """End this pass before Python shuts down, if it still exists."""
    _passes.add(reading)


def enter(reading: Endable) -> None:
    """Note that a thread of the framework enters this pass, so that Python's end waits for it."""
    # By id: the set must not keep a pass alive, and a pass is left at the latest when it goes.
    _inside.add(id(reading))


def leave(reading: Endable) -> None:
    """Note that the thread left the pass, or that the pass is gone."""
    _inside.discard(id(reading))
    _last_left_s[0] = monotonic()


def _end_all() -> None:
    """End all passes, and wait at most a second until the framework's threads stay out of them."""
    for reading in list(_passes):
        reading.end()
    # A thread may be between two elements, outside for a moment: so wait until none has come out for a while.
    until_s = monotonic() + _PATIENCE_S
    while (_inside or monotonic() - _last_left_s[0] < _REST_S) and monotonic() < until_s:
        sleep(_LOOK_AGAIN_S)


atexit.register(_end_all)
