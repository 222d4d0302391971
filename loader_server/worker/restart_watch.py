"""Whether a worker that its coordinator refuses would build other bytes if it were started again.

What a worker builds hangs on what it read when it began: job file, index, own transforms, versions of packages. If any
of these has changed on disk since, its successor may be taken in, so it ends and makes room for it. If nothing has, a
restart would not help: it waits, and serves the trainers that it has.

Rules: a thread looks, because opening a job takes time. Pauses grow up to a limit, and with what a look takes, because
the worker may be busy serving. Stoker's own code is not looked at: all processes that this machine's supervisor forks
have it as it was imported once.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from loader_server.building.fingerprint import builder_fingerprint
from loader_server.job_file import JobFile
from loader_server.stream import Stream
from shared.errors import StokerError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["RestartWatch", "builder_on_disk"]

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 8.0
#: How many times longer than a look the pause after it is.
_PAUSES_A_LOOK = 10


class RestartWatch:
    """`look` returns the builder fingerprint that a new worker would have; `wake` is called after it, in its thread."""

    def __init__(self, look: Callable[[], str], builder: str, wake: Callable[[], None]) -> None:
        self._look = look
        self._builder = builder
        self._wake = wake
        self._thread: threading.Thread | None = None
        self._due_s = 0.0
        self._pause_s = _FIRST_PAUSE_S
        #: What the last look found, and how long it took.
        self._found = builder
        self._took_s = 0.0

    def is_due(self, now_s: float) -> bool:
        """Whether to look again now."""
        return self._thread is None and now_s >= self._due_s

    def begin(self) -> None:
        """Look once, in the background."""
        self._thread = threading.Thread(target=self._look_once, name="restart watch", daemon=True)
        self._thread.start()

    def _look_once(self) -> None:
        began_s = time.monotonic()
        try:
            self._found = self._look()
        except (StokerError, OSError):  # an index that is being made, say: another look will tell
            self._found = self._builder
        self._took_s = time.monotonic() - began_s
        self._wake()

    def take(self, now_s: float) -> bool:
        """Return whether a worker that is started now would have another fingerprint, as the last look has found."""
        if self._thread is None or self._thread.is_alive():
            return False
        self._thread = None
        self._due_s = now_s + max(self._pause_s, _PAUSES_A_LOOK * self._took_s)
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
        return self._found != self._builder

    def calm(self) -> None:
        """Note that the coordinator takes the worker as it is: the next refusal is another one."""
        self._pause_s, self._due_s = _FIRST_PAUSE_S, 0.0


def builder_on_disk(job_path: Path) -> str:
    """Return the builder fingerprint of a worker that opens the job now."""
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
