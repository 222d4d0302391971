"""What our processes have in common: they end with their parent, and say on a pipe when they are ready."""

from __future__ import annotations

import ctypes
import json
import os
import signal
from typing import Any

__all__ = ["end_with_parent", "say_ready"]

_PR_SET_PDEATHSIG = 1


def end_with_parent(parent: int, end_signal: int = signal.SIGTERM) -> None:
    """Let the kernel signal this process when its parent ends, kill -9 included; exit if it has ended already."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, end_signal, 0, 0, 0)
    if os.getppid() != parent:
        raise SystemExit(0)


def say_ready(ready_fd: int, **facts: Any) -> None:  # noqa: ANN401 - plain JSON values
    """Tell whoever started us; without a pipe nobody waits to hear it."""
    if ready_fd >= 0:
        os.write(ready_fd, (json.dumps(facts) + "\n").encode())
        os.close(ready_fd)
