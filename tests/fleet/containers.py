"""The job in containers: a coordinator, three hosts that join it, and a trainer that loses one of them.

All are as the page on containers says: the image from the real Dockerfile, read-only, without root and without
capabilities; job and data are mounted read-only under their own path, and a host has nothing else but its keys.
"""

from __future__ import annotations

import os
import shutil
from functools import partial
from typing import TYPE_CHECKING, Any

from loader_server.job_folder import JobFolder
from tests.fleet.docker_engine import DockerEngine, missing_programs
from tests.fleet.job import BATCHES, verify
from tests.fleet.reading import read_by
from tests.support.hosts import reason_not_here as no_hosts_here
from tests.support.loaders import ask, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["measure", "reason_not_here"]

_IMAGE = "stoker-loader"
#: Who the image's processes are.
_USER = 65534
_HOSTS = ("host-a", "host-b", "host-c")
_PORT = 7400
_CLOSED = (
    "--network=fleet", "--read-only", f"--user={_USER}:{_USER}", "--cap-drop=all",
    "--security-opt=no-new-privileges",
)  # fmt: skip


def reason_not_here() -> str:
    """Return why the job cannot run in containers here; nothing if it can. What Debian has is installed."""
    if os.geteuid() != 0:
        return "a Docker Engine of its own needs root"
    missing = missing_programs(install=True)
    return f"{', '.join(missing)} cannot be had" if missing else no_hosts_here()


def measure(job: Path, work: Path) -> dict[str, Any]:
    """Return the digest of the job's epoch, undisturbed and with a host's container killed in its middle."""
    keys = job.parent / "keys"
    with DockerEngine(work / "docker") as engine:
        engine.build("deploy/loader.Dockerfile", _IMAGE, "loader")
        endpoint = _Fleet(engine, job, work).start()
        digest, batches = verify((), endpoint, keys)
        lose = partial(engine.docker, "kill", _HOSTS[1])
        epoch = read_by((), endpoint, keys=keys, at=BATCHES // 3, then=lose)
    lost_node = {"digest": epoch.digest, "gap_s": epoch.gap_s, "lost": epoch.lost, "repeated": epoch.repeated}
    return {"digest": digest, "batches": batches, "lost_node": lost_node}


class _Fleet:
    """The containers of one job."""

    def __init__(self, engine: DockerEngine, job: Path, work: Path) -> None:
        self._engine, self._job = engine, job
        #: A copy that belongs to the containers' user, mounted where the job is.
        self._folder = work / "job"
        shutil.copytree(job.parent, self._folder)
        self._folder.chmod(0o755)
        for path in (self._folder, *self._folder.rglob("*")):
            os.chown(path, _USER, _USER)

    def start(self) -> str:
        """Start all, and return the coordinator's endpoint once all hosts serve."""
        self._run("coordinator", ("coordinator", str(self._job), f"--listen=tcp://0.0.0.0:{_PORT}"), *self._state())
        for host in _HOSTS:
            joins = ("run", f"tcp://coordinator:{_PORT}", "--keys", str(self._job.parent / "keys"), "--workers=1")
            self._run(host, joins, "--tmpfs=/var/cache/stoker")
        endpoint = f"tcp://{self._engine.address('coordinator')}:{_PORT}"
        wait_until(lambda: self._are_serving(endpoint), "all hosts serve", 100)
        return endpoint

    def _state(self) -> Iterator[str]:
        """The options that let the coordinator write what it has to: its journal."""
        state = JobFolder(self._job).state.parent
        yield f"--volume={self._folder / state.relative_to(self._job.parent)}:{state}"

    def _run(self, name: str, words: tuple[str, ...], *options: str) -> None:
        mounted = f"--volume={self._folder}:{self._job.parent}:ro"
        self._engine.docker(
            "run", "--detach", "--name", name, "--hostname", name, *_CLOSED, mounted, *options, _IMAGE, *words
        )

    def _are_serving(self, endpoint: str) -> bool:
        for name in ("coordinator", *_HOSTS):
            self._engine.address(name)  # which says it if the container has ended
        return len(ask(endpoint, keys=str(self._job.parent / "keys"))["workers"]) == len(_HOSTS)
