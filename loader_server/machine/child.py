"""A process that is forked from the nursery, its reports on a pipe, and its restarts.

Rules: a child reports once, in a line of JSON, that it is ready and where; a coordinator goes on to report what its job
needs. A child keeps its endpoint across restarts, so that trainers find it again; only if it can no longer start there
does it try another port. A child that dies is restarted after a pause, which grows while it keeps failing. A child that
ended because its nursery died has not failed: it is restarted at the same endpoint as soon as there is another nursery.
"""

from __future__ import annotations

import json
import math
import os
import signal
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from loader_server.machine.asking import is_readable, no_room
from shared.hashing import fingerprint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from loader_server.machine.asking import Asker, Nursling

__all__ = ["Child"]

#: How long the kernel may take to end a killed process.
_PATIENCE_S = 5.0

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0

#: A child that lived this long is restarted without a pause.
_HEALTHY_S = 2.0


@dataclass(slots=True, eq=False)
class Child:
    """One of our processes, its start, reports, end and restarts."""

    name: str
    command: Callable[[str], list[str]]
    listen: str = ""
    #: Another address to listen at if it can no longer start at the first one; empty if there is none.
    spare_listen: str = ""
    process: Nursling | None = None
    restarts: int = 0
    #: How many processes were started, whether or not the one before had failed.
    starts: int = 0
    #: Address at which it answers probes, once it is ready.
    metrics: str = ""
    #: Whether it became ready, and has not died since.
    is_serving: bool = False
    #: The error that it reported, as the parts of a `StokerError`; empty if there was none.
    error: dict[str, str] = field(default_factory=dict)
    #: The problem that was logged last, so that it is not logged again.
    logged: str = ""
    #: Whether the last process ended because its nursery had died.
    is_orphan: bool = False
    #: Whether it was told to end.
    is_ending: bool = False
    #: When to kill it if it still lives.
    kill_s: float = math.inf
    #: When to restart it; infinity if it is not due.
    again_s: float = math.inf
    _started_s: float = 0.0
    _pause_s: float = _FIRST_PAUSE_S
    #: The pipe that it reports on; -1 once nothing more will come.
    _pipe: int = -1
    #: The beginning of a line whose rest has not come yet.
    _begun: bytes = b""

    def start(self, nursery: Asker, within_s: float = math.inf) -> None:
        """Start the process, to be killed if it is not ready within this time.

        Raise MachineError if the system has no room for it, or the nursery is gone, refuses the request or does not
        answer in time, or if waiting is interrupted because this process has to end.
        """
        try:
            reading, writing = os.pipe()
        except OSError as error:
            raise no_room(error) from error
        try:
            # With the error that it died of last time, so that the same error is not printed again.
            last = ["--last-error", fingerprint(*self.error.values())] if self.error else []
            self.process = nursery.start([*self.command(self.listen), *last], keep=writing)
            self.starts += 1
        except BaseException:  # no process writes into the pipe
            os.close(reading)
            raise
        finally:
            # With our copy open the pipe would not end with the child.
            os.close(writing)
        self._pipe, self._begun, self.is_serving, self.is_ending = reading, b"", False, False
        self.error = {}
        self._started_s, self.again_s = time.monotonic(), math.inf
        self.kill_s = self._started_s + within_s

    @property
    def pid(self) -> int:
        """Return its process id; 0 while it has none."""
        return self.process.pid if self.process is not None else 0

    def descriptors(self) -> Iterator[int]:
        """Yield the descriptors to poll: one is readable once there is something to do.

        Yield none if it has neither a process nor reports to come.
        """
        if self._pipe >= 0:
            yield self._pipe
        if self.process is not None:
            yield self.process.fileno()

    def due_s(self) -> float:
        """Return when it is to be killed or, if it has no process, started; infinity if neither is due."""
        return self.kill_s if self.process is not None else self.again_s

    def hear(self) -> Iterator[dict[str, Any]]:
        """Yield what it has reported since the last call; note readiness and errors.

        A line that is not a report is yielded as an empty one.
        """
        while self._pipe >= 0 and is_readable(self._pipe, 0):
            content = os.read(self._pipe, 2**16)
            if not content:
                self._hang_up()
            *lines, self._begun = (self._begun + content).split(b"\n")
            for line in lines:
                yield self._noted(_read(line))

    def _noted(self, report: dict[str, Any]) -> dict[str, Any]:
        """Return a report after noting that it is ready and where, or the error that ends it."""
        if "endpoint" in report:
            self.listen, self.is_serving, self.logged = report["endpoint"], True, ""
            self.metrics = str(report.get("metrics", ""))
            self.kill_s = self.kill_s if self.is_ending else math.inf
        self.error = _error_in(report) or self.error
        return report

    def look(self, now_s: float) -> int | None:
        """Return its exit code if it has just ended, None otherwise; kill it if that is due.

        Return None if it has no process. A child that was told to end counts as ended with code 0 once it is gone. Its
        last reports are noted, but not yielded by `hear`.
        """
        if self.process is None:
            return None
        if now_s >= self.kill_s:
            self.process.kill()
            self.kill_s = now_s + _PATIENCE_S
        # A child that was told to end counts as ended once it is gone: a nursery that is stopped would never report its
        # exit code.
        code = 0 if self.is_ending and self.process.wait_gone(0) else self.process.wait(0)
        if code is not None:
            self.is_orphan = self.process.is_orphan
            for _ in self.hear():  # its last words
                pass
            self._forget()
        return code

    def end(self, within_s: float) -> None:
        """Ask it to end in good order, and set the time to kill it; later calls do nothing."""
        # Once: the supervisor repeats the order in each turn, which must not give it more time.
        if not self.is_ending:
            self.is_ending, self.again_s = True, math.inf
            self.kill_s = time.monotonic() + within_s
            if self.process is not None:
                self.process.send_signal(signal.SIGTERM)

    def signal(self, number: int) -> None:
        """Send it a signal, if it is ready to handle one."""
        if self.process is not None and self.is_serving:
            self.process.send_signal(number)

    def reap(self) -> bool:
        """Wait for a child that was told to end, and kill it when its time is up; return whether that was needed.

        Return False if it has no process. A killed child is waited for at most 5 s more. It must have been told to end,
        which nothing checks.
        """
        if self.process is None:
            return False
        in_time = self.process.wait_gone(max(0.0, self.kill_s - time.monotonic()))
        if not in_time:
            self.process.kill()
            self.process.wait_gone(_PATIENCE_S)
        self._forget()
        return not in_time

    def begin_pause(self, now_s: float) -> None:
        """Count a restart, and set when and where to start it after its death.

        The pause doubles up to 5 s while it keeps failing; a child that lived for over 2 s is due at once. A child that
        never served is started at its spare address, if it has one.
        """
        self.restarts += 1
        was_healthy = now_s - self._started_s > _HEALTHY_S
        self.again_s = now_s if was_healthy else now_s + self._pause_s
        self._pause_s = _FIRST_PAUSE_S if was_healthy else min(2 * self._pause_s, _LONGEST_PAUSE_S)
        # The same endpoint, so that trainers find it again; but a child that a transform left behind may hold its port.
        if not self.is_serving:
            self.listen = self.spare_listen or self.listen
        self.is_serving = False

    def start_when_possible(self, now_s: float) -> None:
        """Have it started at the same endpoint as soon as there is a nursery, without a pause."""
        self.again_s, self.is_serving = now_s, False

    def put_off(self, now_s: float) -> None:
        """Set when to try again after a failed start; the pause doubles with each, up to 5 s."""
        self.again_s = now_s + self._pause_s
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)

    def _forget(self) -> None:
        self.process, self.kill_s = None, math.inf
        self._hang_up()

    def _hang_up(self) -> None:
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1


def _read(line: bytes) -> dict[str, Any]:
    """Return the facts in a line; empty if the line is not ours, because the user's code may write to the pipe, too."""
    try:
        report = json.loads(line)
    except (ValueError, RecursionError):  # RecursionError: JSON that is nested too deep
        return {}
    return report if isinstance(report, dict) else {}


def _error_in(report: dict[str, Any]) -> dict[str, str]:
    """Return the parts of the error in a report; empty if it has none, or a malformed one."""
    error = report.get("error")
    if not isinstance(error, dict) or set(error) != {"expected", "got", "where", "remedy"}:
        return {}
    return {key: str(words) for key, words in error.items()}
