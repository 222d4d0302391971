"""What our processes have in common: they end with their parent, and say on a pipe when they are ready."""

from __future__ import annotations

import ctypes
import json
import os
import signal
from typing import Any

__all__ = ["end_with_parent", "keep_memory", "say_ready"]

# <malloc.h>: numbers of mallopt parameters.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3

#: Samples come and go by the megabyte; giving their pages back to the kernel each time costs more than decoding them.
_KEPT_BYTES = 256 * 2**20

_PR_SET_PDEATHSIG = 1


def end_with_parent(parent: int, end_signal: int = signal.SIGTERM) -> None:
    """Let the kernel signal this process when its parent ends, kill -9 included; exit if it has ended already."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, end_signal, 0, 0, 0)
    if os.getppid() != parent:
        raise SystemExit(0)


def keep_memory() -> None:
    """Let malloc keep what was freed: page faults cost more than the features that are computed in the pages."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        libc.mallopt(_M_MMAP_THRESHOLD, _KEPT_BYTES)


def say_ready(ready_fd: int, **facts: Any) -> None:  # noqa: ANN401 - plain JSON values
    """Tell whoever started us; without a pipe nobody waits to hear it."""
    if ready_fd >= 0:
        os.write(ready_fd, (json.dumps(facts) + "\n").encode())
        os.close(ready_fd)
