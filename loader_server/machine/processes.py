"""Common behaviour of our processes: end with the parent, report on a pipe, keep ports from children, OOM scores.

Rules for OOM scores, by which the kernel chooses what to kill when memory runs out: a child raises its own score, after
the fork and relative to what it inherited, which needs no privilege; no score is ever lowered. It does so before
anything else, because until then other processes are as likely to be killed. So a process that tries samples goes
first, then a worker: both are restarted. Nursery, coordinator and supervisor keep what they inherited, since the others
depend on them.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shared.errors import MachineError
from shared.sockets import descriptors_by_port

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "DEADLINE_SIGNAL",
    "TRIAL_OFFER",
    "WORKER_OFFER",
    "NurseryEndedError",
    "end_with_parent",
    "how_it_ended",
    "keep_ports_from_children",
    "offer_once",
    "offer_to_oom_killer",
    "send_facts",
]

#: Signal that ends a process whose build took too long; the parent learns the cause from it.
DEADLINE_SIGNAL = signal.SIGALRM

_PR_SET_PDEATHSIG = 1

#: Raises of the inherited OOM score, in thousandths of all memory: more than any of the protected processes can be
#: larger.
WORKER_OFFER = 500
TRIAL_OFFER = 800

#: The kernel's limit of a score.
_MOST = 1000

_SCORE = Path("/proc/self/oom_score_adj")

#: The result by process id, so that it is done once: a child that is forked later inherits the score, and this.
_offered: dict[int, str] = {}


class NurseryEndedError(MachineError):
    """The nursery is gone or does not listen to us; only a restarted process has one again."""


def end_with_parent(parent: int, end_signal: int = signal.SIGTERM) -> None:
    """Have the kernel signal this process when its parent ends, even by kill -9.

    Raises SystemExit if the parent has ended already.
    """
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


def send_facts(ready_fd: int, **facts: Any) -> None:
    """Send our parent some facts, as a line of JSON; drop them if nobody reads, or the pipe is full."""
    with contextlib.suppress(OSError):
        os.set_blocking(ready_fd, False)
        os.write(ready_fd, (json.dumps(facts) + "\n").encode())


def how_it_ended(code: int) -> str:
    """Return a process's exit code in words: "exit 1", "signal SIGKILL", or "signal 40" for one without a name."""
    if code >= 0:
        return f"exit {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"


def offer_once(more: int) -> str:
    """Raise this process's OOM score by `more`, unless that was done already.

    Return the problem, or an empty text; a later call in the same process returns the first result again.
    """
    pid = os.getpid()
    if pid not in _offered:
        _offered[pid] = offer_to_oom_killer(more)
    return _offered[pid]


def offer_to_oom_killer(more: int, path: Path = _SCORE) -> str:
    """Raise this process's OOM score by `more`, to at most 1000, and never lower it.

    Return the problem if the score cannot be read or written, otherwise an empty text.
    """
    try:
        inherited = int(path.read_text("ascii"))
        raised = min(_MOST, inherited + more)
        # The score is never lowered, which would need a privilege.
        if raised > inherited:
            path.write_text(str(raised), "ascii")
    except (OSError, ValueError) as error:
        return f"{path}: {error}"
    return ""
