"""A job's actors in Ray: one with the coordinator, and as many with a worker as the coordinator wants.

Rules: actors belong to the process that makes them, so none outlives it, and Ray starts them again on other nodes for
ever. Each is asked again only once it has answered, so that calls do not pile up at an actor that waits for a node.
Whenever the coordinator has another address, all workers get it.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

from loader_server.fleet.ray_actor import NodeActor
from shared.endpoints import advertised
from shared.errors import MachineError, SettingsError, StokerError
from shared.logs import Log

if TYPE_CHECKING:
    from loader_server.fleet.ray_settings import RaySettings, WorkerRange

__all__ = ["NAMESPACE", "RayFleet"]

#: The namespace of the coordinators' names.
NAMESPACE = "stoker"

#: How long an actor may take to end in good order, and Ray to forget the coordinator's name.
_END_S, _FORGET_S = 16.0, 10.0
#: After so many failed calls in a row an actor that Ray calls dead does not come back.
_MOST_FAILURES = 5
#: After so long without a coordinator the log says why, since its node may never come.
_SOON_S = 15.0


class RayFleet:
    """The actors of one job; making it starts the coordinator's.

    Raise SettingsError if Ray has a job of this name already or refuses the labels, or if the keys to be sent are too
    large.
    """

    def __init__(
        self, ray: Any, job: str, settings: RaySettings, workers: WorkerRange, placing: dict[str, Any]
    ) -> None:
        self._ray, self._settings, self._range, self._placing = ray, settings, workers, placing
        self._log = Log("ray", job=job)
        #: When to log that the coordinator is awaited; infinite afterwards.
        self._awaited_s = time.monotonic() + _SOON_S
        self._name = f"stoker-{job}"
        #: Where trainers connect; empty until the coordinator serves.
        self.endpoint = ""
        #: Whether the job has ended.
        self.is_over = False
        #: The newest worker is the last one.
        self._workers: list[_Actor] = []
        #: Workers that are to go, and when to kill them.
        self._leaving: list[tuple[_Actor, float]] = []
        where = {"num_cpus": 0, "label_selector": placing["label_selector"], "namespace": NAMESPACE}
        try:
            self._coordinator = _Actor(ray, settings.coordinator_orders().line(), name=self._name, **where)
        except ray.exceptions.ActorAlreadyExistsError as error:
            raise SettingsError(
                expected="a job that this Ray does not serve yet",
                got=str(error),
                where=f"the actor {self._name} in the namespace {NAMESPACE}",
                remedy="End the other one, or write another name = … into [job].",
            ) from error
        except ValueError as error:
            raise SettingsError(
                expected="labels as Ray has them",
                got=str(error),
                where="--label-selector",
                remedy='Write such as {"pool": "loaders"}.',
            ) from error

    def turn(self) -> None:
        """Hear all actors, and have as many workers as are wanted.

        Raise the error with which the coordinator cannot begin to serve, or MachineError if Ray cannot run its actor.
        """
        facts = self._coordinator.look({})
        if self._coordinator.is_lost:
            raise MachineError(
                expected="an actor for the coordinator",
                got=self._coordinator.problem,
                where=f"Ray, the actor {self._name}",
                remedy="Stoker has to be installed on all nodes, or in the runtime environment.",
            )
        self._note(facts)
        for worker in self._workers:
            worker.look({"endpoint": f"{self.endpoint}\n"})
        if self.endpoint:
            self._fill(facts.get("workers_wanted"))
        elif time.monotonic() >= self._awaited_s:
            self._awaited_s = math.inf
            state = "it makes the index" if facts else "it waits for a node; see `ray status` and --label-selector"
            self._log.warning("coordinator does not serve yet", reason=state)
        self._end_leaving(time.monotonic())

    def _note(self, facts: dict[str, Any]) -> None:
        """Note where the coordinator serves; raise its error if it has not served yet."""
        self.is_over = bool(facts.get("is_over"))
        if "endpoint" in facts:
            self.endpoint = advertised(facts["endpoint"], facts["address"])
        elif "error" in facts and not self.endpoint:
            raise StokerError(**facts["error"])

    def _fill(self, wanted: int | None) -> None:
        """Start or end workers, the newest first, until there are as many as wanted."""
        for worker in [worker for worker in self._workers if worker.is_lost]:
            self._log.warning("Ray cannot run a worker", error=worker.problem)
            self._workers.remove(worker)
        present = len(self._workers)
        size = self._range.size(wanted, present)
        if size != present:
            self._log.info("changes the number of workers", wanted=wanted, former=present, workers=size)
        for _ in range(size - present):
            orders = self._settings.worker_orders(self.endpoint).line()
            self._workers.append(_Actor(self._ray, orders, scheduling_strategy="SPREAD", **self._placing))
        for worker in self._workers[size:]:
            worker.begin_end()
            self._leaving.append((worker, time.monotonic() + _END_S))
        del self._workers[size:]

    def _end_leaving(self, now_s: float) -> None:
        """Kill the actors of workers that have ended, or had their time to."""
        self._leaving, looked_at = [], self._leaving
        for worker, until_s in looked_at:
            if worker.has_ended or now_s >= until_s:
                worker.kill()
            else:
                self._leaving.append((worker, until_s))

    def close(self) -> None:
        """End all workers, then the coordinator, and return when Ray has forgotten it, or does not for long."""
        leaving = [*self._workers, *(worker for worker, _ in self._leaving)]
        for group in (leaving, [self._coordinator]):
            for actor in group:
                actor.begin_end()
            self._wait_ended(group)
            for actor in group:
                actor.kill()
        until_s = time.monotonic() + _FORGET_S
        while time.monotonic() < until_s and self._is_named():
            time.sleep(0.05)

    def _wait_ended(self, actors: list[_Actor]) -> None:
        """Wait until all of these have ended, but no longer than they may take."""
        endings = [actor.ending for actor in actors if actor.ending is not None]
        if endings:
            self._ray.wait(endings, num_returns=len(endings), timeout=_END_S)

    def _is_named(self) -> bool:
        try:
            self._ray.get_actor(self._name, namespace=NAMESPACE)
        except ValueError:
            return False
        return True


class _Actor:
    """One actor, and what is asked of it; `placing` is as Ray's actors take it."""

    def __init__(self, ray: Any, orders: str, **placing: Any) -> None:
        self._ray = ray
        #: The last answer, or why there was none.
        self._facts: dict[str, Any] = {}
        self.problem = ""
        self._handle = ray.remote(NodeActor).options(max_restarts=-1, **placing).remote(orders)
        self._asked: Any = None
        #: The call that ends its process; None before.
        self.ending: Any = None
        self._failures = 0
        self._has_answered = False

    @property
    def is_lost(self) -> bool:
        """Return whether Ray does not start it again."""
        return self._failures >= _MOST_FAILURES

    @property
    def has_ended(self) -> bool:
        """Return whether its process has ended as it was told to, or never began."""
        return self.ending is None or self._is_answered(self.ending)

    def look(self, files: dict[str, str]) -> dict[str, Any]:
        """Return its last answer, empty while it has given none, and ask it again; it gets these files."""
        if self._asked is None or self._is_answered(self._asked):
            self._hear()
            self._asked = self._handle.look.remote(files)
        return self._facts

    def _hear(self) -> None:
        if self._asked is None:
            return
        try:
            self._facts = self._ray.get(self._asked)
            self._has_answered, self._failures = True, 0
        except self._ray.exceptions.RayError as error:
            self._facts, self.problem = {}, str(error)
            self._failures += isinstance(error, self._ray.exceptions.ActorDiedError)

    def _is_answered(self, asked: Any) -> bool:
        return bool(self._ray.wait([asked], timeout=0)[0])

    def begin_end(self) -> None:
        """Have its process end; an actor that waits for a node has none."""
        if self._has_answered and self.ending is None:
            self.ending = self._handle.end.remote()

    def kill(self) -> None:
        """Have Ray end it for good."""
        self._ray.kill(self._handle)
