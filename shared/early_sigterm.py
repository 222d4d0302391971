"""SIGTERM while a command is still importing its modules: it ends the process at once, even as PID 1.

The kernel ignores a signal for PID 1, which a container's program is, until a handler is set. A command imports for a
third of a second before it sets its own handler, so a SIGTERM in that time would be lost and the container killed
later.

Rules: imports nothing slow, so that it can come before all other imports. Nothing has been opened by then.
"""

from __future__ import annotations

import os
import signal

__all__ = ["end_at_sigterm"]

#: Exit status that a shell reports for a process ended by SIGTERM.
_TERMINATED = 128 + signal.SIGTERM


def end_at_sigterm() -> None:
    """End this process with code 143 at SIGTERM, until the command sets a handler of its own."""
    signal.signal(signal.SIGTERM, lambda _number, _frame: os._exit(_TERMINATED))
