"""The deadline of a build: when one step takes too long, it ends the whole process.

A thread that never returns cannot be stopped, and while it lives it may write into slots. So the process goes, as in
any other crash, and the kernel releases its memory and then its locks. A kernel timer does this by a signal that
nothing here handles, so it ends even a process whose C code holds the interpreter.

Rules: armed only during a build, by the building thread. Each of these steps has the full time to itself: one sample;
decoding and transforming a batch's samples at once, which only quick sources and built-in transforms do; gathering a
whole batch; finishing one (digest, encoding, sealing). Setting the timer costs 0.6 µs, so it is set anew only once a
tenth of the time has passed: a step gets at most a tenth more than it was promised, and never less.
"""

from __future__ import annotations

import faulthandler
import signal
from functools import partial
from typing import TYPE_CHECKING

from loader_server.machine.processes import DEADLINE_SIGNAL

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Deadline", "let_deadlines_end_us"]

_set_timer = partial(signal.setitimer, signal.ITIMER_REAL)


def let_deadlines_end_us() -> None:
    """Let the deadline's signal write the stacks of all threads to standard error and end this process.

    Call it in the main thread of a process that builds.
    """
    # The order matters: faulthandler chains to the handler that it finds, here the default one, which ends the process.
    signal.signal(DEADLINE_SIGNAL, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {DEADLINE_SIGNAL})
    faulthandler.register(DEADLINE_SIGNAL, file=2, chain=True)


class Deadline:
    """Watchdog of the building thread: `begin` before each step, `end` after the last.

    `set_timer(0)` stops the timer.
    """

    def __init__(self, timeout_s: float, set_timer: Callable[[float], object] = _set_timer) -> None:
        # A step may begin up to a tenth after the timer was set, so the timer runs a tenth longer.
        self._longest_s = 1.1 * timeout_s
        self._margin_ns = int(0.1e9 * timeout_s)
        self._set_timer = set_timer
        #: Before this the timer is not set again; 0 if it is not running.
        self._again_ns = 0

    def begin(self, now_ns: int) -> None:
        """Start a step at `now_ns` (`time.perf_counter_ns`); set the timer if it is off, or a tenth of it is over."""
        # A timer set less than a tenth ago still leaves this step its whole time.
        if now_ns >= self._again_ns:
            self._again_ns = now_ns + self._margin_ns
            self._set_timer(self._longest_s)

    def end(self) -> None:
        """Stop the timer after the last step, so that no signal comes any more."""
        self._again_ns = 0
        self._set_timer(0)
