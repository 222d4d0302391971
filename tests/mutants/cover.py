"""Which tests run a line: measured for each file of tests, and kept in `.mutants/` until something it imports changes.

Only what a test runs in its own process is seen: a line that runs in a worker of an end-to-end test alone counts as
covered by nothing, because a shell is to have quick tests of its own.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from tests.mutants.plugin import MAP_TO, digest_of
from tests.mutants.workplace import Limits

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from tests.mutants.operators import Mutant
    from tests.mutants.workplace import Workplace

__all__ = ["Cover", "Measured", "Test", "files_of_tests", "is_fresh", "measure"]

#: Tests of other things than the code, or ones that run it in other processes and take long.
_LEFT_OUT = ("tests/benchmarks", "tests/examples", "tests/faults", "tests/monitoring", "tests/mutants")
_LIMITS = Limits(test_s=60, all_s=300)


@dataclass(frozen=True, slots=True, kw_only=True)
class Test:
    """One test: its id, how long it took, and the lines it ran of each module."""

    name: str
    file: str
    seconds: float
    lines: dict[str, frozenset[int]]


@dataclass(frozen=True, slots=True)
class Measured:
    """What running one file of tests brought; `sources` are digests of all files of the project that it imported."""

    sources: dict[str, str]
    tensorflow: bool
    #: The lines that ran while the tests were collected.
    at_import: dict[str, frozenset[int]]
    tests: tuple[Test, ...]
    #: Tests that fail on the code as it is: they tell nothing.
    failing: tuple[str, ...]


def files_of_tests(root: Path, only: Collection[str] = ()) -> list[str]:
    """The files of tests that mutants run against; of `only` some modules, those in the folders that mirror theirs, and
    those that import one of them.
    """
    files = (path.relative_to(root).as_posix() for path in sorted((root / "tests").rglob("test_*.py")))
    files = [name for name in files if not name.startswith(_LEFT_OUT)]
    if not only:
        return files
    mirrored = {f"tests/{PurePosixPath(module).parent}" for module in only}
    near = [_Nearness(module) for module in only]
    return [
        name
        for name in files
        if str(PurePosixPath(name).parent) in mirrored or _is_near(near, name, (root / name).read_text("utf-8"))
    ]


def _is_near(modules: Iterable[_Nearness], file: str, text: str) -> bool:
    return any(module.steps(file, text) < _FAR for module in modules)


def _kept(root: Path, file: str) -> Path:
    return root / ".mutants" / f"{file.replace('/', '.')}.json"


def is_fresh(root: Path, file: str) -> bool:
    """Whether what is kept of a file of tests still holds."""
    try:
        sources = json.loads(_kept(root, file).read_text("utf-8"))["sources"]
    except FileNotFoundError:
        return False
    return all((root / name).is_file() and digest_of(root / name) == digest for name, digest in sources.items())


def measure(root: Path, file: str, workplace: Workplace) -> str:
    """Run a file of tests and keep which lines each ran; the file."""
    kept = _kept(root, file)
    kept.parent.mkdir(exist_ok=True)
    kept.unlink(missing_ok=True)
    workplace.run([file], _LIMITS, **{MAP_TO: str(kept)})
    return file


def _read(root: Path, file: str) -> Measured | None:
    try:
        found = json.loads(_kept(root, file).read_text("utf-8"))
    except FileNotFoundError:
        return None
    tests = [
        Test(name=name, file=file, seconds=one["seconds"], lines=_sets(one["lines"]))
        for name, one in found["tests"].items()
        if one["outcome"] == "passed"
    ]
    failing = tuple(name for name, one in found["tests"].items() if one["outcome"] == "failed")
    return Measured(found["sources"], found["tensorflow"], _sets(found["at_import"]), tuple(tests), failing)


def _sets(lines: dict[str, list[int]]) -> dict[str, frozenset[int]]:
    return {module: frozenset(numbers) for module, numbers in lines.items()}


class Cover:
    """All that was measured of a project."""

    def __init__(self, root: Path, files: Iterable[str]) -> None:
        self._root = root
        found = {file: _read(root, file) for file in files}
        self.measured = {file: one for file, one in found.items() if one is not None}
        #: Files of tests that did not end in time, and tests that fail without any mutant.
        self.unusable = [file for file, one in found.items() if one is None]
        self.unusable += [test for one in self.measured.values() for test in one.failing]

    def tests_for(self, mutant: Mutant) -> list[Test]:
        """The tests that run the line, the likeliest to notice first: those of the module itself, then the quickest.

        Those that need TensorFlow take seconds to start, and are left aside where the module does not need it.
        """
        near = _Nearness(mutant.module)
        wanted = re.search(r"\b(tensorflow|keras)\b", self._sources.get(mutant.module, ""))
        tests = [test for test in self._running(mutant, near) if wanted or not self.needs_tensorflow(test)]
        return sorted(tests, key=lambda test: (near.steps(test.file, self._sources[test.file]), test.seconds))

    def needs_tensorflow(self, test: Test) -> bool:
        """Whether its file imports it."""
        return self.measured[test.file].tensorflow

    def _running(self, mutant: Mutant, near: _Nearness) -> Iterator[Test]:
        place, module = mutant.place, mutant.module
        lines = {module: frozenset(place.header())}
        uses = self._uses(module, place.defines or (place.function,))
        for one in self.measured.values():
            at_import = not place.function or not lines[module].isdisjoint(one.at_import.get(module, ()))
            wanted = uses if at_import else lines
            for test in one.tests:
                imports = at_import and near.steps(test.file, self._sources[test.file]) < _FAR
                if imports or any(not some.isdisjoint(test.lines.get(name, ())) for name, some in wanted.items()):
                    yield test

    def _uses(self, module: str, names: tuple[str, ...]) -> dict[str, frozenset[int]]:
        """What runs at import shows where its names are used, in tests as well, or anywhere in its module."""
        name = re.compile(rf"\b({'|'.join(map(re.escape, filter(None, names))) or '(?!)'})\b")
        uses = {
            file: frozenset(number for number, line in enumerate(text.splitlines(), 1) if name.search(line))
            for file, text in self._sources.items()
        }
        return {**uses, module: frozenset(range(1, self._sources.get(module, "").count("\n") + 1))}

    @cached_property
    def _sources(self) -> dict[str, str]:
        names = {name for one in self.measured.values() for name in one.sources}
        return {name: (self._root / name).read_text("utf-8") for name in sorted(names)}


_FAR = 2


class _Nearness:
    """How near a file of tests is to a module."""

    def __init__(self, module: str) -> None:
        path = PurePosixPath(module).with_suffix("")
        parent, stem = re.escape(".".join(path.parent.parts)), re.escape(path.name)
        self._own = re.compile(rf"/test_{stem}(_\w+)?\.py$")
        self._imports = re.compile(rf"^\s*(from|import) {parent}(\.{stem}\b| import .*\b{stem}\b)", re.MULTILINE)

    def steps(self, file: str, text: str) -> int:
        """0: it is the module's own; 1: it imports it; else it is far."""
        return 0 if self._own.search(file) else 1 if self._imports.search(text) else _FAR
