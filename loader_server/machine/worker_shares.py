"""The division of a machine's workers among its jobs.

Rules: pure. Each job has at least one worker. Of the rest, jobs get equal numbers until their needs are met; workers
that nobody needs stay where they are. A job whose trainers wait needs all it can get; any other needs the workers that
it keeps busy, and a quarter on top. A job that reports nothing needs what it has. Shares are recomputed once a period,
from the reports of that period: a worker that changes jobs costs both jobs what it had begun.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["PERIOD_S", "Demand", "Shares", "demand_of", "divide"]

#: Period between divisions, which covers some heartbeats of each worker.
PERIOD_S = 5.0

#: Limit of demands that are kept for a job: with one job there is nothing to divide, so nobody reads them.
_MOST_KEPT = 100

#: Factor of need over busy workers: workers that are busy for more than 4/5 of their time leave little room for the
#: next burst.
_MARGIN = 1.25


@dataclass(frozen=True, slots=True)
class Demand:
    """A coordinator's report of its job's demand."""

    #: Whether trainers wait for data.
    waits: bool
    #: How many workers were building at their last heartbeat.
    busy: int


def demand_of(report: Mapping[str, Any]) -> Demand:
    """Return a job's demand, from the report that `loader-server status` shows.

    Its trainers wait if any stream is limited by its loaders; its busy workers are those that were building. Raise
    KeyError if the report lacks streams, workers or what is needed of them.
    """
    return Demand(
        waits=any(stream["limit"] == "loaders" for stream in report["streams"].values()),
        busy=sum(bool(worker["building"]) for worker in report["workers"]),
    )


def divide(workers: int, held: Mapping[str, int], needs: Mapping[str, int]) -> dict[str, int]:
    """Return how many workers each job gets; `held` is what each has now, and each gets at least one.

    `needs` is how many each could use; raise KeyError if it lacks a job. With fewer workers than jobs, more are given
    out than there are. Raise ValueError if there are workers, but no jobs.
    """
    shares = dict.fromkeys(held, 1)
    for _ in range(workers - len(held)):
        # The name breaks ties, so that equal facts are always divided in the same way, and no worker moves for nothing.
        taker = min(shares, key=lambda job: (_urgency(shares[job], held[job], needs[job]), shares[job], job))
        shares[taker] += 1
    return shares


def _urgency(share: int, held: int, need: int) -> tuple[bool, int, bool]:
    """Return a sort key; the smallest gets the next worker.

    First comes the job in need with the fewest workers, then a job that would not have to give one up.
    """
    is_needy = share < need
    return not is_needy, share if is_needy else 0, share >= held


class Shares:
    """The reported demands of all jobs in the current period."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        #: The demands of the current period, by job.
        self._demands: dict[str, deque[Demand]] = {}
        self._divided_s = 0.0

    def hear(self, job: str, demand: Demand) -> None:
        """Record a demand that a job's coordinator reported; only the last 100 of a period are kept."""
        self._demands.setdefault(job, deque(maxlen=_MOST_KEPT)).append(demand)

    def due_s(self) -> float:
        """Return the time at which to divide again: 5 s after the last division, at once if there was none."""
        return self._divided_s + PERIOD_S

    def look(self, held: Mapping[str, int], now_s: float) -> dict[str, int]:
        """Return how many workers each job should have, given how many each has now; begin a new period.

        The demands that were reported so far are dropped. A job that reported none in this period needs what it has.
        Raise ValueError if there are workers, but no jobs.
        """
        needs = {job: self._need(job, count) for job, count in held.items()}
        self._demands, self._divided_s = {}, now_s
        return divide(self.workers, held, needs)

    def _need(self, job: str, held: int) -> int:
        demands = self._demands.get(job)
        # A job that crashes reports nothing for a while: crashing must be no way to get more workers.
        if not demands:
            return held
        if demands[-1].waits:
            return self.workers
        return math.ceil(_MARGIN * sum(demand.busy for demand in demands) / len(demands))
