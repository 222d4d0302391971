"""A job on the machine that serves it: its processes, the stage it has reached, and the callers that wait for it.

Rules: what the job file names is opened and imported in the job's own processes only, so one job's code cannot affect
another's.
"""

from __future__ import annotations

import enum
import math
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from loader_server.machine.child import Child
from loader_server.machine.job_socket import JobSocket
from loader_server.machine.processes import DEADLINE_SIGNAL, how_it_ended
from shared.endpoints import at_any_port, at_port, check_endpoint, file_of, is_loopback
from shared.errors import SettingsError, StokerError
from shared.metrics.scrape_targets import TargetSweep
from shared.silence import GONE_AFTER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from loader_server.job_folder import JobFolder
    from loader_server.machine.job_socket import Caller
    from shared.logs import Log

__all__ = [
    "DRAIN_SIGNAL", "END_SIGNAL", "JoinedJob", "PrintedError", "ServedJob", "Stage", "StartError", "WorkerPlace",
    "cause_of", "failure_of", "make_job", "refuse_conflicts",
]  # fmt: skip

#: Signals that end a coordinator's job: after trainers have finished what they have, or now.
DRAIN_SIGNAL, END_SIGNAL = signal.SIGUSR1, signal.SIGUSR2


class StartError(StokerError):
    """A child ended before it was ready."""


class PrintedError(StartError):
    """An error that a child printed itself before it ended."""


class Stage(enum.Enum):
    """The stage that a job has reached."""

    INDEXING = "indexing"
    COORDINATING = "its coordinator starts"
    JOINING = "its workers start"
    SERVED = "served"
    ENDING = "ending"


