"""A second host joins a job by its endpoint, from a folder without the job's files, and builds the same bytes."""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

import psutil
import pytest

import trainer_client
from tests.support.forked import ROOT, start_module
from tests.support.loaders import ask, running, wait_until, write_job

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from subprocess import Popen


class JoinedHost:
    """`loader-server run ENDPOINT` in a folder of its own."""

    def __init__(self, folder: Path, endpoint: str, *arguments: str) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.log = folder / "joined.log"
        self.log.touch()
        self.process: Popen[bytes] = start_module(
            ("loader_server", "run", endpoint, *arguments),
            folder=folder,
            log=self.log,
            environment={**os.environ, "PYTHONPATH": str(ROOT)},
        )

    def text(self) -> str:
        return self.log.read_text()

    def wait_ready(self) -> None:
        wait_until(lambda: "of this host." in self.text() or self.process.poll() is not None, "it has joined", 60)
        assert self.process.poll() is None, self.text()

    def kill(self) -> None:
        """Kill -9 all of the host's processes."""
        for process in [*psutil.Process(self.process.pid).children(recursive=True), psutil.Process(self.process.pid)]:
            process.kill()
        self.process.wait(30)

    def close(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


@contextmanager
def joined(folder: Path, endpoint: str, *arguments: str) -> Iterator[JoinedHost]:
    host = JoinedHost(folder, endpoint, *arguments)
    try:
        host.wait_ready()
        yield host
    finally:
        host.close()


def read(endpoint: str, after: int = -1, then=lambda: None) -> list[tuple[int, str]]:
    """Numbers and digests of an epoch; after so many batches, do something."""
    found = []
    with trainer_client.connect(endpoint, stream="train", epochs=1, prefetch=4) as feed:
        for batch in feed:
            found.append((batch.number, batch.digest))
            if len(found) == after:
                then()
    return found


@pytest.mark.slow
def test_a_host_without_the_jobs_files_joins_and_its_kill_costs_nothing(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    job = write_job(tmp_path / "own", samples=200, budget="3 s")
    with running(job, workers=1) as loaders:
        expected = read(loaders.endpoint)
        with joined(tmp_path / "other", loaders.endpoint, "--workers", "2") as host:
            wait_until(lambda: len(ask(loaders.endpoint)["workers"]) == 3, "all three are there")
            assert read(loaders.endpoint) == expected
            built = sorted(worker["built"] for worker in ask(loaders.endpoint)["workers"])
            assert built[-2] > 0  # at least one beside the job's own, which has read an epoch before
            assert read(loaders.endpoint, 5, host.kill) == expected
        assert not (tmp_path / "other" / "job.toml").exists()
        with joined(tmp_path / "other", loaders.endpoint, "--workers", "1") as again:
            assert again.text().count("fetches what the job needs") == 1  # by the first host, in the same log
