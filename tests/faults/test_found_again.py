"""A coordinator that comes back at another address: workers and trainers that have its endpoint file find it there."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

import trainer_client
from loader_server.commands import status
from shared.errors import LostError, SettingsError, StokerError
from shared.system.endpoint_file import write_endpoint
from tests.support.forked import run_module
from tests.support.loaders import ROOT, running, wait_until, write_job
from tests.support.namespaces import why_no_namespaces

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextlib.contextmanager
def _started(log: Path, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """A command of ours, until the end of the block."""
    with log.open("a") as said:
        command = [sys.executable, "-m", "loader_server", *words]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        process = subprocess.Popen(command, cwd=log.parent, env=environment, stdout=said, stderr=said)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(30)


def _report(endpoint: str) -> dict[str, Any]:
    try:
        return status.ask(endpoint, timeout_s=0.5)
    except LostError:
        return {"workers": [], "streams": {"train": {"trainers": []}}}


def _heard(members: list[dict[str, Any]]) -> bool:
    return any(member["silent_s"] < 1.0 for member in members)


@pytest.mark.slow
@pytest.mark.fault(67)
@pytest.mark.parametrize("gone_s", [0.5, 20.0])
def test_a_coordinator_at_another_address_is_found_by_its_file(tmp_path: Path, gone_s: float) -> None:
    job = write_job(tmp_path)
    subprocess.run([sys.executable, "-m", "loader_server", "index", str(job)], cwd=ROOT, check=True, timeout=100)
    file = tmp_path / ".stoker" / "tones" / "endpoint"
    named = f"file://{file}"
    log = tmp_path / "log"
    with contextlib.ExitStack() as stack:
        # The worker comes before the file does.
        worker = stack.enter_context(_started(log, "worker", str(job), "--coordinator", named))
        first = stack.enter_context(_started(log, "coordinator", str(job), "--listen", "tcp://127.0.0.1:*"))
        feed = stack.enter_context(trainer_client.connect(named, rank=0))
        before = file.read_text().strip()
        wait_until(lambda: _report(before)["workers"], "the worker is there")
        read, ended = [0], list[BaseException]()

        def train() -> None:
            try:
                for _ in range(1_000_000):
                    for _batch in feed:
                        read[0] += 1
                        time.sleep(0.02)
            except StokerError as error:
                ended.append(error)

        threading.Thread(target=train, daemon=True).start()
        wait_until(lambda: read[0] > 5, "it trains")
        first.kill()
        first.wait()
        time.sleep(gone_s)  # the longer it is away, the longer a silent peer's pauses
        began_s = time.monotonic()
        stack.enter_context(_started(log, "coordinator", str(job), "--listen", "tcp://127.0.0.2:*"))
        wait_until(lambda: file.read_text().startswith("tcp://127.0.0.2:"), "the file says where it is")
        wait_until(lambda: _heard(_report(named)["workers"]), "the worker has found it")
        worker_s = time.monotonic() - began_s
        wait_until(lambda: _heard(_report(named)["streams"]["train"]["trainers"]), "the trainer has found it")
        trainer_s = time.monotonic() - began_s
        print(f"away for {gone_s:g} s: found by the worker after {worker_s:.2f} s, by the trainer {trainer_s:.2f} s")
        assert max(worker_s, trainer_s) < 5.0
        count = read[0]
        wait_until(lambda: read[0] > count + 5, "it trains on")
        assert worker.poll() is None
        assert not ended
    assert not file.exists()


def _verify(named: str, *words: str) -> dict[str, Any]:
    code, said, complained = run_module("trainer_client", "verify", named, "--json", *words)
    assert code == 0, (said, complained)
    document: dict[str, Any] = json.loads(said)
    return document


@pytest.mark.slow
@pytest.mark.fault(67)
def test_a_host_that_joined_by_the_file_finds_a_coordinator_at_another_address(tmp_path: Path) -> None:
    """As Slurm's scripts have it: the host may be started first, and knows the file alone."""
    own, other = tmp_path / "own", tmp_path / "other"
    own.mkdir()
    other.mkdir()
    job = write_job(own)
    subprocess.run([sys.executable, "-m", "loader_server", "index", str(job)], cwd=ROOT, check=True, timeout=100)
    file = own / ".stoker" / "tones" / "endpoint"
    named = f"file://{file}"
    log, host_log = own / "log", other / "log"
    with contextlib.ExitStack() as stack:
        host = stack.enter_context(_started(host_log, "run", named, "--workers", "1"))
        wait_until(lambda: "waits for the coordinator" in host_log.read_text(), "the host says what it waits for")
        first = stack.enter_context(_started(log, "coordinator", str(job), "--listen", "tcp://127.0.0.1:*"))
        wait_until(lambda: f"Job tones at {named} has 1 workers" in host_log.read_text(), "the host has joined")
        wait_until(lambda: _report(named)["workers"], "its worker is there")
        code, _, complained = run_module("loader_server", "fetch", named, "--state", str(tmp_path / "fetched"))
        assert code == 0, complained
        assert list((tmp_path / "fetched" / "bundles").glob("*/job.toml"))
        before = _verify(named)
        first.kill()
        first.wait()
        stack.enter_context(_started(log, "coordinator", str(job), "--listen", "tcp://127.0.0.2:*"))
        wait_until(lambda: "127.0.0.2" in file.read_text(), "it serves")
        began_s = time.monotonic()
        wait_until(lambda: _heard(_report(named)["workers"]), "its worker has found it")
        took_s = time.monotonic() - began_s
        print(f"found by the host's worker after {took_s:.2f} s")
        assert took_s < 5.0
        assert _verify(named, "--against", named)["digest"] == before["digest"]
        assert host.poll() is None
        assert host_log.read_text().count("waits for the coordinator") == 1