class ServedJob:
    """A job that is served here; `base_command` makes a command of role, folder and listen address."""

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
        #: Of trainers that are killed, and of workers that are not started again: nobody else removes their files.
        self.targets = TargetSweep(folder.targets_folder)
        #: Callers that wait for the job to be served, or to end.
        self.asking: list[Caller] = []
        #: The latest time to end, once that was ordered.
        self.end_s = math.inf
        #: From when the coordinator knows who is attached: trainers need time to come back after its start.
        self._known_s = math.inf
        #: The error for which it could not be served.
        self.error: StartError | None = None

    @property
    def has_own_coordinator(self) -> bool:
        """Return whether its coordinator is a process of this machine's supervisor."""
        return True

    @property
    def is_running(self) -> bool:
        """Return whether the job is in a stage with workers: they start, or it is served."""
        return self.stage in (Stage.JOINING, Stage.SERVED)

    @property
    def has_new_coordinator(self) -> bool:
        """Return whether its coordinator serves, but the job has no workers yet."""
        return self.stage is Stage.COORDINATING and self.coordinator.is_serving

    @property
    def endpoint(self) -> str:
        """Return the endpoint at which its trainers connect."""
        return self.coordinator.listen

    def refuse_listening(self, *, insecure: bool) -> None:
        """Raise SettingsError if the job must not listen at its endpoint.

        That is so if it is no TCP endpoint, or lies beyond loopback with neither keys nor `insecure`.
        """
        self._check(self.endpoint, f"{self.folder.path}, listen", insecure=insecure)

    def _check(self, endpoint: str, where: str, *, insecure: bool) -> None:
        check_endpoint(endpoint, where=where, encrypted=self.folder.keys is not None, insecure=insecure)

    def drain(self, drain_s: object, now_s: float) -> bool:
        """Order the end of the job after its trainers have left; return False if it should end at once instead.

        That is so if it is not served yet, or if `drain_s` is not a number above 0. The job ends after `drain_s` at the
        latest; a later order can only bring that forward.
        """
        if self.stage is not Stage.SERVED or not isinstance(drain_s, int | float) or drain_s <= 0:
            return False
        self.end_s = min(self.end_s, now_s + drain_s)
        self.coordinator.signal(DRAIN_SIGNAL)
        return True

    def hear(self, child: Child, report: Mapping[str, Any], now_s: float) -> None:
        """Process a report: a worker was refused, the coordinator is ready, or all trainers have left at the end."""
        if "refused" in report:
            self.note_refusal(now_s)
        if child is self.coordinator:
            self._hear_coordinator(report, now_s)

    def _hear_coordinator(self, report: Mapping[str, Any], now_s: float) -> None:
        if "endpoint" in report:
            # A restarted coordinator knows of no trainers at first, so "none attached" means that all have left only
            # after they have had time to be heard.
            self._known_s = now_s + GONE_AFTER * self.folder.settings.heartbeat_timeout_s
            # The order to end went to its predecessor.
            if self.end_s < math.inf:
                self.coordinator.signal(DRAIN_SIGNAL)
        ends = report.get("ends")
        if isinstance(ends, dict) and not ends.get("trainers") and now_s >= self._known_s:
            self.end_s = now_s

    def note_refusal(self, now_s: float) -> None:
        """Do nothing: the job file is our own, so only the user can mend what the coordinator refuses."""

    def begin_serving(self, log: Log) -> None:
        """Note that all its workers serve, and let commands reach it; log a warning if they cannot."""
        self.stage = Stage.SERVED
        try:
            self.socket = JobSocket(self.folder.state)
        except OSError as error:  # a file system without sockets, say
            log.warning(
                "`loader-server add`, `end` and `status` cannot reach this job by its file",
                job=self.name,
                error=str(error),
            )

    def answer_all(self, **facts: Any) -> None:
        """Send this answer to all callers that wait for the job, and hang up."""
        for caller in self.asking:
            caller.answer(**facts)
        self.asking.clear()

    def hang_up(self) -> None:
        """Hang up on callers that wait for the job: without an answer they know that the loaders have ended."""
        for caller in self.asking:
            caller.close()
        self.asking.clear()

    def facts(self, workers: int) -> dict[str, Any]:
        """Return the job's facts, for people and scripts; it has this many workers.

        They are its name, file, stage, endpoint (None unless it is running) and number of workers.
        """
        return {
            "job": self.name,
            "file": str(self.folder.path),
            "stage": self.stage.value,
            "endpoint": self.endpoint if self.is_running else None,
            "workers": workers,
        }

    def shut(self) -> None:
        """Close the command socket, if there is one: the job ends, and another process may serve it next.

        OSError of `close` passes through.
        """
        if self.socket is not None:
            self.socket.close()
            self.socket = None

    def _metrics_port(self, offset: int) -> list[str]:
        first = self.folder.settings.metrics_port
        return ["--metrics-port", str(first and first + offset)]

    def _coordinator_command(self, listen: str) -> list[str]:
        restarts = ["--restarts", str(self.coordinator.starts)]
        return [*self._base_command("coordinator", self.folder, listen), *self._metrics_port(0), *restarts]

    def worker(self, number: int, host: str) -> Child:
        """Return the job's worker for a place of this machine, not started yet.

        It is named by host and number, and listens at any free port of the endpoint's host.
        """

        def command(listen: str) -> list[str]:
            own = ["--name", f"{host}-{number}", "--coordinator", self.endpoint, "--restarts", str(child.starts)]
            return [*self._base_command("worker", self.folder, listen), *own, *self._metrics_port(1 + number)]

        anywhere = at_any_port(self.endpoint)
        child = Child(f"worker-{number}", command, anywhere, anywhere)
        return child


@dataclass(slots=True, eq=False)
class WorkerPlace:
    """A place for one worker; `job` is the one it is assigned to, `serves` the one that its `child` works for now."""

    number: int
    job: ServedJob | None = None
    serves: ServedJob | None = None
    child: Child | None = None

    def release(self, within_s: float) -> None:
        """Signal the worker to end if the place is another job's, or nobody's, by now; do not wait.

        `Child.look` kills it if it still lives `within_s` after the first call. Forget a worker that is gone, so call
        this again until `child` is None.
        """
        # A job's own code runs in its worker: only a process of its own keeps the code's crashes, memory, globals and
        # module names from another job.
        if self.child is not None and self.serves is not self.job:
            self.child.end(within_s)
        if self.child is not None and self.child.is_ending and self.child.process is None:
            self.child = self.serves = None


