"""The engine of plain hosts: network namespaces on a switch, loaders on three of them, a trainer on a fourth.

Measured are the digest of an undisturbed fleet, what a trainer reads when a host is lost in mid-epoch, and what it
reads when the coordinator is lost and comes back on another host, where all find it by its endpoint file.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from tests.fleet.job import BATCHES, copy_job, longest_gap_s, verify
from tests.fleet.namespaces import Machine, last_line, machines
from tests.fleet.reading import EpochRead, read_by
from tests.support.hosts import reason_not_here

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["FOUND_WITHIN_S", "measure", "reason_not_here"]

#: How soon after its start a coordinator on another host is found by workers and trainers.
FOUND_WITHIN_S = 5.0
_PORT = 7400


def measure(job: Path, work: Path) -> dict[str, Any]:
    """Serve the job from three hosts, in each case from its first epoch; return what came of it."""
    digest, batches, lost_node = _lose_a_host(job, work / "lost")
    moved, found_s = _move_coordinator(job, work / "moved")
    return {
        "digest": digest,
        "batches": batches,
        "lost_node": _outcome(lost_node) | {"bound_s": longest_gap_s()},
        "moved_coordinator": _outcome(moved) | {"found_s": found_s, "found_bound_s": FOUND_WITHIN_S},
    }


def _outcome(epoch: EpochRead) -> dict[str, Any]:
    return {"digest": epoch.digest, "gap_s": epoch.gap_s, "lost": epoch.lost, "repeated": epoch.repeated}


def _lose_a_host(job: Path, work: Path) -> tuple[str, int, EpochRead]:
    """Verify the undisturbed fleet, then lose a host under a reading trainer."""
    job = copy_job(job, work / "job")
    keys = job.parent / "keys"
    with machines(("loader-a", "loader-b", "loader-c", "trainer"), work) as (first, second, third, trainer):
        endpoint = f"tcp://{first.name}:{_PORT}"
        first.start("loader_server", "run", str(job), "--workers", "1", "--listen", f"tcp://0.0.0.0:{_PORT}")
        for machine in (second, third):
            _join(machine, endpoint, keys)
        own = trainer.carry(keys, "trainer")
        _wait(trainer, endpoint, own, "--workers", "3")
        digest, batches = verify(trainer.prefix, endpoint, own)
        epoch = read_by(trainer.prefix, endpoint, keys=own, at=BATCHES // 3, then=third.lose)
        return digest, batches, epoch


def _move_coordinator(job: Path, work: Path) -> tuple[EpochRead, float]:
    """Lose the coordinator's host under a reading trainer; return how soon all have found it on another one."""
    job = copy_job(job, work / "job")
    keys = job.parent / "keys"
    names = ("loader-a", "loader-b", "loader-c", "trainer", "loader-d")
    with machines(names, work) as (first, second, third, trainer, spare):
        endpoint = f"file://{job.parent}/.stoker/fleet/endpoint"
        coordinator = ("loader_server", "coordinator", str(job), "--listen", f"tcp://0.0.0.0:{_PORT}")
        first.start(*coordinator)
        own = trainer.carry(keys, "trainer")
        _wait(trainer, endpoint, own)
        for machine in (second, third):
            _join(machine, endpoint, keys)
        _wait(trainer, endpoint, own, "--workers", "2")
        there = f"tcp://{spare.address}:{_PORT}"
        watch = spare.ask(*_waiting(there, keys, "--workers", "2", "--trainers", "1"))
        begun_s = 0.0

        def move() -> None:
            nonlocal begun_s
            first.lose()
            begun_s = time.monotonic()
            spare.start(*coordinator)

        epoch = read_by(trainer.prefix, endpoint, keys=own, at=BATCHES // 3, then=move)
        return epoch, round(json.loads(last_line(watch))["at_s"] - begun_s, 2)


def _join(machine: Machine, endpoint: str, keys: Path) -> None:
    own = machine.carry(keys, "worker")
    machine.start("loader_server", "run", endpoint, "--keys", str(own), "--workers", "1")


def _wait(machine: Machine, endpoint: str, keys: Path, *options: str) -> None:
    """Wait on a machine until so many are heard."""
    machine.run(*_waiting(endpoint, keys, *options))


def _waiting(endpoint: str, keys: Path, *options: str) -> tuple[str, ...]:
    return ("tests.fleet.waiting", endpoint, "--keys", str(keys), *options)