_READER = """
import sys
import trainer_client

with trainer_client.connect(sys.argv[1], epochs=1_000_000) as feed:
    for _ in range(1_000_000):
        for batch in feed:
            feed.trained()
            print("batch", batch.epoch, batch.number, flush=True)
"""


@contextlib.contextmanager
def _started_with_names(names: Path, log: Path, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    """A program that finds the addresses of hosts in this file, and on no name server's list."""
    script = 'mount --bind "$0" /etc/hosts && exec "$@"'
    with log.open("a") as said:
        process = subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", script, str(names), sys.executable, *command],
            cwd=log.parent, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=said, stderr=said,
        )  # fmt: skip
    try:
        yield process
    finally:
        process.terminate()
        process.wait(30)


@pytest.mark.slow
@pytest.mark.fault(67)
def test_a_coordinator_whose_name_has_another_address_is_found_by_its_name(tmp_path: Path) -> None:
    if reason := why_no_namespaces("--mount"):
        pytest.skip(reason)
    job = write_job(tmp_path)
    subprocess.run([sys.executable, "-m", "loader_server", "index", str(job)], cwd=ROOT, check=True, timeout=100)
    (tmp_path / "reader.py").write_text(_READER)
    names, log, read_log = tmp_path / "hosts", tmp_path / "log", tmp_path / "read"
    names.write_text("127.0.0.1 stoker-coordinator.test\n")
    names.chmod(0o644)
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(_started(log, "coordinator", str(job), "--listen", "tcp://127.0.0.1:*"))
        file = tmp_path / ".stoker" / "tones" / "endpoint"
        wait_until(file.exists, "the coordinator serves")
        port = file.read_text().strip().rpartition(":")[2]
        named = f"tcp://stoker-coordinator.test:{port}"
        worker = ("-m", "loader_server", "worker", str(job), "--coordinator", named)
        stack.enter_context(_started_with_names(names, log, *worker))
        reader = stack.enter_context(_started_with_names(names, read_log, str(tmp_path / "reader.py"), named))
        wait_until(lambda: read_log.read_text().count("batch") > 5, "it trains")
        first.kill()
        first.wait()
        names.write_text("127.0.0.2 stoker-coordinator.test\n")  # in place: another file would not be seen there
        endpoint = f"tcp://127.0.0.2:{port}"
        stack.enter_context(_started(log, "coordinator", str(job), "--listen", endpoint))
        wait_until(lambda: "127.0.0.2" in file.read_text(), "it serves")
        began_s = time.monotonic()
        wait_until(lambda: _heard(_report(endpoint)["workers"]), "the worker has found it")
        worker_s = time.monotonic() - began_s
        wait_until(lambda: _heard(_report(endpoint)["streams"]["train"]["trainers"]), "the trainer has found it")
        trainer_s = time.monotonic() - began_s
        print(f"found by name by the worker after {worker_s:.2f} s, by the trainer {trainer_s:.2f} s")
        assert max(worker_s, trainer_s) < 5.0
        count = read_log.read_text().count("batch")
        wait_until(lambda: read_log.read_text().count("batch") > count + 5, "it trains on")
        assert reader.poll() is None


