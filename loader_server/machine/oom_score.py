"""The OOM score of our processes: which of them the kernel should kill first when memory runs out.

Rules: a child raises its own score, after the fork and relative to what it inherited, which needs no privilege; no
score is ever lowered. It does so before anything else, because until then other processes are as likely to be killed.
So a process that tries samples goes first, then a worker: both are restarted. Nursery, coordinator and supervisor keep
what they inherited, since the others depend on them.
"""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["TRIAL_OFFER", "WORKER_OFFER", "offer_once", "offer_to_oom_killer"]

#: Raises of the inherited score, in thousandths of all memory: more than any of the protected processes can be larger.
WORKER_OFFER = 500
TRIAL_OFFER = 800

_MOST = 1000

_SCORE = Path("/proc/self/oom_score_adj")


#: The result by process id, so that it is done once: a child that is forked later inherits the score, and this.
_offered: dict[int, str] = {}


def offer_once(more: int) -> str:
    """Raise this process's score unless that was done already; return the problem, or an empty text."""
    pid = os.getpid()
    if pid not in _offered:
        _offered[pid] = offer_to_oom_killer(more)
    return _offered[pid]


def offer_to_oom_killer(more: int, path: Path = _SCORE) -> str:
    """Raise this process's score; return the problem, or an empty text."""
    try:
        inherited = int(path.read_text("ascii"))
        raised = min(_MOST, inherited + more)
        # The score is never lowered, which would need a privilege.
        if raised > inherited:
            path.write_text(str(raised), "ascii")
    except (OSError, ValueError) as error:
        return f"{path}: {error}"
    return ""
