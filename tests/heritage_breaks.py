"""Breaks the line that makes a row of the heritage true, in a copy of the project: do the row's tests notice?

`heritage_breaks.toml` holds a break for each row: the module, the line as it is, and the same line broken. A row is
noticed if one of its tests fails with the line broken; all of them have to pass as it is, which the suite shows. A line
that is no longer in its module makes `tests/test_heritage_breaks.py` fail, so no break goes stale unseen.
"""

from __future__ import annotations

import ast
import functools
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from shared.settings.job import tomllib
from tests.mutants.trial import Crew
from tests.mutants.workplace import Limits

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tests.mutants.workplace import Ending, Workplace

__all__ = ["Break", "Trial", "breaks", "tried"]

_ROOT = Path(__file__).parents[1]
_FILE = Path(__file__).with_suffix(".toml")

#: Limits of a test, and of all tests of a row. A broken line may leave a test waiting; its own deadlines are shorter.
_LIMITS = Limits(test_s=240.0, all_s=900.0)


@dataclass(frozen=True, slots=True)
class Break:
    """A line that makes a row true, and the same line broken."""

    row: str
    module: str
    line: str
    broken: str

    def apply(self, source: str) -> str:
        """Return the module's text with the line broken; raise ValueError unless the line is there exactly once."""
        if source.count(self.line) != 1:
            raise ValueError(f"{self.row}: expected once in {self.module}, got {source.count(self.line)}: {self.line}")
        text = source.replace(self.line, self.broken)
        if ast.dump(ast.parse(text)) == ast.dump(ast.parse(source)):
            raise ValueError(f"{self.row}: expected a break that changes {self.module}, got the same code")
        return text


@dataclass(frozen=True, slots=True)
class Trial:
    """What became of a row's tests with the line broken."""

    row: str
    ending: Ending
    seconds: float

    @property
    def is_noticed(self) -> bool:
        """Return whether a test of the row failed; one that cannot be imported, or runs for too long, tells nothing."""
        return self.ending.why == "failed"


def breaks() -> dict[str, Break]:
    """Return the break of each row that has one."""
    tables = tomllib.loads(_FILE.read_text("utf-8"))
    return {row: Break(row, table["module"], table["line"], table["broken"]) for row, table in tables.items()}


def tried(rows: Sequence[str], tests: Mapping[str, Sequence[str]], jobs: int) -> Iterator[Trial]:
    """Break one row after the other, in copies of the project, and yield what became of its tests, as they end.

    Raise ValueError for a break that does not fit its module, and KeyError for a row without break or tests.
    """
    known = breaks()
    with tempfile.TemporaryDirectory(prefix="stoker-breaks-", ignore_cleanup_errors=True) as folder:
        crew = Crew(_ROOT, jobs, Path(folder))
        yield from crew.each(functools.partial(_try_out, tests=tests), [known[row] for row in rows])


def _try_out(broken: Break, workplace: Workplace, tests: Mapping[str, Sequence[str]]) -> Trial:
    begun_s = time.monotonic()
    source = (workplace.root / broken.module).read_text("utf-8")
    with workplace.holding(broken.module, broken.apply(source).encode()):
        # The plugin takes few examples of Hypothesis; tests that wait for processes are marked as slow.
        ending = workplace.run(tests[broken.row], _LIMITS, "-x", "-m", "slow or not slow", **_environment())
    return Trial(broken.row, ending, time.monotonic() - begun_s)


def _environment() -> dict[str, str]:
    return {"OPENBLAS_NUM_THREADS": "1", "TF_ENABLE_ONEDNN_OPTS": "0", "PATH": os.environ["PATH"]}
