"""Machines of a fleet on this one: network namespaces with a name, a hosts file and a folder of their own.

What runs on a machine starts behind its `prefix`. A machine that is lost has its cable pulled first, so that nobody
hears its processes end, and then they are killed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

from tests.support.forked import ROOT
from tests.support.hosts import Host, hosts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

__all__ = ["Machine", "machines", "reason_not_here"]

#: The files of a folder of keys that each kind of machine needs, as the page says.
_CARRIED = {
    "worker": ("worker.key_secret", "coordinator.key", "allowed"),
    "trainer": ("trainer.key_secret", "coordinator.key", "worker.key"),
}

#: Gives a namespace a name of its own and the fleet's hosts file, then becomes the command.
_ENTER = 'hostname "$0" && mount --bind "$1" /etc/hosts && shift && exec "$@"'


def reason_not_here() -> str:
    """Say why there can be no network namespaces here; empty if there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [tool for tool in ("ip", "unshare", "mount") if shutil.which(tool) is None]
    if missing:
        return f"there is no {', '.join(missing)}"
    made = subprocess.run(["unshare", "--net", "--uts", "--mount", "true"], capture_output=True, text=True, check=False)
    return made.stderr.strip() if made.returncode else ""


class Machine:
    """One machine: where its programs start, and what they say."""

    def __init__(self, host: Host, name: str, folder: Path, hosts_file: Path) -> None:
        self._host = host
        self.name = name
        #: What it has of its own; programs start here.
        self.folder = folder
        self.address = host.address
        self.log = folder / "log"
        self._enter = ("unshare", "--uts", "sh", "-c", _ENTER, name, str(hosts_file))
        folder.mkdir(parents=True)
        self.log.touch()
        self._programs: list[subprocess.Popen[str]] = []

    @property
    def prefix(self) -> tuple[str, ...]:
        """The words before a command that runs on this machine."""
        return ("ip", "netns", "exec", self._host.namespace, *self._enter)

    def carry(self, keys: Path, role: str) -> Path:
        """Copy the keys that a role needs onto this machine; return their folder."""
        own = self.folder / "keys"
        own.mkdir()
        for name in _CARRIED[role]:
            copy = shutil.copytree if (keys / name).is_dir() else shutil.copy2
            copy(keys / name, own / name)
        return own

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start a module of ours there, such as `loader_server`, with its arguments."""
        with self.log.open("a") as log:
            program = subprocess.Popen(
                self._command(words), cwd=self.folder, env=_environment(), stdout=log, stderr=log, text=True
            )
        self._programs.append(program)
        return program

    def run(self, *words: str) -> str:
        """Run a module of ours there; return the last line that it printed."""
        with self.log.open("a") as log:
            done = subprocess.run(
                self._command(words), cwd=self.folder, env=_environment(), stdout=subprocess.PIPE, stderr=log,
                text=True, check=True, timeout=200,
            )  # fmt: skip
        return done.stdout.splitlines()[-1]

    def _command(self, words: Sequence[str]) -> list[str]:
        return [*self.prefix, sys.executable, "-m", *words]

    def lose(self) -> None:
        """Pull its cable, and kill all that runs there."""
        self._host.unplug()
        while pids := self._processes():
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for program in self._programs:
                program.wait(60)

    def _processes(self) -> list[int]:
        words = ["ip", "netns", "pids", self._host.namespace]
        listed = subprocess.run(words, capture_output=True, text=True, check=True)
        return [int(pid) for pid in listed.stdout.split()]


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


@contextlib.contextmanager
def machines(names: Sequence[str], work: Path) -> Iterator[list[Machine]]:
    """Make machines of these names on one switch; all that runs there ends with them."""
    work.mkdir(parents=True, exist_ok=True)
    hosts_file = work / "hosts"
    with hosts(len(names)) as made:
        lines = [f"{host.address} {name}" for host, name in zip(made, names, strict=True)]
        hosts_file.write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))
        fleet = [Machine(host, name, work / name, hosts_file) for host, name in zip(made, names, strict=True)]
        for host in made:
            host.plug_in()
        try:
            yield fleet
        except BaseException:
            for machine in fleet:
                print(f"--- {machine.name}\n{machine.log.read_text()[-4000:]}", file=sys.stderr)
            raise
        finally:
            for machine in fleet:
                machine.lose()
