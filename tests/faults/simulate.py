"""Simulated worlds by the thousand: whatever fails in whatever order, no promise is broken, and then it goes on.

    python -m tests.faults.simulate --seeds 10000 --json        seeds 0 to 9999 on all cores; exit code 1 on failures
    python -m tests.faults.simulate --seed 1234 --trace         one seed again, with all that happened in it
    python -m tests.faults.simulate --seeds 2000 --without RULE until a rule that is taken out is missed

The same seed gives the same world. tests/support/simulation says what a world is, what fails in it and what has to
hold.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import sys
import time
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.support.simulation.rules import RULES, without
from tests.support.simulation.run import Outcome, run

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

__all__ = ["Report", "main", "simulate"]

#: Seeds that a process runs before it says how they went.
_AT_A_TIME = 20

#: Failing seeds that are shown.
_SHOWN = 3


@dataclass(slots=True)
class Report:
    """What became of many seeds."""

    seeds: int = 0
    steps: int = 0
    seconds: float = 0.0
    longest_wait_s: float = 0.0
    failures: list[Outcome] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        """One more."""
        self.seeds += 1
        self.steps += outcome.steps
        self.longest_wait_s = max(self.longest_wait_s, outcome.longest_wait_s)
        if outcome.error:
            self.failures.append(outcome)

    def as_json(self) -> str:
        """The line for machines."""
        counts = {"seeds": self.seeds, "failures": len(self.failures), "steps": self.steps}
        return json.dumps({**counts, "seconds": round(self.seconds, 1)})


@dataclass(frozen=True, slots=True)
class _Job:
    """Seeds for one process."""

    seeds: range
    rule: str


def _run_some(job: _Job) -> list[Outcome]:
    with without(job.rule):
        return [run(seed) for seed in job.seeds]


def simulate(seeds: range, *, rule: str = "", to_the_first: bool = False) -> Report:
    """Run these seeds; perhaps only to the first failure."""
    report, began_s = Report(), time.monotonic()
    with closing(_outcomes([_Job(some, rule) for some in _parts(seeds)])) as outcomes:
        for outcome in outcomes:
            report.add(outcome)
            if report.failures and to_the_first:
                break
    report.seconds = time.monotonic() - began_s
    return report


def _outcomes(jobs: list[_Job]) -> Generator[Outcome]:
    """On all cores, unless processes would take longer to start than to run so few."""
    if len(jobs) == 1:
        yield from _run_some(jobs[0])
        return
    with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
        yield from itertools.chain.from_iterable(pool.imap(_run_some, jobs))


def _parts(seeds: range) -> Iterator[range]:
    for first in range(seeds.start, seeds.stop, _AT_A_TIME):
        yield range(first, min(first + _AT_A_TIME, seeds.stop))


def _say(outcome: Outcome) -> None:
    print(f"seed {outcome.seed}: {outcome.error or 'all promises held'}")
    print(f"  {outcome.steps} steps in this world: {outcome.setting}")
    print(outcome.diary)
    print(f"again: python -m tests.faults.simulate --seed {outcome.seed} --trace\n")


def _one(seed: int, rule: str, *, trace: bool) -> int:
    with without(rule):
        outcome = run(seed, keep_all=trace)
    _say(outcome)
    return bool(outcome.error)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--seed", type=int, help="only this one")
    parser.add_argument("--trace", action="store_true", help="show all that happened")
    parser.add_argument("--without", choices=RULES, default="", help="take this rule out, and look when it is missed")
    parser.add_argument("--json", action="store_true", help="one JSON object as last line")
    options = parser.parse_args(arguments)
    if options.seed is not None:
        return _one(options.seed, options.without, trace=options.trace)
    seeds = range(options.first, options.first + options.seeds)
    report = simulate(seeds, rule=options.without, to_the_first=bool(options.without))
    for outcome in report.failures[:_SHOWN]:
        _say(outcome)
    if report.failures:
        print("failing seeds:", *(outcome.seed for outcome in report.failures))
    print(report.as_json() if options.json else f"{report.seeds} seeds, {len(report.failures)} failures, "
          f"{report.steps} steps, {report.seconds:.1f} s; the longest wait once all was well: "
          f"{report.longest_wait_s:.2f} s")  # fmt: skip
    return bool(report.failures)


if __name__ == "__main__":
    sys.exit(main())
