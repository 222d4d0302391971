"""A second host joins a job by its endpoint, from a folder without the job's files, and builds the same bytes."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import urllib.error
import urllib.request
from contextlib import contextmanager
from typing import TYPE_CHECKING

import psutil
import pytest

import trainer_client
from loader_server.commands.index import index_missing
from loader_server.job_file import JobFile
from shared.keys import make_keys
from tests.support.corpora import make_corpus
from tests.support.forked import ROOT, start_module
from tests.support.hosts import hosts
from tests.support.loaders import ask, running, wait_until, write_job

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
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

    def close_itself(self) -> int:
        """Wait until it ends, which it should; the exit code."""
        return self.process.wait(60)

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


def _readiness(port: int) -> str:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=30) as answer:
            return str(answer.read().decode().strip())
    except urllib.error.HTTPError as error:
        with error:
            return str(error.read().decode().strip())


def read(
    endpoint: str, after: int = -1, then: Callable[[], object] = lambda: None, keys: str = ""
) -> list[tuple[int, int]]:
    """Numbers and digests of an epoch; after so many batches, do something."""
    found = []
    with trainer_client.connect(endpoint, stream="train", epochs=1, prefetch=4, keys=keys) as feed:
        for batch in feed:
            found.append((batch.number, batch.digest))
            if len(found) == after:
                then()
    return found


def _builders(endpoint: str) -> int:
    """How many workers have built a batch, as their heartbeats say."""
    return sum(worker["built"] > 0 for worker in ask(endpoint)["workers"])


@pytest.mark.slow
def test_a_host_without_the_jobs_files_joins_and_its_kill_costs_nothing(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    job = write_job(tmp_path / "own", samples=200, budget="3 s")
    with running(job, workers=1) as loaders:
        expected = read(loaders.endpoint)
        with joined(tmp_path / "other", loaders.endpoint, "--workers", "2") as host:
            wait_until(lambda: len(ask(loaders.endpoint)["workers"]) == 3, "all three are there")
            assert read(loaders.endpoint) == expected
            wait_until(lambda: _builders(loaders.endpoint) > 1, "a worker beside the job's own has built")
            assert read(loaders.endpoint, 5, host.kill) == expected
        assert not (tmp_path / "other" / "job.toml").exists()
        with joined(tmp_path / "other", loaders.endpoint, "--workers", "1") as again:
            assert again.text().count("fetches what the job needs") == 1  # by the first host, in the same log


@pytest.mark.slow
def test_one_host_joins_twice_with_one_state_folder(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    job = write_job(tmp_path / "own", samples=120, budget="3 s")
    state = ("--state", str(tmp_path / "state"), "--workers", "1")
    with running(job, workers=1) as loaders:
        expected = read(loaders.endpoint)
        with joined(tmp_path / "one", loaders.endpoint, *state) as one:
            with joined(tmp_path / "two", loaders.endpoint, *state):
                wait_until(lambda: len(ask(loaders.endpoint)["workers"]) == 3, "all three are there")
                names = [worker["name"] for worker in ask(loaders.endpoint)["workers"]]
                assert len(set(names)) == 3
                assert all(name.startswith(os.uname().nodename) for name in names)
                assert len(list((tmp_path / "state").glob("hosts/*/tones/job.toml"))) == 2
                assert read(loaders.endpoint, 5, one.kill) == expected
            wait_until(lambda: len(ask(loaders.endpoint)["workers"]) == 1, "they are gone")
        with joined(tmp_path / "three", loaders.endpoint, *state):  # the name of the one that was killed
            wait_until(lambda: len(ask(loaders.endpoint)["workers"]) == 2, "it has joined")
            assert {worker["name"] for worker in ask(loaders.endpoint)["workers"]} < set(names)
            assert len(list((tmp_path / "state").glob("hosts/*/tones"))) == 2


@pytest.mark.slow
def test_a_host_gets_the_jobs_own_modules_if_it_accepts_code(tmp_path: Path) -> None:
    own, other = tmp_path / "own", tmp_path / "other"
    own.mkdir()
    other.mkdir()
    keys = ("--keys", str(tmp_path / "keys"))
    make_keys(tmp_path / "keys")
    (own / "louder.py").write_text("import louder_by\n\ndef louder(sample, rng): sample['audio'] *= louder_by.FACTOR\n")
    (own / "louder_by.py").write_text("FACTOR = 0.5\n")
    transforms = ("louder:louder", "logmel", "characters")
    job = write_job(own, samples=60, budget="3 s", transforms=transforms, job=f'keys = "{tmp_path / "keys"}"')
    make_corpus(other, samples=60, longest_s=1.0)  # the same data, elsewhere
    with running(job, workers=1) as loaders:
        expected = read(loaders.endpoint, keys=keys[1])
        arguments = (*keys, "--workers", "1", "--data", str(other))
        lacking = JoinedHost(other, loaders.endpoint, *arguments)
        assert lacking.close_itself() == 1
        assert 'expected the module "louder" to be importable' in lacking.text()
        assert "join with --accept-code" in lacking.text()
        with joined(tmp_path / "accepting", loaders.endpoint, *arguments, "--accept-code"):
            loaders.workers()[0].suspend()  # so that only the other one builds
            try:
                assert read(loaders.endpoint, keys=keys[1]) == expected
            finally:
                loaders.workers()[0].resume()


_READER = """
import sys
import time
import trainer_client

