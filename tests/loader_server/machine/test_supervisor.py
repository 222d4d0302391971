"""The parent of one machine's loaders."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import psutil
import pytest

import trainer_client
from loader_server.commands.status import ask_all
from loader_server.job_folder import JobFolder
from loader_server.machine.asking import OwnedNursery, is_readable
from loader_server.machine.job_socket import ask_machine
from loader_server.machine.nursery_keeper import execute_nursery
from loader_server.machine.served_job import Stage
from loader_server.machine.supervisor import Supervisor, SupervisorSettings
from shared.sockets import Waker
from tests.support.forked import start_module
from tests.support.loaders import ROOT, running, wait_until, write_job
from tests.support.unheard import expect_unheard_ctrl_c

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from loader_server.machine.asking import Nursling

#: A module whose import ends once there is a file.
_SLOW = """
import pathlib, threading
from loader_server.transforms import transform

while not pathlib.Path({gate!r}).exists():
    threading.Event().wait(0.05)

@transform()
def unchanged(sample, rng):
    pass
"""


def make(folder: Path, name: str, **how: Any) -> Path:
    """A job file in a folder of its own."""
    (folder / name).mkdir()
    return write_job(folder / name, name=name, samples=20, **how)


def coordinators(of: Path, parent: int) -> list[psutil.Process]:
    """The processes of this job's coordinator."""
    found = []
    for child in psutil.Process(parent).children(recursive=True):
        try:
            words = " ".join(child.cmdline()).split()
        except psutil.NoSuchProcess:
            continue
        if "coordinator" in words and str(of) in words:
            found.append(child)
    return found


def stages(of: Path) -> list[str]:
    """How far each job of a machine is."""
    return [one["stage"] for one in ask_machine(JobFolder(of).state, do="jobs")["jobs"]]


@contextmanager
def beginning(*jobs: Path, workers: int) -> Iterator[tuple[int, Path]]:
    """Loaders that need not be ready yet, for the length of a block: process id and log."""
    log = jobs[0].parent / "beginning.log"
    log.touch()
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{jobs[-1].parent}"}
    command = ("loader_server", "run", *map(str, jobs), "--workers", str(workers))
    process = start_module(command, folder=jobs[0].parent, log=log, environment=environment)
    try:
        yield process.pid, log
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def test_a_child_that_a_nameless_signal_ends_is_started_again(tmp_path: Path) -> None:
    """Real-time signals have numbers only."""
    with running(write_job(tmp_path, samples=20), workers=1) as loaders:
        loaders.workers()[0].send_signal(signal.SIGRTMIN + 5)
        cause = f'"cause": "signal {signal.SIGRTMIN + 5}"'
        wait_until(lambda: cause in loaders.text(), "the supervisor says how it ended")
        with trainer_client.connect(loaders.endpoint) as feed:
            assert len(list(feed)) > 0


def test_a_coordinator_that_dies_while_another_job_still_begins_is_started_again(tmp_path: Path) -> None:
    quick, slow = make(tmp_path, "quick"), make(tmp_path, "slow", transforms=("slow:unchanged", "logmel"))
    gate = tmp_path / "gate"
    (tmp_path / "slow" / "slow.py").write_text(_SLOW.format(gate=str(gate)))
    with beginning(quick, slow, workers=2) as (pid, log):

        def ready() -> int:
            return sum('"ready"' in line and '"coordinator"' in line for line in log.read_text().splitlines())

        wait_until(ready, "one job's coordinator is ready")
        (coordinator,) = coordinators(quick, pid)
        coordinator.kill()
        wait_until(lambda: ready() == 2, "it is there again, before the other one")
        assert "is served at" not in log.read_text()
        gate.touch()
        wait_until(lambda: log.read_text().count("is served at") == 2, "both are served")


