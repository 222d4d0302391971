"""The log of a trainer's process: each line says which process, and lines of a feed also which run and rank.

A feed's own log (`FeedSession.log`) is for all that is about one feed; this one for what knows no feed.
"""

from __future__ import annotations

import os

from shared.logs import Log

__all__ = ["process_log", "trainer_name"]


def trainer_name() -> str:
    """Return "host:process id" of this process, as a name of this trainer in logs and errors."""
    return f"{os.uname().nodename}:{os.getpid()}"


def process_log() -> Log:
    """Return a log whose lines name this process as lines about its feeds do, here and at the loaders."""
    return Log("trainer", trainer=trainer_name())