endpoint, keys, epochs = sys.argv[1], sys.argv[2], int(sys.argv[3])
with trainer_client.connect(endpoint, stream="train", epochs=epochs, prefetch=4, keys=keys) as feed:
    for _ in range(epochs):
        for batch in feed:
            print("batch", batch.epoch, batch.number, batch.digest, flush=True)
            time.sleep(0.03)
print("read", flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("way", ["tcp", "file"])
def test_across_hosts_with_keys_alone_from_a_coordinator_without_workers(tmp_path: Path, way: str) -> None:
    """Network namespaces: all batches come from the host that joined, which is killed, and joins again."""
    own, other = tmp_path / "own", tmp_path / "other"
    own.mkdir()
    other.mkdir()
    make_keys(tmp_path / "keys")
    job = write_job(own, samples=300, budget="3 s", job=f'keys = "{tmp_path / "keys"}"')
    shutil.copytree(tmp_path / "keys", other / "keys", ignore=shutil.ignore_patterns("*.key_secret"))
    shutil.copyfile(tmp_path / "keys" / "worker.key_secret", other / "keys" / "worker.key_secret")
    (tmp_path / "reader.py").write_text(_READER)
    index_missing(JobFile(job))
    with running(job, workers=1) as alone:
        expected = read(alone.endpoint, keys=str(tmp_path / "keys"))
    with hosts(2) as (first, second):
        second.plug_in()
        log, read_log = tmp_path / "first.log", tmp_path / "reader.log"
        coordinator = ("loader_server", "coordinator", str(job), "--listen", "tcp://0.0.0.0:7400")
        first.start(*coordinator, folder=own, log=log)
        endpoint = f"tcp://{first.address}:7400"
        joining = ("loader_server", "run", endpoint, "--keys", "keys", "--workers", "2")
        joining = (*joining, "--listen", "tcp://0.0.0.0:7410")
        if way == "file":
            joining = (*joining[:2], f"file://{own}/.stoker/tones/endpoint", *joining[3:-2])
        host = second.start(*joining, folder=other, log=tmp_path / "second.log")
        wait_until(lambda: "has 2 workers" in (tmp_path / "second.log").read_text(), "it has joined")
        if way == "tcp":
            ports = sorted(word for word in (tmp_path / "second.log").read_text().split('"') if ":741" in word)
            assert ports == ["tcp://0.0.0.0:7410", "tcp://0.0.0.0:7412"]  # between them those of sealed batches
        reader = first.start("reader", endpoint, str(tmp_path / "keys"), "2", folder=tmp_path, log=read_log)
        wait_until(lambda: read_log.read_text().count("batch") >= len(expected) + 5, "the second epoch has begun")
        for process in [*psutil.Process(host.pid).children(recursive=True), psutil.Process(host.pid)]:
            process.kill()
        assert reader.poll() is None
        second.start(*joining, folder=other, log=tmp_path / "again.log")
        wait_until(lambda: reader.poll() is not None, "both epochs are read", 120)
        lines = read_log.read_text().splitlines()
        assert lines[-1] == "read"
        digests = [tuple(map(int, line.split()[2:])) for line in lines if line.startswith("batch 0")]
        assert digests == expected
        assert len([line for line in lines if line.startswith("batch 1")]) == len(expected)
        assert "fetches what the job needs" not in (tmp_path / "again.log").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("way", ["tcp", "file"])
def test_a_host_stays_joined_though_the_coordinator_comes_back_with_another_index(tmp_path: Path, way: str) -> None:
    """At the same address, or at another one that its file says."""
    own = tmp_path / "own"
    own.mkdir()
    job = write_job(own, samples=120, budget="3 s")
    with running(job, workers=1) as first:
        named = first.endpoint if way == "tcp" else f"file://{own}/.stoker/tones/endpoint"
        with joined(tmp_path / "other", named, "--workers", "1") as host:
            wait_until(lambda: len(ask(named)["workers"]) == 2, "it has joined")
            first.close()
            (manifest,) = own.glob("*.csv")
            lines = manifest.read_text().splitlines(keepends=True)
            manifest.write_text("".join(lines[:-20]))
            shutil.rmtree(own / ".stoker")
            with running(job, workers=1, arguments=("--listen", named) if way == "tcp" else ()):
                wait_until(lambda: len(ask(named)["workers"]) == 2, "its worker has come back")
                assert host.text().count("has fetched it") == 2
                assert read(named)


def test_a_host_is_ready_by_its_workers_alone_and_its_metrics_have_the_ports_after_its_own(tmp_path: Path) -> None:
    """Its coordinator is elsewhere, so it is not asked for an answer."""
    job = write_job(tmp_path / "own", samples=8, longest_s=0.3)
    with socket.create_server(("127.0.0.1", 0)) as first, running(job, workers=1) as loaders:
        port = first.getsockname()[1]
        first.close()
        ports = ("--metrics-port", str(port))  # on loopback, as all metrics are unless an address is named
        with joined(tmp_path / "host", loaders.endpoint, *ports, "--workers", "1") as host:
            wait_until(lambda: _readiness(port) == "ok", f"the host is ready: {host.text()}")
            assert _readiness(port + 1) == "ok", "of its worker"
            served = [worker["metrics"] for worker in ask(loaders.endpoint)["workers"]]
            assert f"127.0.0.1:{port + 1}" in served
            coordinator = loaders.coordinator()
            coordinator.suspend()
            try:
                wait_until(lambda: _readiness(port) == "coordinator", "the coordinator is missed")
            finally:
                coordinator.resume()
