"""How many of a machine's workers each of its jobs has.

Rules: pure. Each job has at least one worker. Of the rest, jobs get equal numbers until they have what they need;
workers that nobody needs stay where they are. A job whose trainers wait needs all it can get; any other needs what it
keeps busy, and a quarter on top. A job that says nothing needs what it has. Shares are recomputed once a period, from
what was said in it: a worker that changes jobs costs both jobs what it had begun.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["PERIOD_S", "Demand", "Shares", "demand_of", "divide"]

#: How often shares are recomputed: after some heartbeats of each worker.
PERIOD_S = 5.0

#: Only this many of a job's latest statements are kept, even while nobody reads them.
_MOST_SAID = 100

#: Workers that are busy for more than 4/5 of their time leave little for the next burst.
_MARGIN = 1.25


@dataclass(frozen=True, slots=True)
class Demand:
    """What a coordinator says about its job now and then."""

    #: Whether trainers wait for data.
    waits: bool
    #: How many workers had something to build when they were last heard.
    busy: int


def demand_of(report: Mapping[str, Any]) -> Demand:
    """A job's demand, from the report that `loader-server status` shows."""
    waits = any(stream["limit"] == "loaders" for stream in report["streams"].values())
    return Demand(waits, sum(bool(worker["building"]) for worker in report["workers"]))


def divide(workers: int, held: Mapping[str, int], needs: Mapping[str, int]) -> dict[str, int]:
    """Each job's number of workers; `held` is what each has now. With more jobs than workers, each has one."""
    given = dict.fromkeys(held, 1)
    for _ in range(workers - len(held)):
        taker = min(given, key=lambda job: (_urgency(given[job], held[job], needs[job]), given[job], job))
        given[taker] += 1
    return given


def _urgency(given: int, held: int, need: int) -> tuple[bool, int, bool]:
    """The smallest gets the next worker: a job in need with the fewest, then one that need not give one up."""
    needy = given < need
    return not needy, given if needy else 0, given >= held


class Shares:
    """The needs of each job, from what was said in a period."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._said: dict[str, deque[Demand]] = {}
        self._looked_s = 0.0

    def hear(self, job: str, demand: Demand) -> None:
        """A job's coordinator spoke."""
        self._said.setdefault(job, deque(maxlen=_MOST_SAID)).append(demand)

    def due_s(self) -> float:
        """When to recompute."""
        return self._looked_s + PERIOD_S

    def look(self, held: Mapping[str, int], now_s: float) -> dict[str, int]:
        """How many workers each job should have, given how many each has now; a new period begins."""
        needs = {job: self._need(job, count) for job, count in held.items()}
        self._said, self._looked_s = {}, now_s
        return divide(self.workers, held, needs)

    def _need(self, job: str, held: int) -> int:
        said = self._said.get(job)
        if not said:
            return held
        if said[-1].waits:
            return self.workers
        return math.ceil(_MARGIN * sum(one.busy for one in said) / len(said))
