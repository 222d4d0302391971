"""The parent of one machine's loader side: a coordinator and one worker per core, restarted when they die.

Rules: each child keeps its endpoint across restarts, so that trainers find it again; only a worker that can no longer
start there tries another port. A child that fails before it was ever ready points to a mistake in the set-up, and ends
everything with its own error; one that dies later is restarted after a growing pause. Children are forked from the
nursery, and end with this process, even if it is killed. The loop wakes when a child ends, a signal comes or a pause is
over.
"""

from __future__ import annotations

import json
import os
import select
import signal
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from loader_server.machine import deadline
from loader_server.machine.processes import how_it_ended
from shared.endpoints import at_any_port
from shared.errors import StokerError
from shared.logs import Log
from shared.sockets import Waker

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from loader_server.machine.nursery import Nursery, Nursling

__all__ = ["Child", "Supervisor", "SupervisorSettings"]

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0

#: A child that lived this long is started again without a pause.
_HEALTHY_S = 2.0

#: A start takes under a second on an idle machine; this is for one that is not.
_READY_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorSettings:
    """What to run."""

    job_path: Path
    listen: str
    workers: int
    insecure: bool = False
    drain_timeout_s: float = 10.0
    log_level: str = "info"
    #: The coordinator's port; those of workers follow. 0: any free ports.
    metrics_port: int = 0


class StartError(StokerError):
    """A child ended before it was ready; its own error is printed above this one."""


@dataclass(slots=True)
class Child:
    """One process that is kept running."""

    name: str
    command: Callable[[str], list[str]]
    listen: str
    #: Where else it may listen if it cannot start there any more; empty: nowhere.
    spare_listen: str = ""
    process: Nursling | None = None
    started_s: float = 0.0
    restarts: int = 0
    pause_s: float = _FIRST_PAUSE_S
    again_s: float = 0.0
    ready: int = field(default=-1)
    #: Whether it became ready since its last start.
    served: bool = False


