"""What `/readyz` and `/healthz` answer in each state of a real loader side; who asks is an orchestrator."""

from __future__ import annotations

import contextlib
import itertools
import json
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest

import trainer_client
from shared.errors import StokerError
from tests.support.coordinator import attach, progress
from tests.support.disk import small_disk
from tests.support.loaders import ROOT, Loaders, running, wait_until, write_job
from tests.support.peer import peers
from tests.support.scraping import read_targets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import psutil

_NAPS = """
import time

from loader_server.transforms import transform


@transform()
def naps(sample, rng):
    time.sleep(60)
"""


def _probe(address: str, path: str = "/readyz", timeout_s: float = 30.0) -> str:
    """The word that is answered; "refused" if nobody listens, "silent" if nobody answers in time."""
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=timeout_s) as answer:
            return answer.read().decode().strip()
    except urllib.error.HTTPError as error:
        with error:
            return error.read().decode().strip()
    except OSError as error:
        is_refused = isinstance(getattr(error, "reason", error), ConnectionError)
        return "refused" if is_refused else "silent"


def _free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port: int = held.getsockname()[1]
        return port


class _Machine:
    """A `loader-server run` with one worker, and where its processes answer."""

    def __init__(self, job: Path, loaders: Loaders, port: int) -> None:
        self.job = job
        self.loaders = loaders
        self.run = f"127.0.0.1:{port}"

    def address(self, role: str) -> str:
        targets = read_targets(self.job.parent / "state" / "tones" / "targets")
        (address,) = [str(target["address"]) for target in targets.values() if target["role"] == role]
        return address


@contextlib.contextmanager
def _machine(folder: Path, *transforms: str) -> Iterator[_Machine]:
    (folder / "naps.py").write_text(_NAPS)
    job = write_job(folder, samples=40, job='state = "state"', transforms=(*transforms, "logmel", "characters"))
    port = _free_port()
    arguments = ("--metrics-listen", f"127.0.0.1:{port}")
    with running(job, workers=1, arguments=arguments) as loaders:
        machine = _Machine(job, loaders, port)
        wait_until(lambda: _probe(machine.run) == "ok", "the machine is ready")
        yield machine


@contextlib.contextmanager
def _stopped(process: psutil.Process) -> Iterator[None]:
    process.suspend()
    try:
        yield
    finally:
        process.resume()


def _serving(machine: _Machine) -> None:
    for address in (machine.address("coordinator"), machine.address("worker"), machine.run):
        assert (_probe(address), _probe(address, "/healthz")) == ("ok", "ok")
        assert "404" in _status(address, "/nothing")


def _without_coordinator(machine: _Machine) -> None:
    worker = machine.address("worker")
    with _stopped(machine.loaders.coordinator()):
        wait_until(lambda: _probe(worker) == "coordinator", "the worker misses its coordinator")
        assert _probe(worker, "/healthz") == "ok", "a restart would not help"
        assert _probe(machine.run) == "loop", "the coordinator does not answer"
    wait_until(lambda: _probe(machine.run) == "ok", "all is well again")


def _stuck(machine: _Machine) -> None:
    with _stopped(machine.loaders.workers()[0]):
        assert _probe(machine.address("worker"), timeout_s=1.0) == "silent"
        wait_until(lambda: _probe(machine.run) == "loop", "the machine says that one does not turn")
        assert _probe(machine.run, "/healthz") == "ok"
    wait_until(lambda: _probe(machine.run) == "ok", "all is well again")


def _full(machine: _Machine) -> None:
    coordinator = machine.address("coordinator")
    with peers() as make:
        trainer = make(machine.loaders.endpoint)
        trainer.ask(attach(job="tones"))
        disk = machine.job.parent / "state"
        filler = disk / "filler"
        with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(512))
        numbers = itertools.count(1)
        wait_until(
            lambda: trainer.ask(progress(0, 0, next(numbers))) and _probe(coordinator) == "journal", "the disk is full"
        )
        assert _probe(machine.run) == "journal"
        assert _probe(coordinator, "/healthz") == "ok"
        filler.unlink()
        wait_until(lambda: _probe(machine.run) == "ok", "there is room again")


def _draining(machine: _Machine) -> None:
    def read() -> None:
        with contextlib.suppress(StokerError), trainer_client.connect(machine.loaders.endpoint) as feed:
            for _ in feed:
                pass

    threading.Thread(target=read, daemon=True).start()
    time.sleep(2.0)  # until it builds, which takes minutes
    address = machine.address("worker")
    machine.loaders.workers()[0].send_signal(signal.SIGTERM)
    wait_until(lambda: _probe(address) == "draining", "it says that it ends", 5.0)


def _refused(machine: _Machine) -> None:
    other = machine.job.with_name("other.toml")
    other.write_text(machine.job.read_text().replace("seed = 7", "seed = 8").replace('"state"', '"other"'))
    subprocess.run([sys.executable, "-m", "loader_server", "index", str(other)], cwd=ROOT, check=True, timeout=100)
    port = _free_port()
    words = ("--coordinator", machine.loaders.endpoint, "--listen", "tcp://127.0.0.1:*", "--metrics-port", str(port))
    command = [sys.executable, "-m", "loader_server", "worker", str(other), *words]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL) as worker:
        address = f"127.0.0.1:{port}"
        wait_until(lambda: _probe(address, "/healthz") == "ok" and _probe(address) == "refused", "it waits", 100.0)
        worker.terminate()


