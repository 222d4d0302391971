"""Prometheus is told of processes that live: after kill -9 of any, the file that named it goes."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from shared.metrics.scrape_targets import SWEEP_S
from tests.support.loaders import ROOT, running, wait_until, write_job
from tests.support.scraping import fetch_metrics, read_targets

if TYPE_CHECKING:
    from pathlib import Path

_WITHIN_S = SWEEP_S + 10.0


@pytest.mark.fault(66)
def test_the_targets_of_killed_processes_go_and_those_of_their_successors_stay(tmp_path: Path) -> None:
    job = write_job(tmp_path)
    folder = tmp_path / ".stoker" / "tones" / "targets"
    with running(job, workers=2) as loaders:
        words = (loaders.endpoint, str(folder), json.dumps({"stream": "train"}))
        trainer = subprocess.Popen([sys.executable, "-m", "tests.monitoring.recording.trainer", *words], cwd=ROOT)
        try:
            wait_until(lambda: len(read_targets(folder)) == 4, "coordinator, workers and trainer are named")
            before = {name: target["address"] for name, target in read_targets(folder).items()}
            loaders.workers()[0].kill()
            trainer.kill()
        finally:
            trainer.kill()
            trainer.wait()

        def is_right() -> bool:
            now = {name: target["address"] for name, target in read_targets(folder).items()}
            return len(now) == 3 and now != {name: before.get(name) for name in now}

        wait_until(is_right, "the trainer's file is gone, and the worker's is its successor's", _WITHIN_S)
        targets = read_targets(folder).values()
        assert sorted(target["role"] for target in targets) == ["coordinator", "worker", "worker"]
        for target in targets:
            assert fetch_metrics(target["address"])
    assert read_targets(folder) == {}


@pytest.mark.fault(66)
def test_what_a_killed_supervisor_left_is_removed_when_its_job_begins_again(tmp_path: Path) -> None:
    job = write_job(tmp_path)
    folder = tmp_path / ".stoker" / "tones" / "targets"
    with running(job, workers=2) as loaders:
        children = [loaders.coordinator(), *loaders.workers()]
        loaders.process.kill()
        wait_until(lambda: not any(child.is_running() for child in children), "all have ended")
    stale = folder / "worker-elsewhere-7.json"
    stale.write_text(json.dumps([{"targets": ["127.0.0.1:1"], "labels": {"role": "worker"}}]))
    with running(job, workers=1):
        assert stale.name not in [path.name for path in folder.iterdir()]
        assert len(read_targets(folder)) == 2
