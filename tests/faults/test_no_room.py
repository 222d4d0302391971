"""The machine has no room for one more process, or for its pipes: who is to be started waits, and all others go on."""

from __future__ import annotations

import resource
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

import trainer_client
from tests.support.loaders import running, wait_until, write_job

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.loaders import Loaders


def make(folder: Path, name: str) -> Path:
    (folder / name).mkdir()
    return write_job(folder / name, name=name, samples=40, job='heartbeat_timeout = "1 s"')


def read(loaders: Loaders, job: str) -> list[tuple[int, int]]:
    with trainer_client.connect(loaders.endpoint_of(job), stream="dev") as feed:
        return [(batch.number, batch.digest) for batch in feed]


def is_nursery(process: psutil.Process) -> bool:
    return " ".join(process.cmdline()).split() == ["loader-server", "nursery"]


@contextmanager
def without_descriptors(process: psutil.Process) -> Iterator[None]:
    """It can open nothing more, but in the place of what it closes; the nursery not even that, for it needs no more."""
    soft, hard = process.rlimit(resource.RLIMIT_NOFILE)
    used = {int(entry.name) for entry in Path(f"/proc/{process.pid}/fd").iterdir()}
    first_free = next(number for number in range(len(used) + 1) if number not in used)
    process.rlimit(resource.RLIMIT_NOFILE, (3 if is_nursery(process) else first_free, hard))
    try:
        yield
    finally:
        process.rlimit(resource.RLIMIT_NOFILE, (soft, hard))


def child_of(loaders: Loaders, role: str, job: Path) -> psutil.Process:
    (found,) = [one for one in loaders._children(role) if str(job) in " ".join(one.cmdline())]
    return found


@pytest.mark.parametrize(("who", "role"), [("run", "worker"), ("run", "coordinator"), ("nursery", "worker")])
def test_one_that_cannot_be_started_again_waits_and_the_other_job_notices_nothing(
    tmp_path: Path, who: str, role: str
) -> None:
    a, b = make(tmp_path, "a"), make(tmp_path, "b")
    with running(a, b, workers=2) as loaders:
        expected = {job: read(loaders, job) for job in "ab"}
        machine = psutil.Process(loaders.process.pid)
        if who == "nursery":
            (machine,) = [one for one in machine.children() if is_nursery(one)]
        with without_descriptors(machine):
            child_of(loaders, role, a).kill()
            wait_until(lambda: "cannot be started, and is tried again" in loaders.text(), "it is noticed")
            assert read(loaders, "b") == expected["b"]
            assert loaders.process.poll() is None
        assert read(loaders, "a") == expected["a"]
        assert loaders.text().count("cannot be started, and is tried again") == 1, "it is said once"
        assert child_of(loaders, role, a).is_running()
