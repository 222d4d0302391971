"""A real loader side for tests: `loader-server run` in a process of its own, on a corpus in a temporary folder."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psutil

from loader_server.commands import status
from shared.errors import LostError
from tests.support.corpora import make_corpus
from tests.support.forked import ROOT, start_module

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

__all__ = ["JOB", "ROOT", "Loaders", "ask", "running", "wait_until", "write_job"]

JOB = """
[job]
name = "{name}"
seed = 7
listen = "tcp://127.0.0.1:*"
{job}

[streams.train]
source = "manifest"
paths = ["{manifest}"]
transforms = {transforms}
length = "audio"
budget = "{budget}"
shapes = 4
{stream}

[streams.train.logmel]
rate = 8000
bands = 40

[streams.dev]
like = "train"
order = "sorted"
"""


def wait_until(holds: Callable[[], object], what: str, timeout_s: float = 60.0) -> None:
    """Wait for a condition of other processes, which cannot wake us; say what did not come about."""
    event, pause_s = threading.Event(), 0.005
    until_s = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > until_s:
            raise AssertionError(f"after {timeout_s:g} s still not: {what}")
        event.wait(pause_s)
        pause_s = min(0.04, 1.5 * pause_s)  # looking costs the others time


def ask(endpoint: str, *, keys: str = "", timeout_s: float = 60.0) -> dict[str, Any]:
    """The coordinator's report; asked for again, because a coordinator that is killed takes questions with it."""
    until_s = time.monotonic() + timeout_s
    while True:
        try:
            return status.ask(endpoint, keys=keys)
        except LostError:
            if time.monotonic() > until_s:
                raise


def write_job(
    folder: Path,
    *,
    name: str = "tones",
    samples: int = 120,
    longest_s: float = 1.0,
    budget: str = "8 s",
    transforms: tuple[str, ...] = ("logmel", "characters"),
    job: str = "",
    stream: str = "",
) -> Path:
    """A corpus of tones and a job file for it; the job file's path."""
    manifest = make_corpus(folder, samples=samples, longest_s=longest_s)
    path = folder / "job.toml"
    path.write_text(
        JOB.format(
            name=name, manifest=manifest.name, transforms=list(transforms), budget=budget, job=job, stream=stream
        )
    )
    return path


class Loaders:
    """A running `loader-server run`; its processes can be found and hurt. With `tensorflow` they have it imported."""

    def __init__(
        self,
        job: Path,
        *beside: Path,
        workers: int = 2,
        arguments: tuple[str, ...] = (),
        tensorflow: bool = False,
    ) -> None:
        self.log = job.parent / f"loaders-{time.monotonic_ns()}.log"
        quiet = {"TF_CPP_MIN_LOG_LEVEL": "3"} if tensorflow else {}
        environment = {**os.environ, **quiet, "PYTHONPATH": f"{ROOT}:{job.parent}"}
        command = ("loader_server", "run", *map(str, (job, *beside)), "--workers", str(workers), *arguments)
        self.log.touch()
        self.process = start_module(
            command, folder=job.parent, log=self.log, environment=environment, tensorflow=tensorflow
        )
        try:
            wait_until(
                lambda: self.text().count("is served at") > len(beside) or self.process.poll() is not None,
                "loaders are ready",
                100,
            )
            assert self.process.poll() is None, self.text()
        except BaseException:
            self.close()
            raise
        self.endpoint = self.text().split("is served at ")[1].split(" ")[0]

    def endpoint_of(self, name: str) -> str:
        """Where one of several jobs is served."""
        return self.text().split(f"Job {name} is served at ")[1].split(" ")[0]

    def text(self) -> str:
        """All that the processes have said."""
        return self.log.read_text()

    def _children(self, role: str) -> list[psutil.Process]:
        children = []
        for child in psutil.Process(self.process.pid).children(recursive=True):
            try:
                if role in " ".join(child.cmdline()).split():  # a short title is padded with empty arguments
                    children.append(child)
            except psutil.NoSuchProcess:
                continue
        return children

    def workers(self) -> list[psutil.Process]:
        """The worker processes."""
        return self._children("worker")

    def coordinator(self) -> psutil.Process:
        """The coordinator's process."""
        wait_until(lambda: self._children("coordinator"), "there is a coordinator")
        return self._children("coordinator")[0]

    def close(self) -> int:
        """End in good order; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise


@contextmanager
def running(job: Path, *beside: Path, **how: object) -> Iterator[Loaders]:
    """Loaders for the length of a block."""
    loaders = Loaders(job, *beside, **how)  # type: ignore[arg-type]
    try:
        yield loaders
    finally:
        loaders.close()
