"""Inside the pytest of one run: examples that are the same each time, and, if asked for, which test ran which lines.

Loaded with `-p`, before any test module, because Hypothesis reads its profile where a test is decorated, and because
a line that ran at import is not seen afterwards.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings

__all__ = ["MAP_TO", "digest_of"]

#: Where to write the map of lines; not set: none is measured.
MAP_TO = "STOKER_MUTANTS_MAP"

# A failure is enough: nobody reads the smallest example that fails.
settings.register_profile(
    "mutants",
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=50,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=list(HealthCheck),
)
settings.load_profile("mutants")


def digest_of(path: Path) -> str:
    """Of a file's content."""
    return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()


class _Map:
    """Measures every test of the session, each in a context of its own."""

    def __init__(self, target: Path, root: Path) -> None:
        import coverage  # needed for measuring only

        self._target, self._root = target, root
        self._tests: dict[str, dict] = {}
        self._coverage = coverage.Coverage(data_file=None, config_file=False, include=[f"{root}/*"])
        self._coverage.set_option("run:disable_warnings", ["no-data-collected", "already-imported"])
        self._coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        self._tests[item.nodeid] = {"seconds": 0.0, "outcome": "passed", "lines": {}}
        self._coverage.switch_context(item.nodeid)
        try:
            return (yield)
        finally:
            self._coverage.switch_context("")

    def pytest_runtest_logreport(self, report):
        test = self._tests[report.nodeid]
        test["seconds"] = round(test["seconds"] + report.duration, 4)
        if not report.passed:
            test["outcome"] = report.outcome

    def pytest_sessionfinish(self):
        self._coverage.stop()
        data = self._coverage.get_data()
        at_import: dict[str, list[int]] = {}
        for file in data.measured_files():
            name = Path(file).relative_to(self._root).as_posix()
            for test, lines in _lines_by_test(data.contexts_by_lineno(file)).items():
                (self._tests[test]["lines"] if test else at_import)[name] = lines
        sources = {name: digest_of(self._root / name) for name in self._imported()}
        tensorflow = "tensorflow" in sys.modules
        written = {"sources": sources, "tensorflow": tensorflow, "at_import": at_import, "tests": self._tests}
        self._target.write_text(json.dumps(written))

    def _imported(self) -> set[str]:
        """The files of the project that this session depends on."""
        files = (getattr(module, "__file__", None) for module in [*sys.modules.values()])
        paths = (Path(file) for file in files if file)
        return {path.relative_to(self._root).as_posix() for path in paths if path.is_relative_to(self._root)}


def _lines_by_test(contexts: dict[int, list[str]]) -> dict[str, list[int]]:
    """Under no name: what ran while tests were collected."""
    found = defaultdict(list)
    for line, tests in sorted(contexts.items()):
        for test in tests:
            found[test].append(line)
    return found


def pytest_configure(config):
    if MAP_TO in os.environ:
        config.pluginmanager.register(_Map(Path(os.environ[MAP_TO]), config.rootpath), "mutants-map")
