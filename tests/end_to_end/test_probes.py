"""Real loaders as probes see them: whether they live, and whether they are ready."""

from __future__ import annotations

import json
import signal
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

import pytest

from tests.support.loaders import running, wait_until, write_job

if TYPE_CHECKING:
    from pathlib import Path


def probe(target: Path, path: str) -> str:
    """What the process that wrote this target file answers; empty if nobody does."""
    try:
        (address,) = json.loads(target.read_text())[0]["targets"]
        with urllib.request.urlopen(f"http://{address}{path}", timeout=30) as answer:
            return str(answer.read().decode().strip())
    except urllib.error.HTTPError as error:
        with error:
            return error.read().decode().strip()
    except (OSError, ValueError):
        return ""


@pytest.mark.slow
def test_ready_is_who_serves_and_a_lost_coordinator_makes_nobody_dead(tmp_path: Path) -> None:
    job = write_job(tmp_path)
    with running(job, workers=1) as loaders:
        targets = tmp_path / ".stoker" / "tones" / "targets"
        wait_until(lambda: len(list(targets.glob("*.json"))) == 2, "both say where they are")
        coordinator = targets / "coordinator.json"
        (worker,) = targets.glob("worker-*.json")
        wait_until(lambda: probe(worker, "/readyz") == "ok", "the worker is registered")
        assert [probe(one, "/healthz") for one in (coordinator, worker)] == ["ok", "ok"]
        assert probe(coordinator, "/readyz") == "ok"
        loaders.coordinator().send_signal(signal.SIGSTOP)
        wait_until(lambda: probe(worker, "/readyz") == "coordinator", "the worker misses its coordinator")
        assert probe(worker, "/healthz") == "ok"
        loaders.coordinator().send_signal(signal.SIGCONT)
        wait_until(lambda: probe(worker, "/readyz") == "ok", "the coordinator is back")
        wait_until(lambda: probe(coordinator, "/readyz") == "ok", "it turns")
