"""Feeds in a forked process, which does not have their threads.

Without this, a child would wait for ever for a batch that no thread brings, or at a lock that a lost thread held. So
after a fork each feed raises in the child at once; the parent's feeds go on. Must not know what a feed does.
"""

from __future__ import annotations

import functools
import os
import weakref
from typing import Protocol

from shared.errors import SettingsError

__all__ = ["used_after_fork", "watch_forks"]


class HasThread(Protocol):
    """An object that loses its thread in a forked child."""

    def lose_thread(self) -> None:
        """Make every later call raise."""


_watched: weakref.WeakSet[HasThread] = weakref.WeakSet()


def watch_forks(owner: HasThread) -> None:
    """Call `owner.lose_thread` in each child forked from now on, as long as the owner exists (a weak reference)."""
    _tell_children()
    _watched.add(owner)


@functools.cache
def _tell_children() -> None:
    def tell() -> None:
        for owner in list(_watched):
            owner.lose_thread()

    os.register_at_fork(after_in_child=tell)


def used_after_fork(name: str) -> SettingsError:
    """Return the error for a feed that is used in a forked child of the trainer with this name."""
    return SettingsError(
        expected=f"a feed that is used by the process that connected it, {name}",
        got=f"process {os.getpid()}, which was forked from it and has no connection to the loaders",
        where="feed",
        remedy="Connect in the process that reads; leave out a framework's own worker processes (num_workers=0): "
        "the job's workers prepare batches ahead.",
    )
