"""Several jobs on one machine's workers: added and ended while it runs, and kept apart in code, state and failures."""

from __future__ import annotations

import contextlib
import json
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import trainer_client
from loader_server.commands.status import ask_all
from tests.support.forked import run_module, start_code
from tests.support.loaders import running, wait_until, write_job

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

BEATS = 'heartbeat_timeout = "1 s"'


def make(folder: Path, name: str, **how: Any) -> Path:
    """A job file in a folder of its own."""
    (folder / name).mkdir()
    return write_job(folder / name, name=name, **how)


def command(*arguments: object) -> tuple[int, str, str]:
    """Exit code, output and errors of a command."""
    return run_module("loader_server", *map(str, arguments))


def read(endpoint: str, stream: str = "dev") -> list[tuple[int, int]]:
    with trainer_client.connect(endpoint, stream=stream) as feed:
        return [(batch.number, batch.digest) for batch in feed]


@contextlib.contextmanager
def meanwhile(work: Callable[[], None]) -> Iterator[None]:
    """Do this over and over in another thread, while the block lasts; a failure of it fails the block."""
    stop, failures = threading.Event(), []

    def run() -> None:
        try:
            while not stop.is_set():
                work()
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    assert failures == []


@contextlib.contextmanager
def reading(endpoint: str) -> Iterator[None]:
    """A trainer that never gets a batch, in a process of its own, for the length of a block."""
    code = f"import trainer_client; list(trainer_client.connect({endpoint!r}, lost_timeout_s=1000))"
    with start_code(code) as process:
        try:
            yield
            assert process.poll() is None, "it still waits"
        finally:
            process.kill()


def shares(job: Path) -> dict[str, int]:
    return {one["job"]: one["workers"] for one in ask_all(job)["jobs"]}


class Epochs:
    """Reads epoch after epoch, one a call; `count` counts batches as they come."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.count = 0
        self.read: list[list[tuple[int, int]]] = []

    def __call__(self) -> None:
        got = []
        with trainer_client.connect(self.endpoint, stream="dev") as feed:
            for batch in feed:
                got.append((batch.number, batch.digest))
                self.count += 1
        self.read.append(got)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_one_job_that_crashes_every_worker_takes_no_more_than_its_share_from_the_other(tmp_path: Path) -> None:
    """Beside it, with half of four workers, the good job reads as fast as one that has two workers to itself."""
    waiting: dict[str, Any] = {
        "samples": 120,
        "budget": "4 s",
        "transforms": ("tests.support.transforms:waits", "logmel"),
    }
    good, alone = (make(tmp_path, name, job=BEATS, **waiting) for name in ("good", "alone"))
    bad = make(tmp_path, "bad", samples=60, transforms=("tests.support.transforms:kills_workers", "logmel"), job=BEATS)
    with running(good, workers=4) as loaders:
        beside = Epochs(loaders.endpoint)
        beside()
        calm = beside.read[0]
        assert len(calm) > 15

        code, said, complained = command("add", bad, "--to", good)
        assert code == 0, complained
        assert shares(good) == {"good": 3, "bad": 1}, "it begins with one"
        bad_endpoint = loaders.endpoint_of("bad")
        assert bad_endpoint in said

        with running(alone, workers=2) as others, reading(bad_endpoint), meanwhile(beside):
            peer = Epochs(others.endpoint)
            with meanwhile(peer):
                wait_until(lambda: peer.count, "both read")
                before = beside.count, peer.count

                def keeps_up() -> bool:
                    """Over three epochs, and more if something else held up one of them for a while."""
                    got, expected = beside.count - before[0], peer.count - before[1]
                    return expected >= 3 * len(calm) and got > 0.7 * expected

                wait_until(keeps_up, "it reads as much as two workers alone make", 120)
            wait_until(lambda: loaders.text().count('"cause": "signal SIGKILL"') > 5, "workers crash all the time", 60)
            assert shares(good)["bad"] <= 2
        assert beside.read == [calm] * len(beside.read), "nothing was lost, repeated or changed"
        assert command("end", bad) == (0, "Job bad has ended.\n", "")
        assert shares(good) == {"good": 4}
        lines = [json.loads(line) for line in loaders.text().splitlines() if "workers move between jobs" in line]
        moves = [line["moves"] for line in lines]
        assert moves[0] == "bad 0 to 1, good 4 to 3"
        assert moves[-1].endswith(" to 4")
        assert read(beside.endpoint) == calm


OWN = """
from loader_server.transforms import transform

@transform()
def scaled(sample, rng):
    sample["audio"] *= {factor}
