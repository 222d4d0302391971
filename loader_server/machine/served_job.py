"""A job as the machine that serves it knows it: its processes except its workers, and how far it has come.

Rules: what the job file names is opened and imported in the job's own processes only, so one job's code cannot affect
another's.
"""

from __future__ import annotations

import enum
import math
import signal
from typing import TYPE_CHECKING, Any

from loader_server.machine.child import Child
from loader_server.machine.processes import DEADLINE_SIGNAL, how_it_ended
from shared.endpoints import at_any_port, at_port, check_endpoint, file_of, is_loopback
from shared.errors import SettingsError, StokerError
from shared.silence import GONE_AFTER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from loader_server.job_folder import JobFolder
    from loader_server.machine.job_socket import Caller, JobSocket

__all__ = [
    "DRAIN_SIGNAL", "END_SIGNAL", "JoinedJob", "PrintedError", "ServedJob", "Stage", "StartError", "cause_of",
    "failure_of", "make_job", "refuse_conflicts",
]  # fmt: skip

#: They tell a coordinator that its job ends: once trainers have finished what they have, or now.
DRAIN_SIGNAL, END_SIGNAL = signal.SIGUSR1, signal.SIGUSR2


class StartError(StokerError):
    """A child ended before it was ready."""


class PrintedError(StartError):
    """The error of a child that ended before it was ready, and that has printed it itself."""


class Stage(enum.Enum):
    """How far a job has come."""

    INDEXING = "indexing"
    COORDINATING = "its coordinator starts"
    JOINING = "its workers start"
    SERVED = "served"
    ENDING = "ending"


class ServedJob:
    """One job; `base_command` makes a command of a role and where it listens."""

    def __init__(
        self, folder: JobFolder, listen: str, base_command: Callable[[str, JobFolder, str], list[str]]
    ) -> None:
        self.folder = folder
        self.name = folder.settings.name
        self.stage = Stage.INDEXING
        self._base_command = base_command
        self.indexer = Child("index", lambda _: base_command("index", folder, ""))
        self.coordinator = Child("coordinator", self._coordinator_command, listen)
        self.socket: JobSocket | None = None
        #: The commands that wait for it to be served, or to end.
        self.asking: list[Caller] = []
        #: When it is to end at the latest, once that was ordered.
        self.end_s = math.inf
        #: From when on it is known who is attached.
        self._known_s = math.inf
        #: Why it could not be served.
        self.error: StartError | None = None

    @property
    def endpoint(self) -> str:
        """Where its trainers connect."""
        return self.coordinator.listen

    def refuse_listening(self, *, insecure: bool) -> None:
        """Raise a SettingsError if it may not listen where it would."""
        where = f"{self.folder.path}, listen"
        check_endpoint(self.endpoint, where=where, encrypted=self.folder.keys is not None, insecure=insecure)

    def drain(self, drain_s: object, now_s: float) -> bool:
        """It is to end: let its trainers leave first if it is served and they are given time; whether they are."""
        if self.stage is not Stage.SERVED or not isinstance(drain_s, int | float) or drain_s <= 0:
            return False
        self.end_s = min(self.end_s, now_s + drain_s)
        self.coordinator.signal(DRAIN_SIGNAL)
        return True

    def hear(self, child: Child, said: Mapping[str, Any], now_s: float) -> None:
        """Take in what a process of the job says: a worker that it was refused, or the coordinator about the end.

        A coordinator that was started again has to be told of the end anew.
        """
        if "refused" in said:
            self.note_refusal(now_s)
        if child is not self.coordinator:
            return
        if "endpoint" in said:
            self._known_s = now_s + GONE_AFTER * self.folder.settings.heartbeat_timeout_s
            if self.end_s < math.inf:
                self.coordinator.signal(DRAIN_SIGNAL)
        ends = said.get("ends")
        if isinstance(ends, dict) and not ends.get("trainers") and now_s >= self._known_s:
            self.end_s = now_s

    def note_refusal(self, now_s: float) -> None:
        """Note that its coordinator turned a worker away; where the job file is our own, only the user mends that."""

    def shut(self) -> None:
        """Let no more commands in: the job ends, and another process may serve it next."""
        if self.socket is not None:
            self.socket.close()
            self.socket = None

    def _metrics_port(self, offset: int) -> list[str]:
        first = self.folder.settings.metrics_port
        return ["--metrics-port", str(first and first + offset)]

    def _coordinator_command(self, listen: str) -> list[str]:
        return [*self._base_command("coordinator", self.folder, listen), *self._metrics_port(0)]

    def worker(self, number: int, host: str) -> Child:
        """Its worker in a place of this machine."""

        def command(listen: str) -> list[str]:
            own = ["--name", f"{host}-{number}", "--coordinator", self.endpoint]
            return [*self._base_command("worker", self.folder, listen), *own, *self._metrics_port(1 + number)]

        anywhere = at_any_port(self.endpoint)
        return Child(f"worker-{number}", command, anywhere, anywhere)