class JoinedJob(ServedJob):
    """A job that is served elsewhere: this machine has workers of it, at `listen` and the ports after it.

    Making it without `listen` raises SettingsError if the coordinator's endpoint is malformed.
    """

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
        self.coordinator.is_serving = True  # as far as this machine can know
        self.indexer = Child("fetch", lambda _: base_command("fetch", folder, ""))

    @property
    def has_own_coordinator(self) -> bool:
        """Return False: its coordinator runs elsewhere."""
        return False

    def refuse_listening(self, *, insecure: bool) -> None:
        """Raise SettingsError if its workers must not listen at their address.

        That is so if it is no TCP endpoint, or lies beyond loopback with neither keys nor `insecure`.
        """
        self._check(self._worker_listen, "--listen", insecure=insecure)

    def note_refusal(self, now_s: float) -> None:
        """Fetch the job's bundle again: the coordinator may have been restarted with another index.

        Do nothing while it is being fetched.
        """
        if self.indexer.process is None:
            self.indexer.start_when_possible(now_s)

    def worker(self, number: int, host: str) -> Child:
        """Return the job's worker for a place of this machine, not started yet.

        Its port is any free one or, if the first one is given, counted up from that: two for each place if there are
        keys, else one. Hosts may have equal names, and a host may join a job twice, so the folder's tag is part of its
        workers' names.
        """
        child = super().worker(number, f"{host}-{self.folder.joined.tag}" if self.folder.joined is not None else host)
        port = self._worker_listen.rpartition(":")[2]
        if port not in ("*", "0"):  # a firewall may let only these ports through, so there is no spare one
            ports = 1 if self.folder.keys is None else 2  # the next one is for sealed batches
            child.listen, child.spare_listen = at_port(self._worker_listen, int(port) + ports * number), ""
        else:
            child.listen = child.spare_listen = at_any_port(self._worker_listen)
        return child


def _usual_listen(folder: JobFolder, *, insecure: bool) -> str:
    """Return a joined job's default address: any port of 127.0.0.1 if it is sure to stay here, else of 0.0.0.0.

    A coordinator that is named by a file may come back on another host, so its job counts as local only if there are
    neither keys nor `insecure`: without both, a coordinator on another host is not joined. Raise SettingsError if the
    coordinator's endpoint is malformed.
    """
    by_file = bool(file_of(folder.settings.listen))
    is_here = not (insecure or folder.keys) if by_file else is_loopback(folder.settings.listen)
    return "tcp://127.0.0.1:*" if is_here else "tcp://0.0.0.0:*"


def make_job(
    folder: JobFolder, listen: str, base_command: Callable[[str, JobFolder, str], list[str]], *, insecure: bool
) -> ServedJob:
    """Return a job to be served here, or one that is served elsewhere; `listen`, if given, says where it listens.

    Raises:
        SettingsError: The state folder cannot be written to, or the endpoint of a job that is served elsewhere is
            malformed.
    """
    folder.refuse_closed(folder.state)
    if folder.joined is not None:
        return JoinedJob(folder, listen, base_command, insecure=insecure)
    return ServedJob(folder, listen or folder.settings.listen, base_command)


def refuse_conflicts(jobs: Iterable[ServedJob], folder: JobFolder, listen: str, workers: int) -> None:
    """Raise SettingsError if a job would take another's name, endpoint or metrics ports.

    Endpoints with any free port never conflict. Metrics ports do if both are given, and at most `workers` apart; those
    of joined jobs never do, because this machine's places have one each, whichever of these jobs they serve.
    """
    for job in jobs:
        if folder.settings.name == job.name:
            raise _conflict(folder, "name", job.name, job, 'name = "another"')
        if listen == job.endpoint and not listen.endswith((":*", ":0")):
            raise _conflict(folder, "listen", listen, job, 'listen = "tcp://127.0.0.1:7401", say')
        own, others = folder.settings.metrics_port, job.folder.settings.metrics_port
        are_joined = folder.joined is not None and job.folder.joined is not None
        if own and others and not are_joined and abs(own - others) <= workers:
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
    """Return the error of a job that cannot be served because its child ended before it was ready.

    It is a PrintedError with the error that the child reported, or a StartError with its exit code if it reported none.
    """
    if child.error:
        return PrintedError(**child.error)
    return StartError(
        expected=f"{child.name} of job {job.name} to start",
        got=f"{cause_of(code)} before it was ready",
        where=str(job.folder.path),
        remedy="What it printed is above, in the log of `loader-server run`.",
    )


def cause_of(code: int) -> str:
    """Return in words why a process of a job ended with this code: a missed build_timeout, a signal or an exit code."""
    if code == -DEADLINE_SIGNAL:
        return "a sample missed its build_timeout; the stacks above say where"
    return how_it_ended(code)
