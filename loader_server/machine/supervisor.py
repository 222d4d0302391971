"""The parent of one machine's loader side: coordinators of its jobs, and workers that the jobs share.

Rules: a worker serves one job, in one of as many places as the machine has workers; `shares` says how many places each
job has, and a place changes jobs by the end of one process and the start of another. Processes that end are restarted
(see `child`), except one that failed before its job was ever served: that points to a mistake in the set-up, and ends
the job, or everything if the job was there from the beginning. Children are forked from the nursery that
`nursery_keeper` keeps alive, and end with this process. The loop wakes when a child ends or reports, a command asks, a
signal comes, or something is due.
"""

from __future__ import annotations

import math
import os
import select
import time
from collections import Counter
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from loader_server.job_folder import JobFolder
from loader_server.machine.job_socket import JobSocket
from loader_server.machine.nursery import ASKING_FD
from loader_server.machine.nursery_keeper import NurseryKeeper
from loader_server.machine.served_job import (
    END_SIGNAL,
    ServedJob,
    Stage,
    StartError,
    cause_of,
    failure_of,
    make_job,
    refuse_conflicts,
)
from loader_server.machine.shares import Demand, Shares, divide
from loader_server.sharing.shelf import make_shelf
from shared.commands import LONGEST_WAIT_S
from shared.errors import MachineError, RefusedError, StokerError
from shared.logs import Log
from shared.metrics.scrape_targets import remove_dead_targets
from shared.sockets import Waker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from loader_server.machine.child import Child
    from loader_server.machine.job_socket import Caller
    from loader_server.machine.nursery import Nursery

__all__ = ["Supervisor", "SupervisorSettings", "WorkerPlace"]

#: How long a process may take to become ready: under a second on an idle machine, more on a busy one.
_READY_TIMEOUT_S = 60.0

#: Jobs whose coordinator serves.
_RUNNING = (Stage.JOINING, Stage.SERVED)


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorSettings:
    """Settings that all jobs have in common."""

    workers: int
    insecure: bool = False
    drain_timeout_s: float = 10.0
    log_level: str = "info"
    #: More arguments for all coordinators and workers: where they serve metrics and probes, what they advertise.
    arguments: tuple[str, ...] = ()
    #: Called with name, endpoint and number of workers of each job that begins to be served.
    announce: Callable[[str, str, int], None] = lambda _name, _endpoint, _workers: None


@dataclass(slots=True, eq=False)
class WorkerPlace:
    """A place for one worker; `job` is the one it is assigned to, `of` the one it works for now."""

    number: int
    job: ServedJob | None = None
    of: ServedJob | None = None
    child: Child | None = None


