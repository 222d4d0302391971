"""The deadline of a build: it ends this process, whole, when one step takes too long.

A thread that never comes back cannot be stopped, and while it lives it may write into slots: so the process goes, as
in any other crash, and the kernel lets go of its memory and then of its locks. A timer of the kernel does it by a
signal that nothing here handles, so it ends a process as well whose C code holds the interpreter.

Rules: armed only while something is built, by the building thread. Each sample has the whole time for itself, and so
have gathering a whole batch and finishing one (digest, packing, sealing). Setting the timer costs 0.6 µs, so it is set
anew only when a tenth of the time has gone by: a step has at most a tenth more than it was given, and never less.
"""

from __future__ import annotations

import faulthandler
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["SIGNAL", "Deadline", "let_deadlines_end_us"]

#: What ends the process.
SIGNAL = signal.SIGALRM


def let_deadlines_end_us() -> None:
    """In the main thread of a process that builds: the signal writes all threads' stacks to standard error, and ends
    us.
    """
    signal.signal(SIGNAL, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {SIGNAL})
    faulthandler.register(SIGNAL, file=2, chain=True)


def _set_timer(seconds: float) -> None:
    signal.setitimer(signal.ITIMER_REAL, seconds)


class Deadline:
    """`begin` before each step, `end` after the last; `set_timer(0)` stops the timer."""

    def __init__(self, timeout_s: float, set_timer: Callable[[float], None] = _set_timer) -> None:
        self._longest_s = 1.1 * timeout_s
        self._margin_ns = int(0.1e9 * timeout_s)
        self._set_timer = set_timer
        self._again_ns = 0

    def begin(self, now_ns: int) -> None:
        """A step begins now (`time.perf_counter_ns`)."""
        if now_ns >= self._again_ns:
            self._again_ns = now_ns + self._margin_ns
            self._set_timer(self._longest_s)

    def end(self) -> None:
        """Nothing is being built."""
        self._again_ns = 0
        self._set_timer(0)
