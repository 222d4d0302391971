"""The division of a machine's workers among its jobs.

Rules: pure. Each job has at least one worker. Of the rest, jobs get equal numbers until their needs are met; workers
that nobody needs stay where they are. What a job needs is what its coordinator last reported as `workers_wanted`, in
this period; a job that reports nothing needs what it has. Shares are recomputed once a period: a worker that changes
jobs costs both jobs what it had begun.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["PERIOD_S", "Shares", "divide", "moves_between"]

#: Period between divisions, which covers some heartbeats of each worker.
PERIOD_S = 5.0


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


def moves_between(before: Mapping[str, int], after: Mapping[str, int]) -> str:
    """Return who gives workers up and who gets them, as "digits 3 to 2, words 1 to 2"; empty if nobody does."""
    jobs = sorted({*before, *after})
    pairs = ((job, before.get(job, 0), after.get(job, 0)) for job in jobs)
    return ", ".join(f"{job} {had} to {has}" for job, had, has in pairs if had != has)


class Shares:
    """The numbers of workers that all jobs have asked for in the current period."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        #: What each job that reported in this period wants.
        self._wanted: dict[str, int] = {}
        self._divided_s = 0.0

    def hear(self, job: str, wanted: int) -> None:
        """Record how many workers a job's coordinator wants; the last report of a period counts."""
        self._wanted[job] = wanted

    def due_s(self) -> float:
        """Return the time at which to divide again: 5 s after the last division, at once if there was none."""
        return self._divided_s + PERIOD_S

    def look(self, held: Mapping[str, int], now_s: float) -> dict[str, int]:
        """Return how many workers each job should have, given how many each has now; begin a new period.

        What was reported so far is dropped. A job that reported nothing in this period needs what it has: a job that
        crashes is silent for a while, and crashing must be no way to get more. Raise ValueError if there are workers,
        but no jobs.
        """
        needs = {job: self._wanted.get(job, count) for job, count in held.items()}
        self._wanted, self._divided_s = {}, now_s
        return divide(self.workers, held, needs)
