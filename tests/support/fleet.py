"""A real loader side whose processes are started one by one: a coordinator, and workers that may be odd.

Where `loaders` runs what users run, this is for tests that need each process in a place or a state of its own: behind a
relay, with another clock, with a lie to tell (see `odd_worker`).
"""

from __future__ import annotations

import json
import os
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tests.support.forked import ROOT, start_module
from tests.support.loaders import ask, wait_until
from tests.support.proxy import Proxy
from tests.support.reserved_host import reserved_host

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tests.support.forked import ModuleProcess

__all__ = ["Fleet", "fleet"]

_NOTHING: Mapping[str, str] = {}


class Fleet:
    """A coordinator and its workers, by name."""

    def __init__(self, job: Path, *, environment: Mapping[str, str] = _NOTHING) -> None:
        self.job = job
        self.log = job.parent / f"fleet-{os.getpid()}.log"
        self.processes: dict[str, ModuleProcess] = {}
        self._environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{job.parent}", **environment}
        assert self._start("loader_server", "index", str(job)).wait(60) == 0, self.text()
        self.endpoint = ""
        self.coordinate()

    def coordinate(self, *, environment: Mapping[str, str] = _NOTHING) -> ModuleProcess:
        """Start the coordinator, or its successor at the same endpoint; returns when it serves."""
        read, write = os.pipe()
        listen = ("--listen", self.endpoint) if self.endpoint else ()
        command = ("loader_server", "coordinator", str(self.job), *listen)
        process = self._start(*command, environment=environment, ready=write)
        os.close(write)
        with os.fdopen(read) as ready:
            line = ready.readline()
        assert line, self.text()
        self.endpoint = json.loads(line)["endpoint"]
        self.processes["coordinator"] = process
        return process

    def join(self, name: str, *arguments: str, **how: Any) -> ModuleProcess:
        """Start a worker as `begin` does, and return when the coordinator knows it."""
        process = self.begin(name, *arguments, **how)
        wait_until(lambda: name in self.members() or process.poll() is not None, f"{name} has registered", 60)
        assert process.poll() is None, self.text()
        return process

    def begin(
        self,
        name: str,
        *arguments: str,
        odd: tuple[str, ...] = (),
        environment: Mapping[str, str] = _NOTHING,
        job: Path | None = None,
        tensorflow: bool = False,
    ) -> ModuleProcess:
        """Start a worker, of another copy of the job file if one is named; with `tensorflow` it has that imported."""
        module = ("tests.support.odd_worker", *odd) if odd else ("loader_server",)
        command = (*module, "worker", str(job or self.job), "--name", name, "--coordinator", self.endpoint, *arguments)
        process = self.processes[name] = self._start(*command, environment=environment, tensorflow=tensorflow)
        return process

    @contextmanager
    def join_behind_proxy(self, name: str) -> Iterator[Proxy]:
        """Start a worker that trainers reach through a relay only; the coordinator it talks to by itself."""
        with reserved_host() as host, Proxy(f"tcp://{host}") as proxy:
            self.join(name, "--listen", f"tcp://{host}", odd=(f"at={proxy.endpoint}",))
            yield proxy

    def status(self) -> dict[str, Any]:
        """What the coordinator says."""
        keys = self.job.parent / "keys"
        return ask(self.endpoint, keys=str(keys) if keys.exists() else "")

    def worker(self, name: str) -> dict[str, Any]:
        """What the coordinator says of a worker, once it knows of it: one that was held up may be off its list."""
        found: list[dict[str, Any]] = []
        wait_until(
            lambda: found.extend(worker for worker in self.status()["workers"] if worker["name"] == name) or found,
            f"{name} is there",
        )
        return found[0]

    def members(self) -> list[str]:
        """The workers that the coordinator knows."""
        return [worker["name"] for worker in self.status()["workers"]]

    def text(self) -> str:
        """All that the processes have said."""
        return self.log.read_text()

    def _start(
        self,
        *command: str,
        environment: Mapping[str, str] = _NOTHING,
        ready: int | None = None,
        tensorflow: bool = False,
    ) -> ModuleProcess:
        everything = {**self._environment, **({"TF_CPP_MIN_LOG_LEVEL": "3"} if tensorflow else {}), **environment}
        return start_module(
            command, folder=self.job.parent, log=self.log, environment=everything, ready=ready, tensorflow=tensorflow
        )

    def close(self) -> dict[str, int]:
        """End all in good order; their exit codes."""
        for process in self.processes.values():
            process.send_signal(signal.SIGCONT)
            process.terminate()
        try:
            return {name: process.wait(60) for name, process in self.processes.items()}
        finally:
            for process in self.processes.values():
                process.kill()
                process.wait()


@contextmanager
def fleet(job: Path, *workers: str, environment: Mapping[str, str] = _NOTHING) -> Iterator[Fleet]:
    """A fleet for the length of a block, with these workers."""
    made = Fleet(job, environment=environment)
    try:
        for name in workers:
            made.join(name)
        yield made
    finally:
        made.close()
