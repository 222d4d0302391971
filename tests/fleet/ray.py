"""The fleet in Ray: three nodes on this machine, and the program that serves a job there, as the page says.

Measured are the digest of an undisturbed fleet, what a trainer reads when a node with a worker is lost in mid-epoch,
and when the coordinator's node is, how soon all are back on other nodes, and how the number of workers follows a
trainer's pace. Processes of each kind are killed alone. Each time nothing may be left, whether the program is
interrupted or killed, or was submitted to Ray, which stops it. The keys pass through Ray, which asks for a token; only
of a submitted job they are on the nodes.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from loader_server.job_folder import JobFolder
from tests.fleet.job import BATCHES, copy_job, longest_gap_s, verify
from tests.fleet.ray_cluster import RayCluster
from tests.fleet.ray_environment import reason_not_here
from tests.fleet.ray_scale import measure_scale, slow_down
from tests.fleet.reading import EpochRead, read_by
from tests.support.loaders import ask, wait_until

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet
    from pathlib import Path

__all__ = ["measure", "reason_not_here"]

_WORKERS = 3
#: After so long without a word a worker does not count as heard.
_SILENT_S = 2.0
#: Nodes for loaders alone: all but the head, which cannot be lost.
_LOADERS = ("--label-selector", '{"pool": "loaders"}')


def measure(job: Path, work: Path) -> dict[str, Any]:
    """Serve the job in Ray, in each case from its first epoch; return the results."""
    with RayCluster(work / "n") as cluster:
        result = _lose_a_node(cluster, copy_job(job, work / "lost"))
        cluster.add_node()
        result["lost_coordinator"] = _lose_the_coordinator(cluster, copy_job(job, work / "moved"))
        result["killed"] = _kill_pieces(cluster, copy_job(job, work / "killed"))
        cluster.add_node()
        result["submitted"] = _submit(cluster, copy_job(job, work / "submitted"))
        with cluster.serve(slow_down(copy_job(job, work / "scale")), "--workers=1:8") as served:
            result["scale"] = measure_scale(served.endpoint, job.parent / "keys")
    return result


def _outcome(epoch: EpochRead) -> dict[str, Any]:
    return {"digest": epoch.digest, "gap_s": epoch.gap_s, "lost": epoch.lost, "repeated": epoch.repeated}


def _heard(endpoint: str, keys: Path) -> set[str]:
    """Return the names of the workers that the coordinator hears."""
    return {worker["name"] for worker in ask(endpoint, keys=str(keys))["workers"] if worker["silent_s"] <= _SILENT_S}


def _wait_for_workers(endpoint: str, keys: Path, *, beside: AbstractSet[str] = frozenset()) -> None:
    """Wait until as many workers are heard as were ordered, one of them not among these."""

    def are_there() -> bool:
        heard = _heard(endpoint, keys)
        return len(heard) == _WORKERS and bool(heard - beside)

    wait_until(are_there, f"{_WORKERS} workers", 100)


def _lose_a_node(cluster: RayCluster, job: Path) -> dict[str, Any]:
    """Verify the undisturbed fleet; then lose a node with a worker and without the coordinator."""
    keys, back_s = job.parent / "keys", 0.0

    def lose() -> None:
        nonlocal back_s
        former = _heard(served.endpoint, keys)
        spared = cluster.nodes_with("coordinator")
        node = next(node for node in cluster.nodes_with("run") if node not in spared)
        lost_s = time.monotonic()
        cluster.lose(node)
        _wait_for_workers(served.endpoint, keys, beside=former)
        back_s = round(time.monotonic() - lost_s, 1)

    with cluster.serve(job, f"--workers={_WORKERS}") as served:
        _wait_for_workers(served.endpoint, keys)
        digest, batches = verify((), served.endpoint, keys)
        epoch = read_by((), served.endpoint, keys=keys, at=BATCHES // 3, then=lose)
    lost_node = _outcome(epoch) | {"bound_s": longest_gap_s(), "back_s": back_s}
    return {"digest": digest, "batches": batches, "lost_node": lost_node}


def _lose_the_coordinator(cluster: RayCluster, job: Path) -> dict[str, Any]:
    """Lose the node with the coordinator; trainer and workers find it again, on another one."""
    keys, lost_s, back_s = job.parent / "keys", 0.0, 0.0
    file = JobFolder(job).endpoint_file

    def lose() -> None:
        nonlocal lost_s, back_s
        former = served.endpoint
        (node,) = cluster.nodes_with("coordinator")
        lost_s = time.monotonic()
        cluster.lose(node)
        wait_until(lambda: served.endpoint != former, "the coordinator serves on another node")
        back_s = round(time.monotonic() - lost_s, 1)

    with cluster.serve(job, f"--workers={_WORKERS}", *_LOADERS) as served:
        _wait_for_workers(served.endpoint, keys)
        epoch = read_by((), f"file://{file}", keys=keys, at=BATCHES // 3, then=lose)
        _wait_for_workers(served.endpoint, keys)
    return _outcome(epoch) | {"bound_s": longest_gap_s(), "back_s": back_s}


def _kill_pieces(cluster: RayCluster, job: Path) -> dict[str, Any]:
    """Kill each kind of process alone: workers, coordinator, actors, a raylet, and at last the program.

    Workers come back each time. Ray ends the actors with the program, and with them goes all that they have started.
    """
    keys, result = job.parent / "keys", dict[str, Any]()

    def kill(words: str, *, moves: bool = False) -> None:
        former, killed_s = served.endpoint, time.monotonic()
        cluster.kill(words)
        if moves:
            wait_until(lambda: served.endpoint != former, "the coordinator serves again")
        time.sleep(_SILENT_S)  # until none of the killed counts as heard
        _wait_for_workers(served.endpoint, keys)
        result[words] = round(time.monotonic() - killed_s, 1)

    with cluster.serve(job, f"--workers={_WORKERS}") as served:
        _wait_for_workers(served.endpoint, keys)
        kill("loader_server run")
        kill("loader_server coordinator")
        kill("ray::NodeActor", moves=True)
        cluster.kill_raylet(cluster.nodes_with("run")[0])
        served.kill()
        killed_s = time.monotonic()
        wait_until(lambda: not cluster.left(), "all have ended")
        return result | {"gone_s": round(time.monotonic() - killed_s, 1)}


def _submit(cluster: RayCluster, job: Path) -> dict[str, Any]:
    """Submit the program with the job's folder, verify what is served, and stop it."""
    keys = job.parent / "keys"
    with cluster.submit(job, f"--workers={_WORKERS}", "--keys", str(keys)) as endpoint:
        _wait_for_workers(endpoint, keys)
        digest, batches = verify((), endpoint, keys)
    return {"digest": digest, "batches": batches}
