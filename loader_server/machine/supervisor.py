"""The parent of one machine's loader side: coordinators of its jobs, and workers that the jobs share.

Rules: a worker serves one job, in one of as many places as the machine has workers; `worker_shares` says how many
places each job has, and a place changes jobs by the end of one process and the start of another. Processes that end are
restarted (see `child`), except one that failed before its job was ever served: that points to a mistake in the set-up,
and ends the job, or everything if the job was there from the beginning. Children are forked from the nursery that
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
from typing import TYPE_CHECKING, Any

from loader_server.job_folder import JobFolder
from loader_server.machine.nursery import ASKING_FD
from loader_server.machine.nursery_keeper import NurseryKeeper
from loader_server.machine.processes import NurseryEndedError
from loader_server.machine.served_job import (
    END_SIGNAL,
    ServedJob,
    Stage,
    StartError,
    WorkerPlace,
    cause_of,
    failure_of,
    make_job,
    refuse_conflicts,
)
from loader_server.machine.worker_shares import Shares, divide, moves_between
from loader_server.sharing.shelf import make_shelf
from shared.commands import LONGEST_WAIT_S
from shared.errors import MachineError, RefusedError, StokerError
from shared.logs import Log
from shared.metrics.scrape_targets import remove_dead_targets
from shared.sockets import Waker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from loader_server.machine.asking import OwnedNursery
    from loader_server.machine.child import Child
    from loader_server.machine.job_socket import Caller

__all__ = ["Supervisor", "SupervisorSettings"]

#: How long a process may take to become ready: under a second on an idle machine, more on a busy one.
_READY_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorSettings:
    """Settings that all jobs have in common."""

    workers: int
    insecure: bool = False
    #: How long a process may take to end in good order before it is killed.
    drain_timeout_s: float = 10.0
    log_level: str = "info"
    #: More arguments for all coordinators and workers: where they serve metrics and probes, what they advertise.
    arguments: tuple[str, ...] = ()
    #: Called with name, endpoint and number of workers of each job that begins to be served.
    announce: Callable[[str, str, int], None] = lambda _name, _endpoint, _workers: None


class Supervisor:
    """The supervisor of jobs: `start` returns when the first ones are served; `run` keeps them so until `stop`."""

    def __init__(self, settings: SupervisorSettings, nursery: OwnedNursery) -> None:
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
        # A nursery that is stopped would keep us waiting for its answer; the waker interrupts that at the order to end.
        self._keeper = NurseryKeeper(nursery, self._waker.fileno(), self.log)
        #: Whether the first jobs are still being started.
        self._is_starting = False
        #: The first error of a job that was there from the beginning.
        self._failure: StartError | None = None
        #: Whether it was told to end.
        self.is_stopping = False
        #: Time of the main loop's last turn.
        self.turned_s = time.monotonic()

    @property
    def probe_addresses(self) -> list[str]:
        """Return the probe addresses of this machine's coordinators and places; empty for each that is not ready."""
        # Copies, because the metrics server's thread asks while the main loop changes them.
        own = [job.coordinator for job in list(self.jobs.values()) if job.has_own_coordinator]
        children = [*own, *(place.child for place in list(self.places))]
        return [child.metrics if child is not None and child.is_serving else "" for child in children]

    @property
    def workers(self) -> list[Child]:
        """Return the worker in each place that has one."""
        return [child for _, child in self._staff()]

    def _staff(self) -> Iterator[tuple[ServedJob, Child]]:
        """Yield each worker, with the job that it works for; places without a worker are left out."""
        for place in self.places:
            if place.child is not None and place.serves is not None:
                yield place.serves, place.child

    def _children(self) -> list[Child]:
        """Return all processes of all jobs: indexers, coordinators and workers, running or not."""
        return [child for job in self.jobs.values() for child in (job.indexer, job.coordinator)] + self.workers

    def _command(self, role: str, folder: JobFolder, listen: str) -> list[str]:
        """Return the command line of a job's process; roles are index, fetch, coordinator and worker."""
        common = ["--parent", str(self._keeper.nursery.pid), "--log-level", self.settings.log_level]
        if role == "index":
            return [role, str(folder.path), "--missing", *common]
        insecure = ["--insecure"] if self.settings.insecure else []
        if role == "fetch":
            again = folder.joined.again if folder.joined is not None else ()
            return [role, folder.settings.listen, *again, *common, *insecure]
        of_worker: list[str] = []
        if role == "worker":
            of_worker = ["--nursery-fd", str(ASKING_FD)]
            # By way of our descriptor, because a memfd has no name by which another process could open it.
            of_worker += ["--shelf", f"/proc/{os.getpid()}/fd/{self._shelf}"] if folder.settings.share else []
        return [role, str(folder.path), "--listen", listen, *common, *self.settings.arguments, *insecure, *of_worker]

    # --- life ---

    def start(self, folders: Sequence[JobFolder], listen: str = "") -> None:
        """Start these jobs and return when all are served, or after `stop`.

        Raise StartError if one cannot be served, after ending all. The caller has to close it after a SettingsError (a
        conflict, an endpoint or state folder that cannot be used) or MachineError (no room, nurseries die again).
        Other errors of `_turn` pass through.
        """
        self._is_starting = True
        for folder in folders:
            self._take_in(folder, listen)
        while not self.is_stopping and any(job.stage is not Stage.SERVED for job in self.jobs.values()):
            self._turn()
            if self._failure is not None and not self.is_stopping:
                self.close()
                raise self._failure
        self._is_starting = False

    def run(self) -> None:
        """Keep all jobs running until `stop` or until none is left, then end them.

        Raises MachineError if nurseries die again and again, or none can be started. Other errors of `_turn` and those
        of `close` pass through.
        """
        try:
            while not self.is_stopping and self.jobs:
                self._turn()
        finally:
            self.close()

    def stop(self) -> None:
        """Have `run` and `start` return after this turn; may be called from a signal handler."""
        self.is_stopping = True
        self._waker.wake()

    def close(self) -> None:
        """Drain the workers, then end the coordinators, and kill those that are late; OSError of `shut` passes."""
        self.is_stopping = True
        jobs = list(self.jobs.values())
        for job in jobs:
            job.shut()
        self._end_all([*self.workers, *(job.indexer for job in jobs)])
        self._end_all([job.coordinator for job in jobs])
        for job in jobs:
            self._forget(job)
        for caller in self._callers:
            caller.close()
        self._close_shelf()
        self._keeper.close()

    def _end_all(self, children: Sequence[Child]) -> None:
        # All get the order before any is waited for, so that their times run side by side.
        for child in children:
            child.end(self.settings.drain_timeout_s)
        for child in children:
            if child.reap():
                self.log.warning("killed, because it did not end in time", child=child.name)

    # --- jobs ---

    def _take_in(self, folder: JobFolder, listen: str = "") -> ServedJob:
        """Add a job, whose indexing starts in the next turn with a nursery; return it.

        Raise SettingsError on a conflict with another job, or for an endpoint or state folder that cannot be used, and
        MachineError if the system refuses its files or the shelf of shared batches.
        """
        job = make_job(folder, listen, self._command, insecure=self.settings.insecure)
        job.refuse_listening(insecure=self.settings.insecure)
        refuse_conflicts(self.jobs.values(), folder, job.endpoint, max(self.settings.workers, len(self.jobs) + 1))
        try:
            remove_dead_targets(folder.targets_folder)
            if folder.settings.share and self._shelf < 0:
                self._shelf = make_shelf(folder.settings.share_bytes)
        except OSError as error:
            raise MachineError(
                expected="to begin with the job",
                got=str(error),
                where=str(folder.path),
                remedy="Look at the permissions of its state folder, and at this machine's limit of open files.",
            ) from error
        # In a process of the job, even if there is nothing to index: this one must never import what a job file names.
        if job.stage is Stage.INDEXING:
            job.indexer.start_when_possible(time.monotonic())
        self.jobs[job.name] = job
        return job

    def _advance(self, job: ServedJob) -> None:
        """Move a job on if it is ready: give it places, call it served, or drop it once its processes have ended."""
        if job.has_new_coordinator and self._may_join():
            self._admit()
        elif job.stage is Stage.JOINING and self._has_joined(job):
            workers = self._held()[job.name]
            job.begin_serving(self.log)
            self.settings.announce(job.name, job.endpoint, workers)
            job.answer_all(job=job.name, endpoint=job.endpoint, workers=workers)
        elif job.stage is Stage.ENDING and all(place.serves is not job for place in self.places):
            job.indexer.end(self.settings.drain_timeout_s)
            job.coordinator.end(self.settings.drain_timeout_s)
            if job.indexer.process is None and job.coordinator.process is None:
                self._forget(job)

    def _may_join(self) -> bool:
        """Return whether a job may get workers now; the first jobs get theirs once the coordinators of all serve."""
        return not self._is_starting or all(job.coordinator.is_serving for job in self.jobs.values())

    def _admit(self) -> None:
        """Give places to new jobs: equal shares at the start, one each later, until they report what they need."""
        for job in self.jobs.values():
            job.stage = Stage.JOINING if job.has_new_coordinator else job.stage
        held = self._held()
        new = self.settings.workers if self._is_starting else 1
        self._assign(divide(self.settings.workers, held, {name: count or new for name, count in held.items()}))

    def _has_joined(self, job: ServedJob) -> bool:
        own = [place for place in self.places if place.job is job]
        return all(place.serves is job and place.child is not None and place.child.is_serving for place in own)

    def _end(self, job: ServedJob) -> None:
        """End a job and give its places to the others; do nothing if it is ending already; OSError of `shut` passes."""
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

    def _give_up(self, job: ServedJob, error: StartError) -> None:
        job.error = error
        self._failure = self._failure or job.error if self._is_starting else None
        self._end(job)

    def _forget(self, job: ServedJob) -> None:
        """Drop a job whose processes are gone; answer its callers (its error, or its end), or hang up on them."""
        if job.error is not None:
            job.answer_all(error=job.error.words())
        elif job.stage is Stage.ENDING:
            job.answer_all(job=job.name)
        else:
            job.hang_up()
        self.jobs.pop(job.name, None)
        if not any(other.folder.settings.share for other in self.jobs.values()):
            self._close_shelf()

    def _close_shelf(self) -> None:
        """Free the memory of shared batches, if there is any; called once no job shares any."""
        if self._shelf >= 0:
            os.close(self._shelf)
            self._shelf = -1

    # --- places ---

    def _held(self) -> dict[str, int]:
        """Return how many places each running job has, by name; 0 for a job without any."""
        counts = Counter(place.job.name for place in self.places if place.job is not None)
        return {job.name: counts[job.name] for job in self.jobs.values() if job.is_running}

    def _assign(self, targets: Mapping[str, int]) -> None:
        """Assign each job this many places, preferring those where its own workers still run; log what moves."""
        before = self._held()
        for name, count in targets.items():
            for place in [place for place in self.places if place.job is self.jobs[name]][count:]:
                place.job = None
        held = self._held()
        for name, count in targets.items():
            for _ in range(count - held[name]):
                self._free_place(self.jobs[name]).job = self.jobs[name]
        if any(before.values()) and (moves := moves_between(before, targets)):
            self.log.info("workers move between jobs", moves=moves)

    def _free_place(self, job: ServedJob) -> WorkerPlace:
        """Return a place without a job, preferably where this job's worker still runs; make one if none is free."""
        free = (place for place in self.places if place.job is None)
        return min(free, key=lambda place: place.serves is not job, default=None) or self._new_place()

    def _new_place(self) -> WorkerPlace:
        taken = {place.number for place in self.places}
        # The lowest free number, because names and ports of workers are counted from it.
        place = WorkerPlace(next(number for number in range(len(taken) + 1) if number not in taken))
        self.places.append(place)
        return place

    def _may_move(self) -> bool:
        """Return whether workers may change jobs: only if there are several jobs, and all are served."""
        return len(self.jobs) > 1 and all(job.stage is Stage.SERVED for job in self.jobs.values())

    def _look_after_places(self, now_s: float) -> None:
        """Replace workers that belong to another job than their place, restart those that died, drop empty places."""
        for place in self.places:
            place.release(self.settings.drain_timeout_s)
            if place.child is None and place.job is not None and place.job.is_running:
                place.serves, place.child = place.job, place.job.worker(place.number, os.uname().nodename)
                place.child.start_when_possible(now_s)
            if place.child is not None and place.serves is not None and place.serves is place.job:
                self._restart(place.serves, place.child, now_s)
        self.places = [place for place in self.places if place.job is not None or place.child is not None]

    def _restart(self, job: ServedJob, child: Child, now_s: float) -> None:
        """Start a process that is due and does not run, if the nursery is ready; kill it if its first start hangs."""
        if child.process is None and now_s >= child.again_s and self._keeper.is_ready:
            # A process that hangs at its first start has to end, so that its job fails. Indexing may take hours.
            must_serve = child is not job.indexer and job.stage is not Stage.SERVED and not child.restarts
            self._start_child(job, child, _READY_TIMEOUT_S if must_serve else math.inf)

    def _start_child(self, job: ServedJob, child: Child, within_s: float) -> None:
        """Start a process; try again at once if the nursery died; else later, or give up a job that is not served."""
        try:
            child.start(self._keeper.nursery, within_s)
        except NurseryEndedError:
            child.start_when_possible(time.monotonic())  # no fault of the job: the next turn replaces the nursery
        except MachineError as error:
            if job.stage is not Stage.SERVED:
                self._give_up(job, StartError(**error.words()))
                return
            child.put_off(time.monotonic())
            warn = self.log.debug if child.logged == error.got else self.log.warning
            child.logged = error.got
            warn("cannot be started, and is tried again", child=child.name, error=str(error), job=job.name)

    # --- turns ---

    def _turn(self) -> None:
        """Wait until something happens, and do what is due; errors of the keeper's `look` and of `_end` pass."""
        self._wait_for_events()
        now_s = self.turned_s = time.monotonic()
        self._keeper.look(now_s)
        self._answer_callers()
        for job in list(self.jobs.values()):
            self._look_at(job, now_s)
        for job, worker in self._staff():
            self._look_at_child(job, worker, now_s)
        if self._may_move() and now_s >= self._shares.due_s():
            self._assign(self._shares.look(self._held(), now_s))
        self._look_after_places(now_s)  # workers that have ended let jobs advance
        for job in list(self.jobs.values()):
            self._advance(job)
        self._look_after_places(now_s)  # jobs that have advanced get workers

    def _look_at(self, job: ServedJob, now_s: float) -> None:
        """Process reports and ends of indexer and coordinator; restart them, end the job if due; `_end` errors pass."""
        code = job.indexer.look(now_s)
        if code is not None and job.stage is Stage.INDEXING:
            self._end_indexing(job, code, now_s)
        self._look_at_child(job, job.coordinator, now_s)
        job.targets.look(now_s)
        # In every stage, or the coordinator of a job that begins would be due in each turn, and the loop never wait.
        self._restart(job, job.indexer, now_s)
        self._restart(job, job.coordinator, now_s)
        if now_s >= job.end_s:
            self._end(job)

    def _end_indexing(self, job: ServedJob, code: int, now_s: float) -> None:
        """Start the job's coordinator, index again if the nursery died with the indexer, or give up the job."""
        if job.indexer.is_orphan:
            job.indexer.start_when_possible(now_s)
        elif code:
            self._give_up(job, failure_of(job, job.indexer, code))
        else:
            job.stage = Stage.COORDINATING
            job.coordinator.start_when_possible(now_s)

    def _look_at_child(self, job: ServedJob, child: Child, now_s: float) -> None:
        """Process a child's reports and, unless it was told to end, decide what follows its end."""
        for report in child.hear():
            self._take_report(job, child, report, now_s)
        was_serving = child.is_serving  # before `look`, which takes in its last words
        code = child.look(now_s)
        if code is not None and not child.is_ending:
            self._replace(job, child, code, now_s, was_serving=was_serving)

    def _take_report(self, job: ServedJob, child: Child, report: Mapping[str, Any], now_s: float) -> None:
        job.hear(child, report, now_s)
        if "endpoint" in report:
            self.log.info("ready", child=child.name, endpoint=child.listen, pid=child.pid, job=job.name)
        elif child is job.coordinator and isinstance(report.get("workers_wanted"), int):
            self._shares.hear(job.name, report["workers_wanted"])

    def _replace(self, job: ServedJob, child: Child, code: int, now_s: float, *, was_serving: bool) -> None:
        """Decide what follows the end of a child that was not told to end.

        It is started again, after a pause unless its nursery died; not if its job is ending, or, not served yet, is
        given up because the child was never ready.
        """
        if job.stage is Stage.ENDING:
            child.end(self.settings.drain_timeout_s)  # a coordinator that died in a job's end is not restarted
        elif child.is_orphan:
            child.start_when_possible(now_s)
        elif not was_serving and not child.restarts and job.stage is not Stage.SERVED:
            self._give_up(job, failure_of(job, child, code))
        else:
            child.begin_pause(now_s)
            if code == RefusedError.exit_code:
                job.note_refusal(now_s)
            self._log_death(job, child, code)

    def _log_death(self, job: ServedJob, child: Child, code: int) -> None:
        """Log a child's end; an error of its own only once while it does not serve, as `status` shows the rest."""
        error = " ".join(child.error.values())
        warn = self.log.debug if error and error == child.logged else self.log.warning
        child.logged = error
        warn("died and is started again", child=child.name, cause=cause_of(code), restarts=child.restarts, job=job.name)

    def _wait_for_events(self) -> None:
        poller = select.poll()
        for descriptor in self._descriptors():
            poller.register(descriptor, select.POLLIN)
        # Never for long at a time: Python misses a signal that arrives just as it begins to wait (see shared.commands).
        pause_s = min(max(0.0, self._due_s() - time.monotonic()), LONGEST_WAIT_S)
        poller.poll(math.ceil(1000 * pause_s))
        self._waker.clear()

    def _descriptors(self) -> Iterator[int]:
        """Yield the descriptors to poll: one is readable once there is something to do."""
        yield self._waker.fileno()
        yield from self._keeper.descriptors()
        yield from (job.socket.fileno() for job in self.jobs.values() if job.socket is not None)
        yield from (caller.fileno() for caller in self._callers)
        for child in self._children():
            yield from child.descriptors()

    def _due_s(self) -> float:
        """Return when there is something to do even if nothing is readable; infinity if nothing is due."""
        ends_s = [job.end_s for job in self.jobs.values() if job.stage is not Stage.ENDING]
        # Children can be started only with a nursery, so their due times must not wake the loop before.
        awaited = [child for child in self._children() if child.process is not None or self._keeper.is_ready]
        shares_s = [self._shares.due_s()] if self._may_move() else []
        return min([self._keeper.due_s(), *(child.due_s() for child in awaited), *ends_s, *shares_s])

    # --- commands that ask something ---

    def _answer_callers(self) -> None:
        for job in self.jobs.values():
            self._callers |= dict.fromkeys(job.socket.take_in() if job.socket is not None else (), job)
        for caller, job in list(self._callers.items()):
            request = caller.read()
            if request is not None:
                del self._callers[caller]
                self._answer(caller, job, request)

    def _answer(self, caller: Caller, job: ServedJob, request: Mapping[str, Any]) -> None:
        """Add or end a job, or list all, as a request from the socket of `job` asks; errors of `_end` pass.

        Refuse with the error if a job cannot be added; hang up if the request is unknown, or to end a job that is gone.
        """
        wish = request.get("do")
        if wish == "add":
            try:
                self._take_in(JobFolder(str(request.get("job")))).asking.append(caller)
            except StokerError as error:
                caller.refuse(error)
        # Another command may have ended the job since this one connected; then it learns by the hang-up below.
        elif wish == "end" and job.name in self.jobs:
            job.asking.append(caller)
            if not job.drain(request.get("drain"), time.monotonic()):
                self._end(job)
        elif wish == "jobs":
            held = self._held()
            caller.answer(jobs=[of_machine.facts(held.get(name, 0)) for name, of_machine in self.jobs.items()])
        else:
            caller.close()