def test_a_nursery_that_dies_while_jobs_begin_delays_them(tmp_path: Path) -> None:
    """What it had forked has not failed: one job is still indexed, another's coordinator waits for it."""
    quick, slow = make(tmp_path, "quick"), make(tmp_path, "slow", transforms=("slow:unchanged", "logmel"))
    gate = tmp_path / "gate"
    (tmp_path / "slow" / "slow.py").write_text(_SLOW.format(gate=str(gate)))
    with beginning(quick, slow, workers=2) as (pid, log):
        wait_until(lambda: '"ready"' in log.read_text(), "one job's coordinator is ready")
        (nursery,) = psutil.Process(pid).children()
        before = psutil.Process(pid).children(recursive=True)
        nursery.kill()
        gate.touch()
        wait_until(lambda: log.read_text().count("is served at") == 2, "both are served")
        assert not set(before) & set(psutil.Process(pid).children(recursive=True))
        assert log.read_text().count("the nursery died") == 1
        assert "Traceback" not in log.read_text()


@pytest.mark.fault(57)
@pytest.mark.parametrize("role", ["index", "coordinator", "worker"])
def test_a_nursery_that_dies_just_before_it_is_asked_fails_no_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, role: str
) -> None:
    """The supervisor looks after its nursery once a turn, and starts processes later in the same turn."""
    ask, killed = OwnedNursery.start, []

    def die_and_ask(nursery: OwnedNursery, arguments: Sequence[str], *, keep: int) -> Nursling:
        if arguments[0] == role and not killed:
            killed.append(nursery.pid)
            os.kill(nursery.pid, signal.SIGKILL)
            wait_until(lambda: is_readable(nursery.fileno(), 0), "it is dead")
        return ask(nursery, arguments, keep=keep)

    monkeypatch.setattr(OwnedNursery, "start", die_and_ask)
    nursery = execute_nursery()
    wait_until(nursery.has_answered, "it is ready")
    assert nursery.hear_ready()
    supervisor = Supervisor(SupervisorSettings(workers=1), nursery)  # type: ignore[arg-type]
    try:
        supervisor.start([JobFolder(make(tmp_path, "quick"))])
        assert [job.stage for job in supervisor.jobs.values()] == [Stage.SERVED]
    finally:
        supervisor.close()
        supervisor._waker.close()  # which a process of its own leaves to its end
    assert len(killed) == 1


def test_a_coordinator_that_dies_while_its_job_ends_is_not_started_again(tmp_path: Path) -> None:
    stays, ends = make(tmp_path, "stays"), make(tmp_path, "ends")
    with running(stays, ends, workers=2) as loaders:
        pid = loaders.process.pid
        workers, (coordinator,) = loaders.workers(), coordinators(ends, pid)
        for worker in workers:
            worker.suspend()  # so that the job takes a while to end
        ending = threading.Thread(target=lambda: ask_machine(JobFolder(ends).state, do="end"))
        ending.start()
        wait_until(lambda: "ending" in stages(stays), "it ends")
        coordinator.kill()
        wait_until(lambda: not psutil.pid_exists(coordinator.pid), "its coordinator is gone")
        for _ in range(3):  # the first answers may have been given before the end was told
            ask_machine(JobFolder(stays).state, do="jobs")
        for worker in workers:
            with contextlib.suppress(psutil.NoSuchProcess):  # it was given up, if all this took long
                worker.resume()
        ending.join(60)
        assert not ending.is_alive()
        assert "is started again" not in loaders.text()
        assert [one["job"] for one in ask_all(stays)["jobs"]] == ["stays"]


def test_a_process_that_ends_without_a_word_is_named(tmp_path: Path) -> None:
    job = make(tmp_path, "mute", transforms=("mute:unchanged", "logmel"))
    (tmp_path / "mute" / "mute.py").write_text("import os\nos._exit(7)\n")
    with beginning(job, workers=1) as (_, log):
        wait_until(lambda: "expected index of job mute to start, got exit 7" in log.read_text(), "it is named")


def test_a_signal_just_before_it_waits_is_heeded() -> None:
    idle = Waker()
    nursery = SimpleNamespace(fileno=idle.fileno, is_late=False)
    supervisor = Supervisor(SupervisorSettings(workers=1), nursery)  # type: ignore[arg-type] # it starts nothing

    def wait() -> None:
        while True:
            supervisor._wait_for_events()

    expect_unheard_ctrl_c(wait)
    supervisor._waker.close()
    idle.close()
