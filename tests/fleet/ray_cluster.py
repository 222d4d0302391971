"""Ray on this machine, of several nodes that can be lost, and the program that serves a job there.

All that runs on a node has the node's folder for temporary files in its environment, or descends from what has: so it
is found again, and can be ended at once as if the machine had been switched off.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import signal
import subprocess
from typing import TYPE_CHECKING

import psutil

from tests.fleet.ray_environment import python_of_ray
from tests.support.forked import ROOT
from tests.support.loaders import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from typing_extensions import Self

__all__ = ["PROGRAM", "RayCluster", "Served"]

PROGRAM = "loader_server.fleet.ray"
_KEEPER = "loader_server.fleet.process_keeper"
#: Ray takes up to 45 s to start on a busy machine, and an actor as long.
_START_S = 200.0
#: How long what a job has started may take to end.
_GONE_S = 40.0
_SERVED = re.compile(r"^Job \S+ is served at (\S+) by", re.MULTILINE)


class RayCluster:
    """A running Ray that asks for a token; its files are in `folder`, a short path. The first node is the head."""

    def __init__(self, folder: Path, nodes: int = 3) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self._lost: set[Path] = set()
        token = folder / "token"
        token.write_text(secrets.token_hex(32))
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(token),
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        self._log = folder / "nodes.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [str(python_of_ray()), "-m", "tests.fleet.ray_nodes", str(folder), str(nodes)],
                cwd=ROOT,
                env=self.environment,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            self._answers = 0
            answer = self._answer()
            self.address, self.dashboard = answer["address"], answer["dashboard"]
        except BaseException:
            self.close()
            raise

    def _answer(self) -> dict[str, str]:
        """Return the next line of JSON that the process has printed."""

        def answers() -> list[str]:
            return [line for line in self._log.read_text().splitlines() if line.startswith("{")]

        wait_until(lambda: len(answers()) > self._answers or self._process.poll() is not None, f"{self._log}", _START_S)
        assert self._process.poll() is None, self._log.read_text()
        self._answers += 1
        answer: dict[str, str] = json.loads(answers()[self._answers - 1])
        return answer

    def add_node(self) -> None:
        """Start one more node."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()
        self._answer()

    def close(self) -> None:
        """End all nodes, and what is left of lost ones."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(60)
        for node in self._nodes():
            _kill_all(_of_node(node))
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    # --- nodes ---

    def _nodes(self) -> list[Path]:
        return sorted(self.folder.glob("node-*"))

    def nodes_with(self, command: str) -> list[Path]:
        """Return the nodes, but the head, that run a process of this command: `coordinator` or `run`."""
        return [node for node in self._nodes()[1:] if any(command in _words(process) for process in _kept(node))]

    def lose(self, node: Path) -> None:
        """Kill all that runs on a node, at once."""
        self._lost.add(node)
        _kill_all(_of_node(node))

    def kill(self, words: str, node: Path | None = None) -> None:
        """Kill the processes whose titles have these words, on a node or on all, and nothing else."""
        nodes = self._nodes() if node is None else [node]
        found = [process for each in nodes for process in _of_node(each) if words in " ".join(_words(process))]
        assert found, words
        _kill_all(found)

    def kill_raylet(self, node: Path) -> None:
        """Kill only Ray's own process of a node, and wait until all that jobs have there is gone."""
        self.kill("raylet/raylet", node)
        wait_until(lambda: not self.left(node), f"nothing is left on {node}", _GONE_S)

    def left(self, *nodes: Path) -> list[str]:
        """Return what jobs have left on the nodes (all if none is named): processes, and folders but of lost nodes."""
        looked_at = nodes or self._nodes()
        processes = [" ".join(_words(process)) for node in looked_at for process in _kept(node)]
        folders = [str(path) for node in looked_at if node not in self._lost for path in node.glob("stoker-*")]
        return processes + folders

    # --- jobs ---

    @contextlib.contextmanager
    def serve(self, job: Path, *options: str) -> Iterator[Served]:
        """Serve a job for the length of a block by the program, which then is interrupted; raise if it leaves a trace.

        It has ended well unless it was killed.
        """
        served = Served(self, job, options)
        try:
            yield served
        finally:
            served.close()
        code = served.process.returncode
        assert code == (-signal.SIGKILL if served.is_killed else 0), served.text()
        wait_until(lambda: not self.left(), f"nothing is left: {self.left()}", _GONE_S)

    @contextlib.contextmanager
    def submit(self, job: Path, *options: str) -> Iterator[str]:
        """Serve a job for the length of a block by a program that is submitted to Ray, from a copy of the job's folder.

        Raise if what it has started does not end when Ray stops it.
        """
        name = job.parent.name
        entrypoint = (str(python_of_ray()), "-m", PROGRAM, job.name, *options)
        self._ray("submit", "--no-wait", "--submission-id", name, "--working-dir", str(job.parent), "--", *entrypoint)
        found: list[str] = []

        def is_served() -> bool:
            found[:] = _SERVED.findall(self._ray("logs", name))
            return bool(found)

        try:
            wait_until(is_served, "the submitted job is served", _START_S)
            yield found[-1]
        finally:
            self._ray("stop", name)
        wait_until(lambda: not self.left(), f"nothing is left: {self.left()}", _GONE_S)

    def _ray(self, command: str, *words: str) -> str:
        """Run a command of `ray job`; return what it printed."""
        done = subprocess.run(
            [str(python_of_ray().with_name("ray")), "job", command, *words],
            env=self.environment | {"RAY_ADDRESS": f"http://{self.dashboard}"},
            capture_output=True,
            text=True,
            check=True,
            timeout=_START_S,
        )
        return done.stdout


