"""The fleet in Slurm: worker hosts as an array job, coordinator and trainers as a heterogeneous job, by the scripts
that the examples give, on a real Slurm.

The first job of trainers is `trainer-client verify`; the second is a trainer that reads the epoch, while a node of
the array is lost. In between the coordinator ends and comes again on another port, and the workers find it.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from loader_server.job_folder import JobFolder
from tests.fleet.job import copy_job
from tests.fleet.reading import EpochRead
from tests.fleet.slurm_cluster import Slurm, reason_not_here, slurm
from tests.support.forked import ROOT
from tests.support.loaders import wait_until

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["SCRIPTS", "measure", "reason_not_here"]

SCRIPTS = ROOT / "examples" / "slurm"
#: One for the coordinator, one for the trainer, two for the array, one for the task whose node is lost.
_NODES = 5
_ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fleet:
    """A job in a folder that all nodes share, and the Slurm that runs it."""

    slurm: Slurm
    job: Path
    #: The file that says where the coordinator serves.
    endpoint: Path

    def submit_workers(self, after: str) -> str:
        """Submit two hosts with a worker each, to start once another job has."""
        words = (f"file://{self.endpoint}", "--keys", "keys", "--workers", "1")
        options = ("--array=1-2", f"--dependency=after:{after}")
        return self.slurm.submit(*options, str(SCRIPTS / "workers.sh"), *words, folder=self.job.parent)

    def submit_trainer(self, *command: str) -> str:
        """Submit a coordinator and a trainer."""
        return self.slurm.submit(str(SCRIPTS / "train.sh"), self.job.name, *command, folder=self.job.parent)

    def output(self, job: str) -> str:
        """Return what a job, or a task of an array, has said so far."""
        path = self.job.parent / f"slurm-{job}.out"
        return path.read_text() if path.exists() else ""

    def wait_for_trainer(self, job: str) -> dict[str, Any]:
        """Wait until the job of coordinator and trainer has ended well; return the JSON that the trainer printed."""
        wait_until(lambda: self.slurm.fields(job).get("JobState") in _ENDED, f"the job has ended: {job}", 120)
        fields = self.slurm.fields(job)
        assert (fields["JobState"], fields["ExitCode"]) == ("COMPLETED", "0:0"), self.output(job)
        wait_until(lambda: not self.endpoint.exists(), "the coordinator has ended in good order")
        last: dict[str, Any] = json.loads(re.findall(r'^\{"digest".*\}$', self.output(job), re.MULTILINE)[-1])
        return last

    def lose_node_of(self, task: str) -> str:
        """Lose the node where an array's task runs; return its name."""
        node = self.slurm.fields(task)["NodeList"]
        self.slurm.lose(node)
        return node

    def wait_for_requeued(self, task: str, lost: str) -> None:
        """Wait until Slurm has started a task again, on another node."""

        def runs_again() -> bool:
            fields = self.slurm.fields(task)
            return fields.get("JobState") == "RUNNING" and fields["Restarts"] == "1" and fields["NodeList"] != lost

        wait_until(runs_again, f"{task} runs again: {self.slurm.fields(task)}")


def measure(job: Path, work: Path) -> dict[str, Any]:
    """Serve a job by Slurm, whole and with a node lost; return the epoch's digests, its batches and the longest gap."""
    shared = copy_job(job, work / "shared")
    with slurm(work / "slurm", _NODES) as cluster:
        fleet = _Fleet(slurm=cluster, job=shared, endpoint=JobFolder(shared).state / "endpoint")
        verifying = fleet.submit_trainer(*_python("trainer_client", "verify"), *_read(fleet, "--json"))
        workers = fleet.submit_workers(after=verifying)
        whole = fleet.wait_for_trainer(verifying)
        task = f"{workers}_1"
        at = whole["batches"] // 3
        reading = fleet.submit_trainer(*_python("tests.fleet.reading"), *_read(fleet, "--say-at", str(at)))
        wait_until(lambda: f"at batch {at}" in fleet.output(reading), f"the trainer has read {at} batches", 120)
        lost = fleet.lose_node_of(task)
        outcome = EpochRead(**fleet.wait_for_trainer(reading))
        outcome.refuse_faults()
        fleet.wait_for_requeued(task, lost)
        cluster.cancel(workers)
    return {
        "digest": whole["digest"],
        "batches": whole["batches"],
        "lost_node": {
            "digest": outcome.digest,
            "gap_s": outcome.gap_s,
            "lost": outcome.lost,
            "repeated": outcome.repeated,
        },
    }


def _python(module: str, *words: str) -> tuple[str, ...]:
    return (sys.executable, "-m", module, *words)


def _read(fleet: _Fleet, *options: str) -> tuple[str, ...]:
    return (f"file://{fleet.endpoint}", "--keys", "keys", *options)