class Supervisor:
    """`start` returns when all are ready; `run` keeps them running until `stop`."""

    def __init__(self, settings: SupervisorSettings, nursery: Nursery) -> None:
        self.settings = settings
        self._nursery = nursery
        self.log = Log("supervisor")
        self.coordinator = Child("coordinator", self._coordinator_command, settings.listen)
        anywhere = at_any_port(settings.listen)
        self.workers = [
            Child(f"worker-{n}", self._worker_command(n), anywhere, anywhere) for n in range(settings.workers)
        ]
        self._waker = Waker()
        self._stopping = False

    @property
    def endpoint(self) -> str:
        """Where trainers connect."""
        return self.coordinator.listen

    @property
    def children(self) -> list[Child]:
        """The coordinator and the workers."""
        return [self.coordinator, *self.workers]

    def _base(self, role: str, listen: str) -> list[str]:
        insecure = ["--insecure"] if self.settings.insecure else []
        own = ["--listen", listen, "--parent", str(self._nursery.pid), "--log-level", self.settings.log_level]
        return [role, str(self.settings.job_path), *own, *insecure]

    def _coordinator_command(self, listen: str) -> list[str]:
        return [*self._base("coordinator", listen), *self._metrics(0)]

    def _metrics(self, offset: int) -> list[str]:
        first = self.settings.metrics_port
        return ["--metrics-port", str(first and first + offset)]

    def _worker_command(self, number: int) -> Callable[[str], list[str]]:
        def command(listen: str) -> list[str]:
            name = f"{os.uname().nodename}-{number}"
            own = ["--name", name, "--coordinator", self.coordinator.listen]
            return [*self._base("worker", listen), *own, *self._metrics(1 + number)]

        return command

    # --- life ---

    def start(self) -> None:
        """Start all; they are ready when this returns."""
        self._start(self.coordinator)
        self._wait_until_ready([self.coordinator])
        for worker in self.workers:
            self._start(worker)
        self._wait_until_ready(self.workers)

    def run(self) -> None:
        """Keep them running until `stop`, then end them."""
        try:
            while not self._stopping:
                self._wait_for_events()
                self._mend()
        finally:
            self.close()

    def stop(self) -> None:
        """End soon; may be called from a signal handler."""
        self._stopping = True
        self._waker.wake()

    def close(self) -> None:
        """Drain the workers, then end the coordinator; kill what does not end in time."""
        self._stopping = True
        for group in (self.workers, [self.coordinator]):
            for child in group:
                if child.process is not None:
                    child.process.send_signal(signal.SIGTERM)
            until_s = time.monotonic() + self.settings.drain_timeout_s
            for child in group:
                self._reap(child, until_s)

    def _reap(self, child: Child, until_s: float) -> None:
        if child.process is None:
            return
        if child.process.wait(max(0.0, until_s - time.monotonic())) is None:
            self.log.warning("killed, for it did not end in time", child=child.name)
            child.process.kill()
            child.process.wait()
        self._forget(child)

    def _start(self, child: Child) -> None:
        reading, writing = os.pipe()
        try:
            child.process = self._nursery.start(child.command(child.listen), keep=writing)
        finally:
            os.close(writing)
        child.ready, child.served = reading, False
        child.started_s = time.monotonic()

    def _wait_until_ready(self, children: Sequence[Child]) -> None:
        until_s = time.monotonic() + _READY_TIMEOUT_S
        for child in children:
            if not self._read_ready(child, until_s):
                self.close()
                raise StartError(
                    expected=f"{child.name} to start",
                    got="its end before it was ready",
                    where=str(self.settings.job_path),
                    remedy="Its own error stands above.",
                )

    def _read_ready(self, child: Child, until_s: float) -> bool:
        """Read what the child says when it is ready: its endpoint, which it keeps across restarts."""
        readable, _, _ = select.select([child.ready], [], [], max(0.0, until_s - time.monotonic()))
        line = os.read(child.ready, 4096) if readable else b""
        os.close(child.ready)
        child.ready = -1
        child.served = bool(line)
        if line:
            child.listen = json.loads(line)["endpoint"]
            self.log.info(
                "ready", child=child.name, endpoint=child.listen, pid=child.process.pid if child.process else 0
            )
        return child.served

    # --- mending ---

    def _wait_for_events(self) -> None:
        """Wait until something happens: a child ends or becomes ready, a signal comes, a pause is over."""
        now_s = time.monotonic()
        alive = [child.process.fileno() for child in self.children if child.process is not None]
        starting = [child.ready for child in self.children if child.ready >= 0]
        pauses = [child.again_s - now_s for child in self.children if child.process is None]
        select.select([*alive, *starting, self._waker.fileno()], [], [], max(0.0, min(pauses)) if pauses else None)
        self._waker.clear()

    def _mend(self) -> None:
        now_s = time.monotonic()
        for child in self.children:
            if child.ready >= 0 and select.select([child.ready], [], [], 0)[0]:
                self._read_ready(child, now_s)
            code = child.process.wait(0) if child.process is not None else None
            if code is not None:
                self._note_death(child, code, now_s)
            if child.process is None and now_s >= child.again_s and not self._stopping:
                child.restarts += 1
                self._start(child)

    def _note_death(self, child: Child, code: int, now_s: float) -> None:
        self._forget(child)
        healthy = now_s - child.started_s > _HEALTHY_S
        child.again_s = now_s if healthy else now_s + child.pause_s
        child.pause_s = _FIRST_PAUSE_S if healthy else min(2 * child.pause_s, _LONGEST_PAUSE_S)
        if not child.served:  # a child that a transform left behind may hold its port
            child.listen = child.spare_listen or child.listen
        self.log.warning("died and is started again", child=child.name, cause=_cause(code), restarts=child.restarts + 1)

    @staticmethod
    def _forget(child: Child) -> None:
        child.process = None
        if child.ready >= 0:
            os.close(child.ready)
            child.ready = -1


def _cause(code: int) -> str:
    if code == -deadline.SIGNAL:
        return "a sample missed its build_timeout; the stacks above say where"
    return how_it_ended(code)
