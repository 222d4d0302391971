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
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

__all__ = ["Machine", "last_line", "machines"]

#: The files of a folder of keys that each kind of machine needs, as the page says.
_CARRIED = {
    "worker": ("worker.key_secret", "coordinator.key", "allowed"),
    "trainer": ("trainer.key_secret", "coordinator.key", "worker.key"),
}

#: Gives a namespace a name of its own and mounts (pairs of paths, up to `--`), then becomes the command.
_ENTER = """
hostname "$0"
while [ "$1" != -- ]; do mount --bind "$1" "$2" || exit 1; shift 2; done
shift
exec "$@"
"""


class Machine:
    """One machine: where its programs start, and what they say."""

    def __init__(self, host: Host, name: str, folder: Path, mounts: Mapping[str, str]) -> None:
        self._host = host
        self.name = name
        #: What it has of its own; programs start here.
        self.folder = folder
        self.address = host.address
        self.log = folder / "log"
        #: What lies elsewhere on this machine than on the others: from where, by where.
        self.mounts = dict(mounts)
        folder.mkdir(parents=True)
        self.log.touch()
        self._programs: list[subprocess.Popen[str]] = []

    @property
    def prefix(self) -> tuple[str, ...]:
        """The words before a command that runs on this machine."""
        mounts = (path for target, source in self.mounts.items() for path in (source, target))
        enter = ("unshare", "--uts", "sh", "-c", _ENTER, self.name, *mounts, "--")
        return ("ip", "netns", "exec", self._host.namespace, *enter)

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
        return self.begin([sys.executable, "-m", *words], _environment())

    def begin(self, words: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[str]:
        """Start a command there, in this environment."""
        with self.log.open("a") as log:
            program = subprocess.Popen(
                [*self.prefix, *words], cwd=self.folder, env=environment, stdout=log, stderr=log, text=True
            )
        self._programs.append(program)
        return program

    def run(self, *words: str) -> str:
        """Run a module of ours there; return the last line that it printed."""
        return last_line(self.ask(*words))

    def ask(self, *words: str) -> subprocess.Popen[str]:
        """Start a module of ours there whose last line is its answer."""
        with self.log.open("a") as log:
            program = subprocess.Popen(
                [*self.prefix, sys.executable, "-m", *words],
                cwd=self.folder,
                env=_environment(),
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self._programs.append(program)
        return program

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


def last_line(program: subprocess.Popen[str]) -> str:
    """Wait for a program's end; return the last line that it printed, and raise if it failed."""
    output, _ = program.communicate(timeout=200)
    if program.returncode:
        raise subprocess.CalledProcessError(program.returncode, program.args)
    return output.splitlines()[-1]


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
        mounts = {"/etc/hosts": str(hosts_file)}
        fleet = [Machine(host, name, work / name, mounts) for host, name in zip(made, names, strict=True)]
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
