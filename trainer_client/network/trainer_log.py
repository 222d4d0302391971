"""The names of a process's feeds, and its log: lines say which process, and those of a feed also which run and rank.

A feed's own log (`FeedSession.log`) is for all that is about one feed; this one for what knows no feed.

Rules: no two living feeds of one stream and rank have one name, as files and series of metrics go by it. A feed that
is connected anew after another was closed has the name of that one, so that its series go on.
"""

from __future__ import annotations

import os
from itertools import chain, count

from shared.logs import Log

__all__ = ["claim_name", "process_log", "release_name", "trainer_name"]

#: The names of this process's living feeds, each with its stream and rank, and with the claim that holds it.
_claims: dict[tuple[str, int, str], object] = {}


def trainer_name() -> str:
    """Return "host:process id" of this process, as a name of this trainer in logs and errors."""
    return f"{os.uname().nodename}:{os.getpid()}"


def claim_name(stream: str, rank: int, name: str) -> str:
    """Return this name for a feed of the stream and rank, with a number behind it if a living feed has it already.

    It is the feed's until `release_name`. Any thread may call this.
    """
    claim = object()
    names = chain([name], (f"{name}:{number}" for number in count(2)))
    # In one step for other threads; a lock could be held by one of them when this process forks.
    return next(own for own in names if _claims.setdefault((stream, rank, own), claim) is claim)


def release_name(stream: str, rank: int, name: str) -> None:
    """Give back what `claim_name` returned for this stream and rank, as the feed has ended."""
    _claims.pop((stream, rank, name), None)


def process_log() -> Log:
    """Return a log whose lines name this process as lines about its feeds do, here and at the loaders."""
    return Log("trainer", trainer=trainer_name())
