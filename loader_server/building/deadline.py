"""The deadline of a build: when one step takes too long, it ends the whole process.

A thread that never returns cannot be stopped, and while it lives it may write into slots. So the process goes, as in
any other crash, and the kernel releases its memory and then its locks. A kernel timer does this by a signal that
nothing here handles, so it ends even a process whose C code holds the interpreter.

Rules: armed only while something is built, by the building thread. Each sample has the full time for itself, and so
have decoding and transforming a batch's samples at once, which only quick sources and built-in transforms do, gathering
a whole batch, and finishing one (digest, encoding, sealing). Setting the timer costs 0.6 µs, so it is set
anew only once a tenth of the time has passed: a step gets at most a tenth more than it was promised, and never less.
"""

from __future__ import annotations

import faulthandler
import signal
from typing import TYPE_CHECKING

from loader_server.machine.processes import DEADLINE_SIGNAL

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Deadline", "let_deadlines_end_us"]


def let_deadlines_end_us() -> None:
    """Let the signal write the stacks of all threads to standard error and end us; call it in the main thread of a
    process that builds.
    """
    signal.signal(DEADLINE_SIGNAL, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {DEADLINE_SIGNAL})
    faulthandler.register(DEADLINE_SIGNAL, file=2, chain=True)


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
        """The last step is over: nothing is being built."""
        self._again_ns = 0
        self._set_timer(0)