class Supervisor:
    """The supervisor of jobs: `start` returns when the first ones are served; `run` keeps them so until `stop`."""

    def __init__(self, settings: SupervisorSettings, nursery: Nursery) -> None:
        self.settings = settings
        self.log = Log("supervisor")
        self.jobs: dict[str, ServedJob] = {}
        self.places: list[WorkerPlace] = []
        self._shares = Shares(settings.workers)
        #: Descriptor of the shelf of shared batches, once a job shares any; -1 before.
        self._shelf = -1
        #: Callers that have connected but not sent a request yet, with the job whose socket they used.
        self._callers: dict[Caller, ServedJob] = {}
        self._waker = Waker()
        self._keeper = NurseryKeeper(nursery, self._waker.fileno(), self.log)
        #: Whether the first jobs are still being started.
        self._starting = False
        self._failure: StartError | None = None
        self._stopping = False
        #: Time of the main loop's last turn.
        self.turned_s = time.monotonic()

    @property
    def is_stopping(self) -> bool:
        """Return whether it was told to end."""
        return self._stopping

    @property
    def probe_addresses(self) -> list[str]:
        """Return the probe addresses of coordinators and workers; empty for those that are not there."""
        children = [job.coordinator for job in list(self.jobs.values())] + [place.child for place in list(self.places)]
        return [child.metrics if child is not None and child.served else "" for child in children]

    @property
    def workers(self) -> list[Child]:
        """Return the worker in each place that has one."""
        return [place.child for place in self.places if place.child is not None]

    def _children(self) -> Iterator[Child]:
        for job in self.jobs.values():
            yield job.indexer
            yield job.coordinator
        yield from self.workers

    def _command(self, role: str, folder: JobFolder, listen: str) -> list[str]:
        common = ["--parent", str(self._keeper.nursery.pid), "--log-level", self.settings.log_level]
        if role == "index":
            return [role, str(folder.path), "--missing", *common]
        insecure = ["--insecure"] if self.settings.insecure else []
        if role == "fetch":
            again = folder.joined.again if folder.joined is not None else ()
            return [role, folder.settings.listen, *again, *common, *insecure]
        shares = role == "worker" and folder.settings.share
        shelf = ["--shelf", f"/proc/{os.getpid()}/fd/{self._shelf}"] if shares else []
        asks = ["--nursery-fd", str(ASKING_FD)] if role == "worker" else []
        more = self.settings.arguments
        return [role, str(folder.path), "--listen", listen, *common, *more, *insecure, *shelf, *asks]

    # --- life ---

    def start(self, folders: Sequence[JobFolder], listen: str = "") -> None:
        """Start these jobs and return when all are served, or after `stop`; raise StartError if one cannot be."""
        self._starting = True
        for folder in folders:
            try:
                self._take_in(folder, listen)
            except MachineError:
                if not self._stopping:  # stopping interrupts requests to the nursery
                    raise
        while not self._stopping and any(job.stage is not Stage.SERVED for job in self.jobs.values()):
            self._turn()
            if self._failure is not None and not self._stopping:
                self.close()
                raise self._failure
        self._starting = False

    def run(self) -> None:
        """Keep all jobs running until `stop` or until none is left, then end them."""
        try:
            while not self._stopping and self.jobs:
                self._turn()
        finally:
            self.close()

    def stop(self) -> None:
        """End soon; may be called from a signal handler."""
        self._stopping = True
        self._waker.wake()

    def close(self) -> None:
        """Drain the workers, then end the coordinators; kill those that do not end in time."""
        self._stopping = True
        jobs = list(self.jobs.values())
        for job in jobs:
            job.shut()
        self._end_all([*self.workers, *(job.indexer for job in jobs)])
        self._end_all(job.coordinator for job in jobs)
        for job in jobs:
            self._forget(job)
        for caller in self._callers:
            caller.close()
        self._close_shelf()
        self._keeper.close()

    def _end_all(self, children: Iterable[Child]) -> None:
        ending = list(children)
        for child in ending:
            child.end(self.settings.drain_timeout_s)
        for child in ending:
            if child.reap():
                self.log.warning("killed, because it did not end in time", child=child.name)

    # --- jobs ---

    def _take_in(self, folder: JobFolder, listen: str = "") -> ServedJob:
        """Add a job and start its indexing; raise SettingsError on a conflict, MachineError if it cannot be started."""
        job = make_job(folder, listen, self._command, insecure=self.settings.insecure)
        job.refuse_listening(insecure=self.settings.insecure)
        refuse_conflicts(self.jobs.values(), folder, job.endpoint, max(self.settings.workers, len(self.jobs) + 1))
        try:
            remove_dead_targets(folder.targets_folder)
            if folder.settings.share and self._shelf < 0:
                self._shelf = make_shelf(folder.settings.share_bytes)
            if job.stage is Stage.INDEXING and self._keeper.is_ready:
                job.indexer.start(self._keeper.nursery)
            elif job.stage is Stage.INDEXING:
                job.indexer.start_when_possible(time.monotonic())
        except OSError as error:
            raise MachineError(
                expected="to begin with the job",
                got=str(error),
                where=str(folder.path),
                remedy="Look at the permissions of its state folder, and at this machine's limit of open files.",
            ) from error
        self.jobs[job.name] = job
        return job

    def _advance(self, job: ServedJob) -> None:
        """Move a job to its next stage if it is ready for it."""
        if job.stage is Stage.COORDINATING and job.coordinator.served and self._may_join():
            self._admit(
                [one for one in self.jobs.values() if one.stage is Stage.COORDINATING and one.coordinator.served]
            )
        elif job.stage is Stage.JOINING and self._has_joined(job):
            job.stage = Stage.SERVED
            job.socket = self._open_socket(job)
            workers = self._held()[job.name]
            self.settings.announce(job.name, job.endpoint, workers)
            for caller in job.asking:
                caller.answer(job=job.name, endpoint=job.endpoint, workers=workers)
            job.asking.clear()
        elif job.stage is Stage.ENDING and all(place.of is not job for place in self.places):
            job.indexer.end(self.settings.drain_timeout_s)
            job.coordinator.end(self.settings.drain_timeout_s)
            if job.indexer.process is None and job.coordinator.process is None:
                self._forget(job)

    def _open_socket(self, job: ServedJob) -> JobSocket | None:
        try:
            return JobSocket(job.folder.state)
        except OSError as error:  # a file system without sockets, say
            self.log.warning("commands cannot reach this job to add or end one", job=job.name, error=str(error))
            return None

    def _may_join(self) -> bool:
        """Return whether a job may get workers now; the first jobs get theirs together, so none has to move."""
        return not self._starting or all(job.coordinator.served for job in self.jobs.values())

    def _admit(self, jobs: Sequence[ServedJob]) -> None:
        """Give places to new jobs: equal shares at the start, one each later, until they report what they need."""
        for job in jobs:
            job.stage = Stage.JOINING
        held = self._held()
        new = self.settings.workers if self._starting else 1
        self._assign(divide(self.settings.workers, held, {name: count or new for name, count in held.items()}))

    def _has_joined(self, job: ServedJob) -> bool:
        own = [place for place in self.places if place.job is job]
        return all(place.of is job and place.child is not None and place.child.served for place in own)

    def _end(self, job: ServedJob) -> None:
        """End a job and give its places to the others."""
        if job.stage is Stage.ENDING:
            return
        job.stage = Stage.ENDING
        # The coordinator first: it tells trainers before their workers go, so they do not take that for a loss.
        job.coordinator.signal(END_SIGNAL)
        job.shut()
        for place in self.places:
            place.job = None if place.job is job else place.job
        held = self._held()
        if held:
            self._assign(divide(self.settings.workers, held, {name: max(1, count) for name, count in held.items()}))

    def _forget(self, job: ServedJob) -> None:
        for caller in job.asking:
            if job.error is not None:
                caller.refuse(job.error)
            elif job.stage is Stage.ENDING:
                caller.answer(job=job.name)
            else:
                caller.close()
        job.asking.clear()
        self.jobs.pop(job.name, None)
        if not any(other.folder.settings.share for other in self.jobs.values()):
            self._close_shelf()

    def _close_shelf(self) -> None:
        """Free the memory of shared batches; called once no job shares any."""
        if self._shelf >= 0:
            os.close(self._shelf)
            self._shelf = -1

    # --- places ---

    def _held(self) -> dict[str, int]:
        """Return how many places each running job has."""
        counts = Counter(place.job.name for place in self.places if place.job is not None)
        return {job.name: counts[job.name] for job in self.jobs.values() if job.stage in _RUNNING}

    def _assign(self, targets: Mapping[str, int]) -> None:
        """Assign each job this many places, preferring those where its own workers still run."""
        for name, count in targets.items():
            for place in [place for place in self.places if place.job is self.jobs[name]][count:]:
                place.job = None
        held = self._held()
        lacking = [self.jobs[name] for name, count in targets.items() for _ in range(count - held[name])]
        free = [place for place in self.places if place.job is None]
        for job in lacking:
            place = next((one for one in free if one.of is job), free[0]) if free else self._new_place()
            free = [one for one in free if one is not place]
            place.job = job

    def _new_place(self) -> WorkerPlace:
        taken = {place.number for place in self.places}
        place = WorkerPlace(next(number for number in range(len(taken) + 1) if number not in taken))
        self.places.append(place)
        return place

    def _may_move(self) -> bool:
        """Return whether workers may change jobs: not while a job begins or ends, which moves some anyway."""
        return len(self.jobs) > 1 and all(job.stage is Stage.SERVED for job in self.jobs.values())

    def _look_after_places(self, now_s: float) -> None:
        for place in self.places:
            self._look_after(place, now_s)
        self.places = [place for place in self.places if place.job is not None or place.child is not None]

    def _look_after(self, place: WorkerPlace, now_s: float) -> None:
        """Replace the place's worker if it belongs to another job, and restart one that has died."""
        child = place.child
        if child is not None and place.of is not place.job:
            child.end(self.settings.drain_timeout_s)
        if child is not None and child.is_ending and child.process is None:
            place.child = place.of = None
        if place.child is None and place.job is not None and place.job.stage in _RUNNING:
            place.of = place.job
            place.child = place.job.worker(place.number, os.uname().nodename)
            place.child.start_when_possible(now_s)
            self._restart(place.of, place.child, now_s)
        elif place.child is not None and place.of is not None and place.of is place.job:
            self._restart(place.of, place.child, now_s)

    def _restart(self, job: ServedJob, child: Child, now_s: float) -> None:
        """Start a process if it is due and the nursery is ready."""
        if child.process is None and now_s >= child.again_s and self._keeper.is_ready:
            # A process that hangs at its first start has to end, so that its job fails.
            must_serve = child is not job.indexer and job.stage is not Stage.SERVED and not child.restarts
            self._start_child(job, child, _READY_TIMEOUT_S if must_serve else math.inf)

    def _start_child(self, job: ServedJob, child: Child, within_s: float) -> None:
        """Start a process; if the system has no room for it, try again later, or give up a job not served yet."""
        try:
            child.start(self._keeper.nursery, within_s)
        except MachineError as error:
            if job.stage is not Stage.SERVED:
                self._give_up(job, StartError(**error.words()))
                return
            child.put_off(time.monotonic())
            say = self.log.debug if child.logged == error.got else self.log.warning
            child.logged = error.got
            say("cannot be started, and is tried again", child=child.name, error=str(error), job=job.name)

    # --- turns ---

    def _turn(self) -> None:
        """Wait until something happens, and do what is due."""
        self._wait_for_events()
        now_s = self.turned_s = time.monotonic()
        self._keeper.look(now_s)
        self._answer_callers()
        for job in list(self.jobs.values()):
            self._look_at(job, now_s)
        for place in self.places:
            if place.child is not None and place.of is not None:
                self._look_at_child(place.of, place.child, now_s)
        if self._may_move() and now_s >= self._shares.due_s():
            self._assign(self._shares.look(self._held(), now_s))
        self._look_after_places(now_s)  # workers that have ended let jobs advance
        for job in list(self.jobs.values()):
            self._advance(job)
        self._look_after_places(now_s)

    def _look_at(self, job: ServedJob, now_s: float) -> None:
        """Process reports and ends of the job's indexer and coordinator."""
        code = job.indexer.look(now_s)
        if code is not None and job.stage is Stage.INDEXING:
            if job.indexer.is_orphan:
                job.indexer.start_when_possible(now_s)
            elif code:
                self._give_up(job, failure_of(job, job.indexer, code))
            else:
                job.stage = Stage.COORDINATING
                job.coordinator.start_when_possible(now_s)
        self._look_at_child(job, job.coordinator, now_s)
        self._restart(job, job.indexer, now_s)
        self._restart(job, job.coordinator, now_s)
        if now_s >= job.end_s:
            self._end(job)

    def _look_at_child(self, job: ServedJob, child: Child, now_s: float) -> None:
        for said in child.hear():
            job.hear(child, said, now_s)
            if "endpoint" in said:
                self.log.info("ready", child=child.name, endpoint=child.listen, pid=child.pid, job=job.name)
            elif child is job.coordinator and isinstance(said.get("busy"), int):
                self._shares.hear(job.name, Demand(waits=bool(said.get("waits")), busy=said["busy"]))
        served = child.served
        code = child.look(now_s)
        if code is None or child.is_ending:
            return
        if job.stage is Stage.ENDING:
            child.end(self.settings.drain_timeout_s)
        elif child.is_orphan:
            child.start_when_possible(now_s)
        elif not served and not child.restarts and job.stage is not Stage.SERVED:
            self._give_up(job, failure_of(job, child, code))
        else:
            child.begin_pause(now_s)
            if code == RefusedError.exit_code:
                job.note_refusal(now_s)
            self._log_death(job, child, code)

    def _log_death(self, job: ServedJob, child: Child, code: int) -> None:
        """Log a child's end; an error of its own only once while it does not serve, as `status` shows the rest."""
        error = " ".join(child.error.values())
        say = self.log.debug if error and error == child.logged else self.log.warning
        child.logged = error
        cause, restarts = cause_of(code), child.restarts
        say("died and is started again", child=child.name, cause=cause, restarts=restarts, job=job.name)

    def _give_up(self, job: ServedJob, error: StartError) -> None:
        job.error = error
        self._failure = self._failure or job.error if self._starting else None
        self._end(job)

    def _wait_for_events(self) -> None:
        poller = select.poll()
        sockets = [job.socket for job in self.jobs.values() if job.socket is not None]
        poller.register(self._waker.fileno(), select.POLLIN)
        for descriptor in [one.fileno() for one in sockets] + [one.fileno() for one in self._callers]:
            poller.register(descriptor, select.POLLIN)
        children = list(self._children())
        for descriptor in chain(self._keeper.descriptors(), *(child.descriptors() for child in children)):
            poller.register(descriptor, select.POLLIN)
        ends_s = [job.end_s for job in self.jobs.values() if job.stage is not Stage.ENDING]
        # Children can be started only with a nursery, so their due times must not wake the loop before.
        awaited = [child for child in children if child.process is not None or self._keeper.is_ready]
        due_s = min([self._keeper.due_s(), *(child.due_s() for child in awaited), *ends_s])
        if self._may_move():
            due_s = min(due_s, self._shares.due_s())
        pause_s = min(max(0.0, due_s - time.monotonic()), LONGEST_WAIT_S)
        poller.poll(math.ceil(1000 * pause_s))
        self._waker.clear()

    # --- commands that ask something ---

    def _answer_callers(self) -> None:
        for job in self.jobs.values():
            for caller in job.socket.take_in() if job.socket is not None else ():
                self._callers[caller] = job
        for caller, job in list(self._callers.items()):
            request = caller.read()
            if request is not None:
                del self._callers[caller]
                self._answer(caller, job, request)

    def _answer(self, caller: Caller, job: ServedJob, request: Mapping[str, Any]) -> None:
        """Carry out a command's request; `job` is the one whose socket it used."""
        wish = request.get("do")
        if wish == "add":
            try:
                self._take_in(JobFolder(str(request.get("job")))).asking.append(caller)
            except StokerError as error:
                caller.refuse(error)
        elif wish == "end" and job.name in self.jobs:
            job.asking.append(caller)
            if not job.drain(request.get("drain"), time.monotonic()):
                self._end(job)
        elif wish == "jobs":
            caller.answer(jobs=self._told())
        else:
            caller.close()

    def _told(self) -> list[dict[str, Any]]:
        """Return all jobs, for people and scripts."""
        held = self._held()
        return [
            {
                "job": job.name,
                "file": str(job.folder.path),
                "stage": job.stage.value,
                "endpoint": job.endpoint if job.stage in _RUNNING else None,
                "workers": held.get(job.name, 0),
            }
            for job in self.jobs.values()
        ]
