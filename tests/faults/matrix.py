"""Every fault and whether it does what must not be: the tests of each row of the table are run, all in one go.

    python -m tests.faults.matrix [--rows 33,34] --json

A row passes when none of its tests fails and one with real processes passes; it is missing when it has no such test,
and skipped when all of these are. The exit code is 1 unless all rows pass; --json adds one JSON object as last line.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from tests.test_heritage import FAULTS, REAL, TESTS, marks

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

ROOT = TESTS.parent


@dataclass
class Test:
    """One test of a row."""

    __test__ = False

    real: bool
    outcome: str = "not run"
    reason: str = ""
    seconds: float = 0.0

    def take(self, report: pytest.TestReport) -> None:
        """Set-up, call and teardown report each: the worst of them counts, and nothing but a call passes."""
        self.seconds += report.duration
        if report.failed:
            self.outcome = "failed"
        elif report.skipped:
            self.outcome, self.reason = "skipped", _reason(report)
        elif self.outcome == "not run" and report.when == "call":
            self.outcome = "passed"


def _reason(report: pytest.TestReport) -> str:
    why = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
    return str(why).removeprefix("Skipped: ")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a row's tests say together."""

    result: str
    reason: str = ""


def verdict(tests: Sequence[Test]) -> Verdict:
    """Of one row."""
    real = [test for test in tests if test.real]
    if any(test.outcome in ("failed", "not run") for test in tests):
        return Verdict("fail")
    if not real:
        return Verdict("missing")
    if all(test.outcome == "skipped" for test in real):
        return Verdict("skipped", "; ".join(sorted({test.reason for test in real})))
    return Verdict("pass")


@dataclass(eq=False)  # pytest puts plugins into sets
class Run:
    """A plugin of pytest: keeps the tests of these rows, and notes how they end."""

    rows: frozenset[int]
    root: Path
    of_row: dict[int, list[Test]] = field(default_factory=lambda: defaultdict(list))
    _by_node: dict[str, Test] = field(default_factory=dict)

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        kept, left = [], []
        for item in items:
            rows = {mark.args[0] for mark in item.iter_markers("fault")} & self.rows
            (kept if rows else left).append(item)
            if rows:
                test = self._by_node[item.nodeid] = Test(item.path.relative_to(self.root).as_posix().startswith(REAL))
                for row in rows:
                    self.of_row[row].append(test)
        items[:] = kept
        config.hook.pytest_deselected(items=left)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._by_node[report.nodeid].take(report)


def run(rows: Iterable[int], root: Path) -> dict[int, list[Test]]:
    """Run the tests of these rows that lie below a folder; what came of them, by row."""
    plugin = Run(frozenset(rows), root)
    places = marks("fault", root)
    files = sorted({place.rpartition(":")[0] for row in plugin.rows for place in places.get(row, ())})
    if files:
        how = [
            "-c",
            str(ROOT / "pyproject.toml"),
            "--rootdir",
            str(ROOT),
            "-p",
            "no:cacheprovider",
            "--tb=short",
            "-m",
            "",
        ]
        code = pytest.main([*how, "--show-capture=no", *(str(root / file) for file in files)], plugins=[plugin])
        if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            raise SystemExit(f"expected pytest to run the tests, got {code!r}: what it says above is why.")
    return plugin.of_row


def _table(of_row: dict[int, list[Test]], verdicts: dict[int, Verdict]) -> str:
    lines = []
    for row, found in verdicts.items():
        tests = of_row.get(row, [])
        passed = sum(test.outcome == "passed" for test in tests)
        seconds = sum(test.seconds for test in tests)
        said = f"  ({found.reason})" if found.reason else ""
        lines.append(f"{row:3}  {found.result:8} {passed:3} of {len(tests):2} {seconds:7.1f} s  {FAULTS[row]}{said}")
    return "\n".join(["row  result      tests      time  fault", *lines])


def _rows(text: str) -> list[int]:
    rows = [int(part) for part in text.split(",")]
    unknown = [row for row in rows if row not in FAULTS]
    if unknown:
        raise argparse.ArgumentTypeError(f"expected rows from 1 to {max(FAULTS)}, got {unknown}")
    return rows


def main(arguments: Sequence[str] | None = None, root: Path = TESTS) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=_rows, default=list(FAULTS), metavar="N,N", help="only these rows")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    options = parser.parse_args(arguments)
    of_row = run(options.rows, root)
    verdicts = {row: verdict(of_row.get(row, ())) for row in options.rows}
    print(_table(of_row, verdicts))
    passed = sum(one.result == "pass" for one in verdicts.values())
    if options.json:
        skipped = [{"row": row, "reason": one.reason} for row, one in verdicts.items() if one.result == "skipped"]
        results = {str(row): one.result for row, one in verdicts.items()}
        print(json.dumps({"rows": results, "passed": passed, "skipped": skipped}))
    sys.exit(passed < len(verdicts))


if __name__ == "__main__":
    main()
