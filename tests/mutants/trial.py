"""Trying mutants out, each against the tests that run its line; several at a time, each in a workplace of its own."""

from __future__ import annotations

import queue
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from tests.mutants.workplace import Ending, Limits, Workplace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from tests.mutants.cover import Cover, Test
    from tests.mutants.operators import Mutant

__all__ = ["EFFORT_S", "Crew", "Verdict", "try_out"]

_T = TypeVar("_T")
_R = TypeVar("_R")

#: What all tests of a mutant may take together.
EFFORT_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What became of a mutant."""

    mutant: Mutant
    tests: int
    ending: Ending
    seconds: float

    @property
    def found(self) -> bool:
        """Whether a test noticed."""
        return bool(self.ending.why)


class Crew:
    """So many jobs at a time, and a copy of the project for each."""

    def __init__(self, root: Path, jobs: int, folder: Path) -> None:
        self._jobs = jobs
        self._places: queue.SimpleQueue[Workplace] = queue.SimpleQueue()
        for number in range(jobs):
            self._places.put(Workplace(root, folder / str(number)))

    def each(self, work: Callable[[_T, Workplace], _R], items: Iterable[_T]) -> Iterator[_R]:
        """Results as they come."""
        pool = ThreadPoolExecutor(self._jobs)
        try:
            for done in as_completed([pool.submit(self._one, work, item) for item in items]):
                yield done.result()
        finally:
            pool.shutdown(cancel_futures=True)

    def _one(self, work: Callable[[_T, Workplace], _R], item: _T) -> _R:
        place = self._places.get()
        try:
            return work(item, place)
        finally:
            self._places.put(place)


def try_out(mutant: Mutant, workplace: Workplace, cover: Cover, effort_s: float = EFFORT_S) -> Verdict:
    """Run the tests of one mutant until one fails; those with TensorFlow only if the others did not notice."""
    begin_s = time.monotonic()
    tests = _affordable(cover.tests_for(mutant), effort_s)
    ending = Ending("")
    source = (workplace.root / mutant.module).read_bytes()
    with workplace.holding(mutant.module, mutant.edit.apply(source)):
        for slow in (False, True):
            some = [test for test in tests if cover.needs_tensorflow(test) == slow]
            if some and not ending.why:
                ending = workplace.run([test.name for test in some], _limits(some), "-x")
    return Verdict(mutant=mutant, tests=len(tests), ending=ending, seconds=time.monotonic() - begin_s)


def _affordable(tests: list[Test], effort_s: float) -> list[Test]:
    chosen, total_s = [], 0.0
    for test in tests:
        if total_s + test.seconds <= effort_s:
            chosen.append(test)
            total_s += test.seconds
    return chosen


def _limits(tests: list[Test]) -> Limits:
    """Far above what they take without a mistake, on a machine that has other work as well."""
    longest_s, total_s = max(test.seconds for test in tests), sum(test.seconds for test in tests)
    return Limits(test_s=10 + 5 * longest_s, all_s=30 + 5 * total_s)
