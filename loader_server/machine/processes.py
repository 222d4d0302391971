"""Common behaviour of our processes: they end with their parent, report on a pipe, and keep ports from children."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
from typing import TYPE_CHECKING, Any

from shared.errors import MachineError
from shared.sockets import descriptors_by_port

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shared.errors import StokerError

__all__ = [
    "DEADLINE_SIGNAL",
    "NurseryEndedError",
    "end_with_parent",
    "how_it_ended",
    "keep_ports_from_children",
    "say_error",
    "say_more",
]

#: Signal that ends a process whose build took too long; the parent learns the cause from it.
DEADLINE_SIGNAL = signal.SIGALRM

_PR_SET_PDEATHSIG = 1


class NurseryEndedError(MachineError):
    """The nursery is gone or does not listen to us; only a restarted process has one again."""


def end_with_parent(parent: int, end_signal: int = signal.SIGTERM) -> None:
    """Have the kernel signal this process when its parent ends, even by kill -9; exit if it has ended already."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, end_signal, 0, 0, 0)
    # The parent may have ended before the request to the kernel, which then never signals.
    if os.getppid() != parent:
        raise SystemExit(0)


def keep_ports_from_children(ports: Iterable[int]) -> None:
    """Make children that are forked from now on close the sockets that they inherit at these ports.

    Otherwise a child that a transform left behind would hold them after our end: our successor could not serve there,
    and peers would not notice that we are gone. Children that execute another program inherit none anyway.
    """
    ours = frozenset(ports)
    os.register_at_fork(after_in_child=lambda: _close_ports(ours))


def _close_ports(ports: frozenset[int]) -> None:
    for fd, port in descriptors_by_port():
        if port in ports:
            os.close(fd)


def say_more(ready_fd: int, **facts: Any) -> None:
    """Send our parent some facts; drop them if nobody reads."""
    with contextlib.suppress(OSError):
        os.set_blocking(ready_fd, False)
        os.write(ready_fd, _line(facts))


def say_error(ready_fd: int, error: StokerError) -> None:
    """Report to our parent the error that ends this process."""
    say_more(ready_fd, error=error.words())


def _line(facts: dict[str, Any]) -> bytes:
    return (json.dumps(facts) + "\n").encode()


def how_it_ended(code: int) -> str:
    """Return a process's exit code in words; real-time signals are given by number."""
    if code >= 0:
        return f"exit {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"
