"""The scripts for Slurm, and that worker hosts leave in good order however Slurm ends their jobs."""

from __future__ import annotations

import shutil
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.fleet.slurm import SCRIPTS
from tests.fleet.slurm_cluster import reason_not_here, slurm
from tests.support.loaders import ask, running, wait_until, write_job

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fleet.slurm_cluster import Slurm

#: Far above what leaving takes: a worker that was killed is known for as long.
HEARTBEAT_TIMEOUT_S = 120
LEFT_WITHIN_S = 60


@pytest.mark.parametrize("script", ["workers.sh", "train.sh"])
def test_bash_and_shellcheck_have_nothing_to_say_of_a_script(script: str) -> None:
    checks = (["bash", "-n"], ["shellcheck"])
    for check in (check for check in checks if shutil.which(check[0])):
        done = subprocess.run([*check, str(SCRIPTS / script)], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    if reason := reason_not_here():
        pytest.skip(reason)
    with slurm(tmp_path_factory.mktemp("slurm") / "slurm", 2) as made:
        yield made


@contextmanager
def served(folder: Path) -> Iterator[tuple[str, str]]:
    """A job that is served beside Slurm, by one worker of its own: its endpoint, and the file that says it."""
    job = write_job(folder, job=f'heartbeat_timeout = "{HEARTBEAT_TIMEOUT_S} s"')
    with running(job, workers=1) as loaders:
        yield loaders.endpoint, f"file://{folder}/.stoker/tones/endpoint"


def workers(endpoint: str) -> int:
    """How many workers the coordinator knows."""
    return len(ask(endpoint)["workers"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "state"), [("scancel", "CANCELLED"), ("ahead of the time limit", "COMPLETED"), ("preemption", "RUNNING")]
)
def test_worker_hosts_leave_in_good_order(cluster: Slurm, tmp_path: Path, way: str, state: str) -> None:
    limit = ("--time=1",) if way == "ahead of the time limit" else ()
    with served(tmp_path) as (endpoint, file):
        words = ("--array=1-1", *limit, str(SCRIPTS / "workers.sh"), file, "--workers", "1")
        task = f"{cluster.submit(*words, folder=tmp_path)}_1"
        wait_until(lambda: workers(endpoint) == 2, "the host serves")
        if way == "scancel":
            cluster.cancel(task)
        elif way == "preemption":
            there = f"--nodelist={cluster.fields(task)['NodeList']}"
            cluster.submit("--partition=urgent", "--exclusive", there, "--wrap=true", folder=tmp_path)
        wait_until(lambda: workers(endpoint) == 1, "the worker has said that it leaves", LEFT_WITHIN_S)
        if way == "preemption":
            wait_until(lambda: workers(endpoint) == 2, "the host is back")
        wait_until(lambda: cluster.fields(task)["JobState"] == state, f"the task is {state}")
        fields = cluster.fields(task)
        assert (fields["ExitCode"], fields["Restarts"]) == ("0:0", "1" if way == "preemption" else "0")
        if state == "RUNNING":
            cluster.cancel(task)
