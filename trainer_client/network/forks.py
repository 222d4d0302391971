"""Feeds in a process that was forked from the one that connected them: their threads are not there.

Without help a child would wait for ever for a batch that nobody brings, or at a lock that a lost thread had. So a fork
makes each feed of the child raise at once; the parent's go on. It must not know what a feed does.
"""

from __future__ import annotations

import functools
import os
import weakref
from typing import Protocol

from shared.errors import SettingsError

__all__ = ["used_after_fork", "watch_forks"]


class HasThread(Protocol):
    """What loses its thread in a forked child."""

    def lose_thread(self) -> None:
        """Raise from now on."""


_watched: weakref.WeakSet[HasThread] = weakref.WeakSet()


def watch_forks(owner: HasThread) -> None:
    """Tell this one in each child that is forked from now on, if it still exists."""
    _tell_children()
    _watched.add(owner)


@functools.cache
def _tell_children() -> None:
    def tell() -> None:
        for owner in list(_watched):
            owner.lose_thread()

    os.register_at_fork(after_in_child=tell)


def used_after_fork(name: str) -> SettingsError:
    """Return the error for a feed that the trainer of this name connected, and that a forked child uses."""
    return SettingsError(
        expected=f"a feed that is used by the process that connected it, {name}",
        got=f"process {os.getpid()}, which was forked from it and has no connection to the loaders",
        where="feed",
        remedy="Connect in the process that reads; leave out a framework's own worker processes (num_workers=0): "
        "the job's workers prepare batches ahead.",
    )