class Served:
    """A job that is served in Ray."""

    def __init__(self, cluster: RayCluster, job: Path, options: tuple[str, ...]) -> None:
        self.is_killed = False
        self._log = job.parent / "ray.log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [str(python_of_ray()), "-m", PROGRAM, str(job), "--address", cluster.address, *options],
                cwd=job.parent,
                env=cluster.environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            wait_until(lambda: self.endpoint or self.process.poll() is not None, "the job is served", _START_S)
            assert self.process.poll() is None, self.text()
        except BaseException:
            self.close()
            raise

    def text(self) -> str:
        """Return all that the program has said."""
        return self._log.read_text()

    @property
    def endpoint(self) -> str:
        """Return where the job is served now; empty while it is not yet."""
        found = _SERVED.findall(self.text())
        return str(found[-1]) if found else ""

    def kill(self) -> None:
        """Kill the program."""
        self.is_killed = True
        self.process.kill()

    def close(self) -> None:
        """Interrupt the program, and wait for its end."""
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(60)
        finally:
            self.process.kill()
            self.process.wait()


def _words(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline()).split()
    return []


def _of_node(node: Path) -> list[psutil.Process]:
    """Return all processes of a node: the titles that some have set lie where their environment was."""
    found: dict[int, psutil.Process] = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("TMPDIR") == str(node):
                found |= {each.pid: each for each in (process, *process.children(recursive=True))}
    return [process for process in found.values() if _words(process)[2:3] != ["tests.fleet.ray_nodes"]]


def _kept(node: Path) -> list[psutil.Process]:
    """Return the processes of jobs on a node: those that keep others, and what these have started."""
    keepers = [process for process in _of_node(node) if _KEEPER in _words(process)]
    kept = {each.pid: each for keeper in keepers for each in (keeper, *_children(keeper))}
    return [process for process in kept.values() if process.is_running() and _words(process)]


def _children(process: psutil.Process) -> list[psutil.Process]:
    with contextlib.suppress(psutil.Error):
        return process.children(recursive=True)
    return []


def _kill_all(processes: list[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.kill()
