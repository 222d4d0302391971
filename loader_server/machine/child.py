"""A process that is forked from the nursery, what it says on its pipe, and its restarts.

Rules: a child says once, in a line of JSON, that it is ready and where; a coordinator goes on to say what its job
needs. It keeps its endpoint across restarts, so that trainers find it again; only if it can no longer start there does
it try another port. A child that dies is started again after a pause, which grows while it keeps failing. One that
ended with its nursery has not failed: it is started again where it was, as soon as there is another nursery.
"""

from __future__ import annotations

import json
import math
import os
import select
import signal
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from loader_server.machine.asking import no_room
from shared.hashing import fingerprint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from loader_server.machine.asking import Asker, Nursling

__all__ = ["Child"]

#: How long the kernel may take to end a process that was killed.
_PATIENCE_S = 5.0

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0

#: A child that lived this long is started again without a pause.
_HEALTHY_S = 2.0


@dataclass(slots=True, eq=False)
class Child:
    """One process of ours; it is started by `start`, and looked after in turns."""

    name: str
    command: Callable[[str], list[str]]
    listen: str = ""
    #: Where else it may listen if it can no longer start there; empty: nowhere.
    spare_listen: str = ""
    process: Nursling | None = None
    restarts: int = 0
    #: Where it answers probes, once it is ready.
    metrics: str = ""
    #: Whether it became ready, and has not died since.
    served: bool = False
    #: The error that it printed, as the parts of a `StokerError`; empty if there was none.
    error: dict[str, str] = field(default_factory=dict)
    #: Why it does not serve, as the log says already.
    logged: str = ""
    #: Whether the last one ended because its nursery had died.
    is_orphan: bool = False
    #: Whether it was told to end.
    is_ending: bool = False
    #: When it will be ended by force, if it still lives.
    kill_s: float = math.inf
    #: When it is to be started again, if that is so.
    again_s: float = math.inf
    _started_s: float = 0.0
    _pause_s: float = _FIRST_PAUSE_S
    #: What it says comes here; -1: nothing more will come.
    _pipe: int = -1
    #: The beginning of a line.
    _begun: bytes = b""

    def start(self, nursery: Asker, within_s: float = math.inf) -> None:
        """Start it; it is killed if it is not ready within this time. MachineError where the system has no room."""
        try:
            reading, writing = os.pipe()
        except OSError as error:
            raise no_room(error) from error
        try:
            self.process = nursery.start([*self.command(self.listen), *self._said()], keep=writing)
        except BaseException:  # no process writes into the pipe
            os.close(reading)
            raise
        finally:
            os.close(writing)
        self._pipe, self._begun, self.served, self.is_ending = reading, b"", False, False
        self.error = {}
        self._started_s, self.again_s = time.monotonic(), math.inf
        self.kill_s = self._started_s + within_s

    def _said(self) -> list[str]:
        """Names the error that it died of, so that it is not printed again."""
        return ["--said", fingerprint(*self.error.values())] if self.error else []

    @property
    def pid(self) -> int:
        """Its process id; 0 while it has none."""
        return self.process.pid if self.process is not None else 0

    def descriptors(self) -> Iterator[int]:
        """The descriptors to poll: readable once there is something to do."""
        if self._pipe >= 0:
            yield self._pipe
        if self.process is not None:
            yield self.process.fileno()

    def due_s(self) -> float:
        """When there is something to do even if nothing is readable."""
        return self.kill_s if self.process is not None else self.again_s

    def hear(self) -> Iterator[dict[str, Any]]:
        """What it has said since the last call."""
        while self._pipe >= 0 and _is_readable(self._pipe):
            came = os.read(self._pipe, 2**16)
            if not came:
                self._hang_up()
            *lines, self._begun = (self._begun + came).split(b"\n")
            for line in lines:
                said = _read(line)
                if "endpoint" in said:
                    self.listen, self.served, self.logged = said["endpoint"], True, ""
                    self.metrics = str(said.get("metrics", ""))
                    self.kill_s = self.kill_s if self.is_ending else math.inf
                self.error = _error_in(said) or self.error
                yield said

    def look(self, now_s: float) -> int | None:
        """Its exit code if it has ended just now; kills it if that is due."""
        if self.process is None:
            return None
        if now_s >= self.kill_s:
            self.process.kill()
            self.kill_s = now_s + _PATIENCE_S
        # Whoever was told to end need not say how it did, which a nursery that is stopped would not tell.
        code = 0 if self.is_ending and self.process.wait_gone(0) else self.process.wait(0)
        if code is not None:
            self.is_orphan = self.process.is_orphan
            for _ in self.hear():  # its last words
                pass
            self._forget()
        return code

    def end(self, within_s: float) -> None:
        """Ask it to end in good order, and end it by force after this time; only once."""
        if not self.is_ending:
            self.is_ending, self.again_s = True, math.inf
            self.kill_s = time.monotonic() + within_s
            if self.process is not None:
                self.process.send_signal(signal.SIGTERM)

    def signal(self, number: int) -> None:
        """Tell it something by a signal, if it is there to hear it."""
        if self.process is not None and self.served:
            self.process.send_signal(number)

    def reap(self) -> bool:
        """Wait until it has ended as it was told to; whether it had to be killed."""
        if self.process is None:
            return False
        in_time = self.process.wait_gone(max(0.0, self.kill_s - time.monotonic()))
        if not in_time:
            self.process.kill()
            self.process.wait_gone(_PATIENCE_S)
        self._forget()
        return not in_time

    def begin_pause(self, now_s: float) -> None:
        """It has died: set when it is to be started again, and where."""
        self.restarts += 1
        healthy = now_s - self._started_s > _HEALTHY_S
        self.again_s = now_s if healthy else now_s + self._pause_s
        self._pause_s = _FIRST_PAUSE_S if healthy else min(2 * self._pause_s, _LONGEST_PAUSE_S)
        if not self.served:  # a child that a transform left behind may hold its port
            self.listen = self.spare_listen or self.listen
        self.served = False

    def start_when_possible(self, now_s: float) -> None:
        """It has to be started, where it was if it was there, as soon as there is a nursery."""
        self.again_s, self.served = now_s, False

    def put_off(self, now_s: float) -> None:
        """It could not be started: set when to try again."""
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
    """What a line says; nothing if it is not one of ours, because the user's code may write there."""
    try:
        said = json.loads(line)
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


def _error_in(said: dict[str, Any]) -> dict[str, str]:
    """The parts of an error, if that is what it says."""
    error = said.get("error")
    if not isinstance(error, dict) or set(error) != {"expected", "got", "where", "remedy"}:
        return {}
    return {key: str(words) for key, words in error.items()}


def _is_readable(descriptor: int) -> bool:
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(0))
