"""A real worker whose machine would build other bytes is told what differs, by names that people know."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.support.fleet import fleet
from tests.support.loaders import wait_until, write_job

if TYPE_CHECKING:
    from pathlib import Path

#: Another kind than this machine's environment names.
OTHER = "Sandybridge" if os.environ.get("OPENBLAS_CORETYPE") == "Haswell" else "Haswell"


@pytest.mark.slow
@pytest.mark.fault(40)
def test_a_refused_worker_hears_which_part_differs(tmp_path: Path) -> None:
    job = write_job(tmp_path, samples=24)
    with fleet(job) as loaders:
        worker = loaders.begin("vm-1", environment={"OPENBLAS_CORETYPE": OTHER})
        wait_until(lambda: loaders.status()["failing"], "it says why it cannot serve")
        (failing,) = loaders.status()["failing"]
        assert worker.poll() is None, "it waits until either is replaced"
        said = loaders.text()
    assert failing["got"].startswith("vm-1, which differs: processor (")
    assert failing["got"].endswith(f"OPENBLAS_CORETYPE={OTHER} on the worker's)")
    assert said.count("this worker waits until it or its coordinator is replaced") == 1
    assert "worker differs from this machine" in said
    assert "index of stream" not in said
    assert "plan of stream" not in said


@pytest.mark.slow
@pytest.mark.fault(68)
def test_a_worker_ends_if_the_one_after_it_would_be_taken_in(tmp_path: Path) -> None:
    """What it read when it began has changed on disk since, as the coordinator that came back has found."""
    job = write_job(tmp_path, samples=24)
    with fleet(job, "w0") as loaders:
        worker = loaders.processes["w0"]
        loaders.processes["coordinator"].terminate()
        assert loaders.processes["coordinator"].wait(60) == 0
        job.write_text(job.read_text().replace("bands = 40", "bands = 20"))
        loaders.coordinate()
        assert worker.wait(60) == 4
        assert "transform logmel of stream train (its settings or code)" in loaders.text()
        loaders.join("w0")
        assert loaders.status()["failing"] == []
