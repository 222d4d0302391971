"""`loader-server demo`, short: it ends by itself with its figures, and leaves a job to start from and no process."""

from __future__ import annotations

import json
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

import psutil
import pytest

from loader_server.job_file import JobFile
from tests.support.forked import start_talking
from tests.support.loaders import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.forked import TalkingProcess

KEYS = [
    "steps", "loss_first", "loss_last", "error_last", "data_wait_ratio", "padding_ratio", "shapes", "lost", "repeated",
]  # fmt: skip


def _processes(folder: Path) -> list[str]:
    """Whatever runs with this folder on its command line."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        line = " ".join(process.info["cmdline"] or ())
        if str(folder) in line and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(line)
    return found


@contextmanager
def _demo(folder: Path, *arguments: str) -> Iterator[TalkingProcess]:
    with start_talking("loader_server", "demo", "--keep", str(folder), *arguments) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.slow
def test_a_short_demo_trains_and_loses_nothing_though_a_worker_is_killed(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    with _demo(folder, "--samples", "80", "--epochs", "1") as process:
        said, errors = process.communicate(timeout=100)
    # A machine that stands still for two seconds is asked about its disks.
    complaints = [line for line in errors.splitlines() if "do all disks answer?" not in line]
    assert (process.returncode, complaints) == (0, [])
    assert "kill -9 of worker-0" in said
    figures = json.loads(said.splitlines()[-1])
    assert list(figures) == KEYS
    assert (figures["lost"], figures["repeated"]) == (0, 0)
    assert figures["steps"] > 3
    assert figures["shapes"] > 1
    assert 0 <= figures["data_wait_ratio"] < 1
    assert 0 < figures["padding_ratio"] < 0.5
    assert _processes(folder) == []
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == ["00000001.npz", "finished"]
    assert set(JobFile(folder / "job.toml").recipes) == {"train", "dev"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_demo_that_is_interrupted_takes_its_processes_along(tmp_path: Path, number: signal.Signals) -> None:
    folder = tmp_path / "kept"
    with _demo(folder, "--samples", "20", "--epochs", "1") as process:
        next(line for line in process.stdout if line.startswith("5  Train"))
        wait_until(lambda: len(_processes(folder)) == 5, "itself, a coordinator, two workers and a trainer are there")
        process.send_signal(number)
        _, errors = process.communicate(timeout=100)
    code, said = (143, "terminated") if number == signal.SIGTERM else (130, "interrupted")
    assert (process.returncode, errors) == (code, f"loader-server: {said}\n")
    assert _processes(folder) == []


def test_a_demo_that_is_killed_takes_its_processes_along(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    with _demo(folder, "--samples", "20", "--epochs", "1", "--workers", "1") as process:
        next(line for line in process.stdout if line.startswith("5  Train"))
        process.kill()
        wait_until(lambda: not _processes(folder), "all processes ended")


def test_a_corpus_of_another_size_is_not_thrown_away(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    folder.mkdir()
    (folder / "demo.json").write_text('{"train": 9, "dev": 1, "seconds": 20.0, "seed": 0}')
    with _demo(folder, "--samples", "20") as process:
        _, errors = process.communicate(timeout=100)
    assert process.returncode == 1
    assert "expected a corpus of 20 recordings, got one of 10, made by an earlier demo" in errors