@pytest.mark.fault(67)
def test_a_file_that_says_nothing_is_waited_for_and_named_in_the_end(tmp_path: Path) -> None:
    file = tmp_path / "endpoint"
    named = f"file://{file}"
    with pytest.raises(LostError) as caught:
        trainer_client.connect(named, connect_timeout_s=0.5)
    assert str(caught.value).startswith(
        f"{named}: expected a coordinator that answers within 0.5 s, got No such file or directory. Start the loaders"
    )
    file.write_text("tcp://127.0.")
    with pytest.raises(LostError) as caught:
        status.ask(named, timeout_s=0.3)
    assert str(caught.value).startswith(
        f"{named}: expected a coordinator that answers within 0.3 s, got the file says 'tcp://127.0.', which is no "
        "address. Start it"
    )


@pytest.mark.fault(67)
def test_a_file_that_others_may_write_is_refused_without_keys(tmp_path: Path) -> None:
    file = tmp_path / "endpoint"
    write_endpoint(file, "tcp://127.0.0.1:7400")
    file.chmod(0o666)
    with pytest.raises(SettingsError, match=r"got .*endpoint, which others may write\. Use keys"):
        trainer_client.connect(f"file://{file}")


def test_what_is_advertised_is_what_others_are_told(tmp_path: Path) -> None:
    job = write_job(tmp_path)
    subprocess.run([sys.executable, "-m", "loader_server", "index", str(job)], cwd=ROOT, check=True, timeout=100)
    file = tmp_path / ".stoker" / "tones" / "endpoint"
    log = tmp_path / "log"
    open_to_all = ("--insecure", "--listen", "tcp://0.0.0.0:*")
    with _started(log, "coordinator", str(job), *open_to_all, "--advertise", "localhost"):
        wait_until(file.exists, "the coordinator serves")
        assert file.read_text().startswith("tcp://localhost:")
        to = ("--coordinator", f"file://{file}")
        with _started(log, "worker", str(job), *to, *open_to_all, "--advertise", "203.0.113.7:17410"):
            wait_until(lambda: _report(f"file://{file}")["workers"], "the worker is there")
            assert [one["endpoint"] for one in _report(f"file://{file}")["workers"]] == ["tcp://203.0.113.7:17410"]


def test_what_a_machine_advertises_is_what_others_are_told_of_all_its_processes(tmp_path: Path) -> None:
    job = write_job(tmp_path)
    open_to_all = ("--insecure", "--listen", "tcp://0.0.0.0:*")
    with running(job, workers=1, arguments=(*open_to_all, "--advertise", "localhost")):
        said = f"file://{tmp_path / '.stoker' / 'tones' / 'endpoint'}"
        endpoint = (tmp_path / ".stoker" / "tones" / "endpoint").read_text().strip()
        assert endpoint.startswith("tcp://localhost:")
        joins = ("run", endpoint, "--workers", "1", "--state", str(tmp_path / "host"), "--advertise", "203.0.113.7")
        with _started(tmp_path / "log", *joins, *open_to_all):
            wait_until(lambda: len(_report(said)["workers"]) == 2, "both workers are there")
            hosts = {one["endpoint"].rpartition(":")[0] for one in _report(said)["workers"]}
    assert hosts == {"tcp://localhost", "tcp://203.0.113.7"}
