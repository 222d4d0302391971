"""Ctrl-C and SIGTERM while a command is still importing its modules: they end the process at once, without a traceback.

The kernel ignores SIGTERM for PID 1, which a container's program is, until a handler is set. A command imports for a
third of a second before it sets its own handler, so a SIGTERM in that time would be lost and the container killed
later. Python's own handler of SIGINT raises KeyboardInterrupt in the midst of whatever is imported, which nobody
catches yet.

Rules: imports nothing slow, not even `typing`, so that it can come before all other imports. Nothing has been opened by
then.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found,unused-ignore] # without the enums, whose module is slow
import os

__all__ = ["end_at_once", "end_at_signals"]


def end_at_signals() -> None:
    """End this process at Ctrl-C (code 130) and SIGTERM (143), until the command sets handlers of its own.

    Ctrl-C stays ignored in a process that was started so, as shells start background jobs.
    """
    signal.signal(signal.SIGTERM, end_at_once)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, end_at_once)


def end_at_once(number: int, _frame: object) -> None:
    """End this process, without any clean-up, with the code that a shell reports for a process ended by this signal."""
    os._exit(128 + number)
