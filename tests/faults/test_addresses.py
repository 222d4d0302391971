"""Workers on hosts whose network comes late, or whose address changes; hosts are network namespaces."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.hosts import Host, hosts
from tests.support.loaders import ROOT, wait_until, write_job


def _workers(host: Host) -> list[dict[str, Any]]:
    """What the coordinator says of its workers, asked on its own host."""
    words = [sys.executable, "-m", "loader_server", "status", "tcp://127.0.0.1:7400", "--json"]
    done = subprocess.run(
        ["ip", "netns", "exec", host.namespace, *words],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    if done.returncode:
        return []
    workers: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])["workers"]
    return workers


def _endpoints(host: Host) -> list[str]:
    return [worker["endpoint"] for worker in _workers(host)]


def _silent_s(host: Host) -> float:
    """Return for how long the one worker has been silent; for ever if it is not listed."""
    workers = _workers(host)
    return float(workers[0]["silent_s"]) if workers else float("inf")


def _listens(process: subprocess.Popen[str], port: int) -> bool:
    """Return whether the process's host has a server at this port."""
    return f":{port:04X} 00000000:0000 0A" in Path(f"/proc/{process.pid}/net/tcp").read_text()


@pytest.mark.slow
@pytest.mark.fault(63)
def test_a_worker_that_starts_before_its_network_is_found_where_it_is_and_where_it_moves(tmp_path: Path) -> None:
    job = write_job(tmp_path)
    subprocess.run([sys.executable, "-m", "loader_server", "index", str(job)], cwd=ROOT, check=True, timeout=100)
    with hosts(2) as (one, other):
        log = tmp_path / "log"
        open_to_all = ("--listen", "tcp://0.0.0.0:7400", "--insecure")
        one.start("loader_server", "coordinator", str(job), *open_to_all, folder=tmp_path, log=log)
        to = ("--coordinator", f"tcp://{one.address}:7400", "--insecure")
        worker = ("loader_server", "worker", str(job), *to, "--listen")
        early = other.start(*worker, "tcp://0.0.0.0:7411", folder=tmp_path, log=log)
        wait_until(lambda: _listens(early, 7411), "the worker listens")
        other.plug_in()
        wait_until(lambda: _endpoints(one) == ["tcp://10.77.0.2:7411"], "it is found where it is")
        other.change_address("10.77.0.99")
        wait_until(lambda: _endpoints(one) == ["tcp://10.77.0.99:7411"], "it is found where it moved")
        other.unplug()
        wait_until(lambda: _silent_s(one) > 3.0, "the coordinator misses it")
        other.plug_in()
        wait_until(lambda: _silent_s(one) < 1.0, "it is back, where it was")
        assert early.poll() is None
        hidden = other.start(*worker, "tcp://127.0.0.1:7412", folder=tmp_path, log=log)
        assert hidden.wait(60) == 4
        assert "the loopback endpoint tcp://127.0.0.1:7412" in log.read_text()
        assert "expected an endpoint on 10.77.0.99" in log.read_text()
        assert _endpoints(one) == ["tcp://10.77.0.99:7411"]
