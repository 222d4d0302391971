"""A job's actors in Ray: one with the coordinator, and as many with a worker as the coordinator wants.

Rules: actors belong to the process that makes them, so none outlives it, and Ray starts them again on other nodes for
ever. Each is asked again only once it has answered, so that calls do not pile up at an actor that waits for a node.
Whenever the coordinator has another address, all workers get it.
"""

from __future__ import annotations

import json
import math
import time
from typing import TYPE_CHECKING, Any

from loader_server.fleet.ray_actor import NodeActor
from shared.endpoints import advertised
from shared.errors import MachineError, SettingsError, StokerError, require
from shared.logs import Log

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["MOST_ARGUMENT_BYTES", "NAMESPACE", "RayFleet"]

#: The namespace of the coordinators' names.
NAMESPACE = "stoker"
#: Largest argument: Ray keeps up to 100 KiB with the actor, which it can then start again on any node. A larger one
#: would lie in the store of a node, and be lost with it (ray #53727).
MOST_ARGUMENT_BYTES = 64 * 1024

#: How long actors may take to end in good order.
_END_S = 16.0
#: After so many failed calls in a row an actor that Ray calls dead does not come back.
_MOST_FAILURES = 5
#: After so long without a coordinator the log says why, since its node may never come.
_SOON_S = 15.0


class RayFleet:
    """The actors of one job; making it starts the coordinator's.

    `orders` are those of a coordinator's and a worker's `NodeActor`, `placing` is what a worker takes of its node, as
    Ray's actors have it, and `least` and `most` bound the number of workers. Raise SettingsError if Ray has a job of
    this name already, or if the orders are too large.
    """

    def __init__(
        self, ray: Any, job: str, orders: Mapping[str, Any], placing: Mapping[str, Any], workers: tuple[int, int]
    ) -> None:
        self._ray, self._orders, self._placing, (self._least, self._most) = ray, orders, placing, workers
        self._log = Log("ray", job=job)
        #: When to log that the coordinator is awaited; infinite afterwards.
        self._awaited_s = time.monotonic() + _SOON_S
        #: Where trainers connect; empty until the coordinator serves.
        self.endpoint = ""
        #: Whether the job has ended.
        self.is_over = False
        #: The newest worker is the last one.
        self._workers: list[_Actor] = []
        where = {"num_cpus": 0, "label_selector": placing["label_selector"], "namespace": NAMESPACE}
        self._coordinator = self._start("coordinator", name=f"stoker-{job}", **where)

    def turn(self) -> None:
        """Hear all actors, and have as many workers as are wanted.

        Raise the error with which the coordinator cannot begin to serve, MachineError if Ray cannot run its actor, and
        SettingsError if nobody could connect to its address, or a worker's orders are too large. A lost worker is
        logged and dropped.
        """
        facts = self._coordinator.look()
        if self._coordinator.is_lost:
            raise MachineError(
                expected="an actor for the coordinator",
                got=self._coordinator.problem,
                where="Ray",
                remedy="Stoker has to be installed on all nodes, or in the runtime environment.",
            )
        self.is_over = bool(facts.get("is_over"))
        if "endpoint" in facts:
            self.endpoint = advertised(facts["endpoint"], facts["address"])
        elif "error" in facts and not self.endpoint:
            raise StokerError(**facts["error"])
        if self.endpoint:
            self._fill(facts.get("workers_wanted"))
        elif time.monotonic() >= self._awaited_s:
            self._awaited_s = math.inf
            state = "it makes the index" if facts else "it waits for a node; see `ray status` and --label-selector"
            self._log.warning("coordinator does not serve yet", reason=state)

    def _fill(self, wanted: int | None) -> None:
        """Hear the workers; start some, or end the newest, until as many are there as wanted, within the bounds.

        Without a number wanted, as many as there are stay. Raise SettingsError if a worker's orders are too large.
        """
        for worker in self._workers:
            worker.look(endpoint=f"{self.endpoint}\n")
        for worker in [worker for worker in self._workers if worker.is_lost]:
            self._log.warning("Ray cannot run a worker", error=worker.problem)
            self._workers.remove(worker)
        present = len(self._workers)
        size = min(self._most, max(self._least, present if wanted is None else wanted))
        if size != present:
            self._log.info("changes the number of workers", wanted=wanted, former=present, workers=size)
        for _ in range(size - present):
            self._workers.append(self._start("worker", scheduling_strategy="SPREAD", **self._placing))
        for worker in self._workers[size:]:
            self._ray.kill(worker.handle)  # its process notices, and drains
        del self._workers[size:]

    def _start(self, role: str, **placing: Any) -> _Actor:
        """Start and return an actor; raise SettingsError if its name is taken, or its orders are too large."""
        text = json.dumps(self._orders[role])
        require(
            len(text.encode()) <= MOST_ARGUMENT_BYTES,
            expected=f"at most {MOST_ARGUMENT_BYTES} bytes for each actor, keys included",
            got=f"{len(text.encode())} bytes",
            where="what is sent through Ray",
            remedy="Put the keys on each node, and name their folder there by --keys.",
        )
        try:
            return _Actor(self._ray, self._ray.remote(NodeActor).options(max_restarts=-1, **placing).remote(text))
        except self._ray.exceptions.ActorAlreadyExistsError as error:
            raise SettingsError(
                expected="a job that this Ray does not serve yet",
                got=str(error),
                where=f"the actor {placing['name']} in the namespace {NAMESPACE}",
                remedy="End the other one, or write another name = … into [job].",
            ) from error

    def close(self) -> None:
        """End workers, which drain, then the coordinator; kill what takes longer than 16 s or was never heard."""
        for group in (self._workers, [self._coordinator]):
            endings = [actor.handle.end.remote() for actor in group if actor.has_answered]
            if endings:
                self._ray.wait(endings, num_returns=len(endings), timeout=_END_S)
            for actor in group:
                self._ray.kill(actor.handle)


class _Actor:
    """One actor, and what is asked of it."""

    def __init__(self, ray: Any, handle: Any) -> None:
        self._ray, self.handle = ray, handle
        #: The last answer, or why there was none.
        self._facts: dict[str, Any] = {}
        self.problem = ""
        self._asked: Any = None
        self._failures = 0
        #: Whether its process was there: an actor that waits for a node has none to end.
        self.has_answered = False

    @property
    def is_lost(self) -> bool:
        """Return whether it counts as lost: Ray has called it dead five times since its last answer."""
        return self._failures >= _MOST_FAILURES

    def look(self, **files: str) -> dict[str, Any]:
        """Return its last answer, empty before the first and after a failed call, which `problem` then names.

        Ask it again, with these files, unless a call is still under way.
        """
        if self._asked is not None:
            if not self._ray.wait([self._asked], timeout=0)[0]:
                return self._facts
            try:
                self._facts = self._ray.get(self._asked)
                self.has_answered, self._failures = True, 0
            except self._ray.exceptions.RayError as error:
                self._facts, self.problem = {}, str(error)
                self._failures += isinstance(error, self._ray.exceptions.ActorDiedError)
        self._asked = self.handle.look.remote(files)
        return self._facts
