"""What works today of the five systems that Stoker carries on: each ability with the tests that show it, or its area.

    python -m tests.heritage [--rows D5,E1] [--break [--jobs 2]] [--json]

It prints where to look and runs nothing: `pytest` with a line's words runs that test. --json adds one JSON object as
last line: {"shown": {row: [test, …]}, "later": {row: area}}. The lists are those of tests/test_heritage.py, which holds
that every row is in one of both. The exit code is 1 if a row is asked for that there is not.

With --break, the line that makes each row true is broken in a copy of the project, and the row's tests have to notice;
the last line is then {"rows": 83, "noticed": 83, "unnoticed": {row: why}}, and the exit code is 1 unless all do. It
takes about half an hour.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
from functools import cache
from typing import TYPE_CHECKING

from tests.heritage_breaks import tried
from tests.test_heritage import LATER, ROWS, TESTS, marks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["main", "shown"]


def shown() -> dict[str, list[str]]:
    """The tests of each row, as pytest takes them."""
    marked = marks("heritage")
    return {row: list(dict.fromkeys(map(_test_at, marked[row]))) for row in ROWS if row in marked}


def _test_at(place: str) -> str:
    """The test whose mark stands there; the file, if the mark is for more than one test."""
    file, _, line = place.rpartition(":")
    return f"tests/{file}{_tests_by_mark(file).get(int(line), '')}"


@cache
def _tests_by_mark(file: str) -> dict[int, str]:
    """By the line of each mark, the test that bears it."""
    found = {}

    def look(body: list[ast.stmt], within: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                found.update({mark.lineno: f"{within}::{node.name}" for mark in node.decorator_list})
            if isinstance(node, ast.ClassDef):
                look(node.body, f"{within}::{node.name}")

    look(ast.parse((TESTS / file).read_text("utf-8")).body, "")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="", help="only these, such as D5,E1")
    parser.add_argument("--json", action="store_true", help="one JSON object as last line")
    parser.add_argument("--break", dest="breaks", action="store_true", help="break the line behind each row")
    parser.add_argument("--jobs", type=int, default=1, help="how many rows to break at a time (1)")
    options = parser.parse_args(arguments)
    rows = options.rows.split(",") if options.rows else list(ROWS)
    unknown = [row for row in rows if row not in ROWS]
    if unknown:
        print(f"expected rows from {next(iter(ROWS))} to {list(ROWS)[-1]}, got {', '.join(unknown)}", file=sys.stderr)
        return 1
    tests = {row: found for row, found in shown().items() if row in rows}
    if options.breaks:
        return _break(tests, options.jobs, as_json=options.json)
    later = {row: LATER[row] for row in rows if row in LATER}
    for row in rows:
        print(f"{row:<4} {ROWS[row]}")
        for line in tests.get(row, [later.get(row, "nothing")]):
            print(f"     {line}")
    print(f"{len(tests)} of {len(rows)} are shown by tests, {len(later)} are to come")
    if options.json:
        print(json.dumps({"shown": tests, "later": later}))
    return 0


def _break(tests: Mapping[str, Sequence[str]], jobs: int, *, as_json: bool) -> int:
    """Break each of these rows, say what its tests did, and return the exit code: 1 unless all were noticed."""
    unnoticed: dict[str, str] = {}
    for trial in tried(list(tests), tests, jobs):
        if not trial.is_noticed:
            unnoticed[trial.row] = trial.ending.why or "all of its tests pass"
        word = f"noticed by {trial.ending.test}" if trial.is_noticed else f"NOT NOTICED: {unnoticed[trial.row]}"
        print(f"{trial.row:<4} {trial.seconds:5.0f} s  {word}", flush=True)
    print(f"{len(tests) - len(unnoticed)} of {len(tests)} broken lines were noticed")
    if as_json:
        print(json.dumps({"rows": len(tests), "noticed": len(tests) - len(unnoticed), "unnoticed": unnoticed}))
    return 1 if unnoticed else 0


if __name__ == "__main__":
    sys.exit(main())