"""


def largest(endpoint: str) -> float:
    with trainer_client.connect(endpoint, stream="dev") as feed:
        return max(float(np.abs(batch["audio"]).max()) for batch in feed)


def test_jobs_whose_modules_have_one_name_each_run_their_own(tmp_path: Path) -> None:
    jobs = []
    for name, factor in (("a", 1.0), ("b", 100.0)):
        jobs.append(make(tmp_path, name, samples=30, transforms=("own:scaled",)))
        (tmp_path / name / "own.py").write_text(OWN.format(factor=factor))
        jobs[-1].write_text(jobs[-1].read_text().replace("[streams.train.logmel]\nrate = 8000\nbands = 40\n", ""))
    with running(*jobs, workers=2) as loaders:
        assert shares(jobs[0]) == shares(jobs[1]) == {"a": 1, "b": 1}
        a, b = (largest(loaders.endpoint_of(name)) for name in "ab")
        assert b == pytest.approx(100 * a)

        code, said, _ = command("status", jobs[0], "--json")
        told = json.loads(said)["jobs"]
        assert code == 0
        assert [(one["job"], one["report"]["job"], len(one["report"]["workers"])) for one in told] == [
            ("a", "a", 1),
            ("b", "b", 1),
        ]
        said = command("status", jobs[1])[1]
        assert all(text in said for text in ("job a", "job b", loaders.endpoint_of("a"), loaders.endpoint_of("b")))

        loaders.coordinator().kill()
        wait_until(lambda: "died and is started again" in loaders.text(), "it is noticed")
        assert largest(loaders.endpoint_of("b")) == pytest.approx(b)
        assert largest(loaders.endpoint_of("a")) == pytest.approx(a)

        for job, name in zip(jobs, "ab", strict=True):
            assert command("end", job)[:2] == (0, f"Job {name} has ended.\n")
        assert loaders.process.wait(100) == 0, "the last job's end is the machine's"


def test_a_job_that_cannot_be_served_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    served = make(tmp_path, "served", samples=30)
    with running(served, workers=2) as loaders:
        same = make(tmp_path, "same", samples=20)
        same.write_text(same.read_text().replace('name = "same"', 'name = "served"'))
        code, _, complained = command("add", same, "--to", served)
        assert code == 1
        assert "expected a name different from those of the other jobs on this machine" in complained

        there = make(tmp_path, "there", samples=20)
        there.write_text(there.read_text().replace("tcp://127.0.0.1:*", loaders.endpoint))
        code, _, complained = command("add", there, "--to", served)
        assert code == 1
        assert f"got that of job served, {loaders.endpoint}" in complained

        broken = make(tmp_path, "broken", samples=20, transforms=("no_such_transform",))
        code, _, complained = command("add", broken, "--to", served)
        assert code == 1
        assert "no_such_transform" in complained, "the reason is its process's own"
        assert "to start, got exit" not in complained
        assert "no_such_transform" in loaders.text(), "and in the log"

        odd = make(tmp_path, "odd", samples=20)
        (tmp_path / "odd" / ".stoker" / "odd" / "targets" / "folder.json").mkdir(parents=True)
        code, _, complained = command("add", odd, "--to", served)
        assert code == 1
        assert "expected to begin with the job, got [Errno 21] Is a directory: " in complained

        assert shares(served) == {"served": 2}
        assert len(read(loaders.endpoint)) > 0


def test_several_jobs_that_cannot_be_served_together_do_not_begin(tmp_path: Path) -> None:
    jobs = [make(tmp_path, name, samples=20) for name in "ab"]
    code, _, complained = command("run", *jobs, "--listen", "tcp://127.0.0.1:0")
    assert (code, "expected one job, got 2" in complained) == (1, True)
    for job in jobs:
        job.write_text(job.read_text().replace('listen = "tcp://127.0.0.1:*"\n', "metrics_port = 39417\n"))
    code, _, complained = command("run", *jobs)
    assert (code, "expected a listen different from those of the other jobs on this machine" in complained) == (1, True)
    jobs[1].write_text(jobs[1].read_text().replace("39417", '39418\nlisten = "tcp://127.0.0.1:*"'))
    code, _, complained = command("run", *jobs, "--workers", "2")
    assert (code, "expected a metrics_port different" in complained) == (1, True)
    assert "metrics_port = 39420" in complained


def test_who_is_not_served_is_not_found(tmp_path: Path) -> None:
    job = make(tmp_path, "lone", samples=20)
    for asked in (("end", job), ("add", job, "--to", job), ("status", job)):
        code, _, complained = command(*asked)
        assert (code, "that serves this job, and answers, got nobody" in complained) == (3, True)


def test_nobody_else_can_have_a_machine_run_their_code(tmp_path: Path) -> None:
    job = make(tmp_path, "own", samples=20)
    with running(job, workers=1):
        (door,) = (tmp_path / "own" / ".stoker" / "own").glob("machine.sock")
        assert door.stat().st_mode & 0o777 == 0o600
