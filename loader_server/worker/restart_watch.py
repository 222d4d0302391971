"""Checks whether a restart would let a refused worker build the bytes that its coordinator expects.

What a worker builds depends on what it read when it started: job file, index, own transforms, versions of packages. If
any of these has changed on disk since, its successor may be accepted, so it ends to make room for it. If nothing has,
a restart would not help: it waits, and serves the trainers that it has.

Rules: a thread does the check, because opening a job takes time; a check that hangs is given up, and no further one is
started while several hang. Checks that fail are counted and logged. Pauses grow up to a limit, and with the time that a
check takes, because the worker may be busy serving. Stoker's own code is not checked: all processes that this machine's
supervisor forks have it as it was imported once.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from loader_server.building.fingerprint import builder_fingerprint
from loader_server.job_file import JobFile
from loader_server.stream import Stream

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from shared.logs import Log

__all__ = ["RestartWatch", "builder_on_disk"]

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 8.0
#: Ratio of the pause after a check to the check's own time.
_PAUSES_A_LOOK = 10
#: Time after which a check is given up, and how many may hang before no further one is started.
_LONGEST_LOOK_S = 60.0
_MOST_HANGING = 3


class RestartWatch:
    """Looks for a reason to restart: one check at a time, each in a thread of its own.

    `look` returns the builder fingerprint that a new worker would have; `wake` is called after it, in its thread.
    """

    def __init__(self, look: Callable[[], str], builder: str, wake: Callable[[], None], log: Log) -> None:
        self._look = look
        self._builder = builder
        self._wake = wake
        self._log = log
        self._under_way: _DiskLook | None = None
        #: Checks that were given up while they hung: a thread cannot be ended from outside.
        self._hanging: list[_DiskLook] = []
        self._due_s = 0.0
        self._pause_s = _FIRST_PAUSE_S
        #: Numbers of checks that failed, and that were given up.
        self.failed = self.given_up = 0
        self._logged = ""

    def is_due(self, now_s: float) -> bool:
        """Return whether to check again now; not while a check is under way, or too many hang, or the pause lasts."""
        self._hanging = [look for look in self._hanging if look.is_under_way]
        return self._under_way is None and len(self._hanging) < _MOST_HANGING and now_s >= self._due_s

    def begin(self, now_s: float) -> None:
        """Start a check in the background; the result of one that was not taken is lost."""
        self._under_way = _DiskLook(self._look, self._wake, now_s)

    def take(self, now_s: float) -> bool:
        """Return whether the last check found that a new worker would have another fingerprint.

        False if there is no check to take, while it is under way, and if it failed or was given up, which is counted,
        and logged unless the last line had the same reason.
        """
        look = self._under_way
        if look is None or (look.is_under_way and now_s - look.began_s < _LONGEST_LOOK_S):
            return False
        self._under_way = None
        took_s = _LONGEST_LOOK_S if look.is_under_way else look.took_s
        self._due_s = now_s + max(self._pause_s, _PAUSES_A_LOOK * took_s)
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
        if look.is_under_way:
            self.given_up += 1
            self._hanging.append(look)
            self._log_once(
                "cannot tell whether a restart would help: a look at the job hangs",
                f"no answer for {_LONGEST_LOOK_S:.0f} s",
            )
        elif look.error is not None:
            self.failed += 1
            self._log_once(
                "cannot tell whether a restart would help: the job cannot be opened",
                str(look.error) or repr(look.error),
            )
        return look.builder not in ("", self._builder)

    def _log_once(self, event: str, reason: str) -> None:
        """Log an event with its reason, unless that reason was the last one logged."""
        if reason != self._logged:
            self._log.warning(event, reason=reason)
            self._logged = reason

    def calm(self) -> None:
        """Reset pauses and logging, so that a check is due at once: for times without a refusal that it may end."""
        self._pause_s, self._due_s, self._logged = _FIRST_PAUSE_S, 0.0, ""


class _DiskLook:
    """One check, with a result of its own: a check that was given up may still end at any time."""

    def __init__(self, look: Callable[[], str], wake: Callable[[], None], now_s: float) -> None:
        self._look = look
        self._wake = wake
        self.began_s = now_s
        self.took_s = 0.0
        #: The builder fingerprint (empty if there is none), and the error of a failed check.
        self.builder = ""
        self.error: Exception | None = None
        # A daemon thread: a check that hangs in a file system must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name="restart watch", daemon=True)
        self._thread.start()

    @property
    def is_under_way(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        began_s = time.monotonic()
        try:
            self.builder = self._look()
        except Exception as error:  # an index that is being made, or a user's module that fails: `take` counts it
            self.error = error
        self.took_s = time.monotonic() - began_s
        self._wake()


def builder_on_disk(job_path: Path) -> str:
    """Return the builder fingerprint of a worker that opens the job now; streams that are not there yet are left out.

    Raises what opening the job file or a stream raises: a StokerError, an OSError, or an error of a user's module.
    """
    job = JobFile(job_path)
    streams: dict[str, Stream] = {}
    try:
        for name in job.recipes:
            if job.is_there(name):
                streams[name] = Stream(job, name)
        return builder_fingerprint(streams, job.versions_of_sent())
    finally:
        for stream in streams.values():
            stream.close()