def _starting(machine: _Machine) -> None:
    port = _free_port()
    words = ("--coordinator", f"tcp://127.0.0.1:{_free_port()}", "--listen", "tcp://127.0.0.1:*", "--name", "alone")
    command = [sys.executable, "-m", "loader_server", "worker", str(machine.job), *words, "--metrics-port", str(port)]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL) as worker:
        address = f"127.0.0.1:{port}"
        wait_until(lambda: _probe(address) == "starting", "it waits for a coordinator")
        assert _probe(address, "/healthz") == "ok"
        worker.terminate()


def _status(address: str, path: str) -> str:
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(f"http://{address}{path}", timeout=30)
    caught.value.close()
    return str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("state", "transforms"),
    [
        (_starting, ()),
        (_serving, ()),
        (_without_coordinator, ()),
        (_stuck, ()),
        (_draining, ("naps:naps",)),
        (_refused, ()),
        (_full, ()),
    ],
)
def test_readiness_says_what_is(tmp_path: Path, state: Callable[[_Machine], None], transforms: tuple[str, ...]) -> None:
    with contextlib.ExitStack() as stack:
        if state is _full:
            stack.enter_context(small_disk(tmp_path / "state", "4m"))
        state(stack.enter_context(_machine(tmp_path, *transforms)))


@pytest.mark.slow
def test_beyond_loopback_prometheus_is_told_of_all_processes_if_it_shows_the_token(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("0123456789abcdef\n")
    job = write_job(tmp_path, samples=40)
    port = _free_port()
    arguments = ("--metrics-listen", f"0.0.0.0:{port}", "--metrics-token", str(token))
    with running(job, workers=2, arguments=arguments):
        coordinator = read_targets(tmp_path / ".stoker" / "tones" / "targets")["coordinator"]["address"]
        for address in (f"127.0.0.1:{port}", coordinator):
            wait_until(lambda address=address: _probe(address) == "ok", "it is ready, and probes need no token")
            assert "401" in _status(address, "/metrics")
            assert "401" in _status(address, "/targets")
        wait_until(lambda: len(_targets(coordinator)) == 3, "all are told of")
        targets = _targets(coordinator)
        assert _targets(f"127.0.0.1:{port}") == targets, "those of the machine's only job"
        assert {target["labels"]["role"] for target in targets} == {"coordinator", "worker"}
        for target in targets:
            (address,) = target["targets"]
            assert b"process_cpu_seconds_total" in _with_token(address, "/metrics")


def _with_token(address: str, path: str) -> bytes:
    headers = {"Authorization": "Bearer 0123456789abcdef"}
    with urllib.request.urlopen(urllib.request.Request(f"http://{address}{path}", headers=headers), timeout=30) as got:
        answer: bytes = got.read()
        return answer


def _targets(address: str) -> list[dict[str, Any]]:
    targets: list[dict[str, Any]] = json.loads(_with_token(address, "/targets"))
    return targets


#: What the page on monitoring tells orchestrators: how often to probe, how long to wait, how many failures are death.
PERIOD_S, TIMEOUT_S, FAILURES = 10.0, 5.0, 8


@pytest.mark.slow
def test_a_transform_that_holds_the_interpreter_for_twenty_seconds_restarts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = tmp_path / "turns"
    turns.mkdir()
    monkeypatch.setenv("STOKER_TEST_TURNS", str(turns))
    monkeypatch.setenv("STOKER_TEST_HOLD_S", "20")
    with _machine(tmp_path, "tests.support.transforms:holds_the_gil") as machine:
        worker, address = machine.loaders.workers()[0], machine.address("worker")
        read = list[int]()

        def train() -> None:
            with trainer_client.connect(machine.loaders.endpoint) as feed:
                read.extend(batch.number for batch in feed)

        thread = threading.Thread(target=train)
        thread.start()
        wait_until((turns / str(worker.pid)).exists, "it holds the interpreter")
        began_s, answers = time.monotonic(), list[str]()
        while time.monotonic() - began_s < 30.0:
            due_s = time.monotonic() + 2.0  # more often than an orchestrator would
            answers.append(_probe(address, "/healthz", TIMEOUT_S))
            assert _probe(machine.run, "/healthz", TIMEOUT_S) == "ok"
            time.sleep(max(0.0, due_s - time.monotonic()))
        thread.join(100)
        print(answers)
        assert set(answers) == {"silent", "ok"}, "the hold was seen, and never taken for death"
        silent_s = TIMEOUT_S * max(len(list(run)) for answer, run in itertools.groupby(answers) if answer == "silent")
        assert silent_s < PERIOD_S * FAILURES
        assert answers[-1] == "ok"
        assert read
        assert machine.loaders.workers()[0].pid == worker.pid
        assert "died and is started again" not in machine.loaders.text()