class JoinedJob(ServedJob):
    """A job that is served elsewhere: this machine has workers of it, which listen at `listen` and ports after it."""

    def __init__(
        self,
        folder: JobFolder,
        listen: str,
        base_command: Callable[[str, JobFolder, str], list[str]],
        *,
        insecure: bool,
    ) -> None:
        super().__init__(folder, folder.settings.listen, base_command)
        self._worker_listen = listen or _usual_listen(folder, insecure=insecure)
        self.stage = Stage.COORDINATING
        self.coordinator.served = True  # as far as this machine can know
        self.indexer = Child("fetch", lambda _: base_command("fetch", folder, ""))

    def refuse_listening(self, *, insecure: bool) -> None:
        """Raise a SettingsError if its workers may not listen where they would."""
        encrypted = self.folder.keys is not None
        check_endpoint(self._worker_listen, where="--listen", encrypted=encrypted, insecure=insecure)

    def note_refusal(self, now_s: float) -> None:
        """Fetch what the job needs again: the coordinator may have been started anew, with another index."""
        if self.indexer.process is None:
            self.indexer.start_when_possible(now_s)

    def worker(self, number: int, host: str) -> Child:
        """Its worker in a place of this machine; ports count up from the first one, if one was asked for.

        Hosts may have equal names, and a host may join a job twice, so its workers are named for its folder as well.
        """
        child = super().worker(number, f"{host}-{self.folder.joined.tag}" if self.folder.joined is not None else host)
        port = self._worker_listen.rpartition(":")[2]
        if port not in ("*", "0"):  # a firewall may let these ports through alone, so there is no spare one
            ports = 1 if self.folder.keys is None else 2  # the next one is for sealed batches
            child.listen, child.spare_listen = at_port(self._worker_listen, int(port) + ports * number), ""
        else:
            child.listen = child.spare_listen = at_any_port(self._worker_listen)
        return child


def _usual_listen(folder: JobFolder, *, insecure: bool) -> str:
    """Return where workers of a joined job listen: on loopback if the job is served there, and stays there.

    A coordinator that is named by a file may come back on another host; without keys none beyond this one is joined.
    """
    by_file = bool(file_of(folder.settings.listen))
    is_here = not (insecure or folder.keys) if by_file else is_loopback(folder.settings.listen)
    return "tcp://127.0.0.1:*" if is_here else "tcp://0.0.0.0:*"


def make_job(
    folder: JobFolder, listen: str, base_command: Callable[[str, JobFolder, str], list[str]], *, insecure: bool
) -> ServedJob:
    """Return a job to be served here, or one that is served elsewhere; `listen`, if given, says where it listens.

    Raises:
        SettingsError: The state folder cannot be written to.

    """
    folder.refuse_closed(folder.state)
    if folder.joined is not None:
        return JoinedJob(folder, listen, base_command, insecure=insecure)
    return ServedJob(folder, listen or folder.settings.listen, base_command)


def refuse_conflicts(jobs: Iterable[ServedJob], folder: JobFolder, listen: str, workers: int) -> None:
    """Refuse a job that would take another's name, endpoint or ports."""
    for job in jobs:
        if folder.settings.name == job.name:
            raise _conflict(folder, "name", job.name, job, 'name = "another"')
        if listen == job.endpoint and not listen.endswith((":*", ":0")):
            raise _conflict(folder, "listen", listen, job, 'listen = "tcp://127.0.0.1:7401", say')
        own, others = folder.settings.metrics_port, job.folder.settings.metrics_port
        if own and others and abs(own - others) <= workers:
            raise _conflict(folder, "metrics_port", str(own), job, f"metrics_port = {others + workers + 1}")


def _conflict(folder: JobFolder, setting: str, got: str, other: ServedJob, remedy: str) -> SettingsError:
    return SettingsError(
        expected=f"a {setting} different from those of the other jobs on this machine",
        got=f"{got}, which is too near to that of job {other.name}"
        if setting == "metrics_port"
        else f"that of job {other.name}, {got}",
        where=f"{folder.path}, [job], {setting}",
        remedy=f"Write {remedy}, in [job].",
    )


def failure_of(job: ServedJob, child: Child, code: int) -> StartError:
    """Why a job cannot be served whose child ended before it was ready."""
    if child.error:
        return PrintedError(**child.error)
    return StartError(
        expected=f"{child.name} of job {job.name} to start",
        got=f"{cause_of(code)} before it was ready",
        where=str(job.folder.path),
        remedy="What it printed is above, in the log of `loader-server run`.",
    )


def cause_of(code: int) -> str:
    """Say in words why a process of a job ended with this code."""
    if code == -DEADLINE_SIGNAL:
        return "a sample missed its build_timeout; the stacks above say where"
    return how_it_ended(code)
