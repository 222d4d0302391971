"""A real Slurm on this machine: munge, a controller and nodes, all below one folder, ended with the block.

Each node is a `slurmd` in a PID and UTS namespace of its own. So it has a host name and cannot see the others'
processes, and killing the first process of its namespace takes slurmd, its steps and all that they started in one
blow, as when a machine is lost. Processes here die with the one that started them, whatever kills that.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.forked import ROOT
from tests.support.loaders import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["Slurm", "SlurmError", "reason_not_here", "slurm"]

_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")
_INSTALL = ("apt-get", "install", "--yes", "--no-install-recommends", "slurm-wlm", "munge")
#: Die with this process; see nothing of other processes, and take all of one's own along.
_ALONE = (
    *("setpriv", "--pdeathsig", "KILL", "--"),
    *("unshare", "--pid", "--uts", "--fork", "--kill-child=KILL", "--mount-proc", "--"),
)
#: The shell stays, as the first process of a PID namespace has to reap those whose parents have ended.
_AS_HOST = ("sh", "-c", 'hostname "$1"; shift; "$@"; exit $?', "sh")
#: The kernel's limit for the path of a Unix socket.
_LONGEST_SOCKET = 107

#: A lost node is noticed within ten seconds, and its job may start again five seconds later: Slurm's own times
#: are five minutes and two.
_CONFIGURATION = """\
ClusterName=fleet
SlurmctldHost=controller(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={socket},cred_expire=5
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,bf_resolution=1,bf_yield_sleep=100000,sched_interval=1,batch_sched_delay=0
ReturnToService=2
SlurmdTimeout=3
MessageTimeout=2
TCPTimeout=1
KillWait=15
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/controller.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/controller.log
SlurmdLogFile={folder}/%n.log
SlurmdParameters=config_overrides
{nodes}
PartitionName=main Nodes=ALL Default=YES State=UP PriorityTier=1
PartitionName=urgent Nodes=ALL State=UP PriorityTier=2
"""


@cache
def reason_not_here() -> str:
    """Return why there can be no Slurm here; empty if there can. Debian's packages are installed if they lack."""
    if os.geteuid() != 0:
        return "Slurm's nodes need root"
    if _lacking() and shutil.which("apt-get") is not None:
        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}  # at level 1 no service starts
        for command in (("apt-get", "update"), _INSTALL):
            subprocess.run(command, env=quiet, capture_output=True, check=False, timeout=300)
    if _lacking():
        return f"{', '.join(_lacking())} not found, and slurm-wlm and munge cannot be installed"
    tried = subprocess.run([*_ALONE, "true"], capture_output=True, text=True, check=False)
    return f"no namespaces: {tried.stderr.strip()}" if tried.returncode else ""


def _lacking() -> list[str]:
    return [program for program in _PROGRAMS if shutil.which(program) is None]


class SlurmError(Exception):
    """A command of Slurm's failed."""


class Slurm:
    """A running Slurm; its files are in `folder`. What is in the partition `urgent` preempts what is in `main`."""

    def __init__(self, folder: Path, nodes: int, cleanup: contextlib.ExitStack) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        (folder / "state").mkdir()
        self._cleanup = cleanup
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        names = [f"node{number}" for number in range(1, 1 + nodes)]
        self._configure(names)
        self.environment = {
            **os.environ,
            "SLURM_CONF": str(folder / "slurm.conf"),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
        }
        self._start_munge()
        self._start("controller", "slurmctld", "-D")
        for name in names:
            self._start(name, "slurmd", "-D", "-N", name)
        idle = ["idle"] * nodes
        wait_until(lambda: self.ask("sinfo", "-h", "-N", "-p", "main", "-o", "%T") == idle, "all nodes are idle")

    def _configure(self, names: Sequence[str]) -> None:
        port, *ports = _free_ports(1 + len(names))
        nodes = [
            f"NodeName={name} NodeAddr=127.0.0.1 Port={port} CPUs=4" for name, port in zip(names, ports, strict=True)
        ]
        munge = str(self.folder / "munge.socket")
        if len(munge) > _LONGEST_SOCKET:
            raise SlurmError(f"expected a socket's path of at most {_LONGEST_SOCKET} characters, got {munge}")
        configuration = _CONFIGURATION.format(folder=self.folder, socket=munge, port=port, nodes="\n".join(nodes))
        (self.folder / "slurm.conf").write_text(configuration)

    def _start_munge(self) -> None:
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        files = [f"--{name}-file={self.folder / f'munged.{name}'}" for name in ("pid", "log", "seed")]
        # By force, as the folders above may be private, and munged expects one that everybody may enter.
        listen = self.folder / "munge.socket"
        self._start("munged", "munged", "--foreground", "--force", f"--key-file={key}", f"--socket={listen}", *files)
        wait_until(listen.exists, "munged listens")

    def _start(self, host: str, *command: str) -> None:
        with (self.folder / f"{host}.out").open("wb") as log:
            process = self._processes[host] = subprocess.Popen(
                [*_ALONE, *_AS_HOST, host, *command],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._cleanup.callback(_kill, process)

    def submit(self, *words: str, folder: Path) -> str:
        """Submit a script with its options and arguments from a folder; return the job's number."""
        return self._run("sbatch", "--parsable", *words, folder=folder).strip()

    def ask(self, *command: str) -> list[str]:
        """Return the lines that one of Slurm's commands says; none if the controller does not answer yet."""
        try:
            return self._run(*command).split("\n")[:-1]
        except SlurmError:
            return []

    def fields(self, job: str) -> dict[str, str]:
        """Return what Slurm says of a job, of a heterogeneous one's first part, or of an array's task (`7_1`)."""
        lines = self.ask("scontrol", "--oneliner", "show", "job", job)
        return dict(re.findall(r"(\w+)=(\S*)", lines[0])) if lines else {}

    def lose(self, node: str) -> None:
        """Kill a node's slurmd and all that its jobs have started, at once."""
        _kill(self._processes[node])

    def cancel(self, job: str) -> None:
        """Cancel a job, and wait until nothing of it is left."""
        self._run("scancel", job)
        wait_until(lambda: not self.ask("squeue", "-h", "-j", job), f"job {job} has ended")

    def _run(self, *command: str, folder: Path | None = None) -> str:
        done = subprocess.run(
            command, cwd=folder, env=self.environment, capture_output=True, check=False, text=True, timeout=60
        )
        if done.returncode:
            raise SlurmError(f"{' '.join(command)}: {done.stderr}")
        return done.stdout


def _free_ports(count: int) -> list[int]:
    """Ports that nobody has now, all different."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for bound in sockets:
            bound.bind(("127.0.0.1", 0))
        return [bound.getsockname()[1] for bound in sockets]


def _kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


@contextmanager
def slurm(folder: Path, nodes: int) -> Iterator[Slurm]:
    """Run a Slurm with so many nodes for the length of a block; `node1` is the first."""
    with contextlib.ExitStack() as cleanup:
        yield Slurm(folder.resolve(), nodes, cleanup)
