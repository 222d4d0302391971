"""The tables of measured figures in the pages, made from kept runs of the benchmarks.

    python -m tests.benchmarks.page                        # write the tables anew
    python -m tests.benchmarks.page data_path --rounds 5   # run that benchmark with its options first, and keep the run

A kept run is a file of `docs/measurements/`: what the benchmark prints with `--json`, with the day, the machine and the
command. A page marks where a table goes by a pair of comments with the benchmark's name; `tables` has a function of
that name. Rules: nobody writes between the marks by hand, but a table that is marked as copied by hand waits for the
first kept run; figures are those of the last run, and the range is that of all kept runs of its machine and command,
however many rounds they took.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import subprocess
import sys
from collections import defaultdict
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from tests.benchmarks.tables import TABLES, Run
from trainer_client.load_test.report.document import machine

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["KEPT", "PAGES", "keep", "kept_runs", "with_tables"]

_ROOT = Path(__file__).resolve().parents[2]
KEPT = _ROOT / "docs" / "measurements"
PAGES = (_ROOT / "docs" / "measurements.md", _ROOT / "docs" / "fleet.md")

#: What does not change the meaning of a run's figures.
_HOW_LONG = re.compile(r" --(?:rounds|seconds) \S+")
#: A table that was copied by hand waits, so marked, for the first kept run of its benchmark.
_MARKED = re.compile(
    r"<!-- figures of (\w+)(, by hand until a run is kept)? -->\n.*?(<!-- end of figures -->)", re.DOTALL
)


def kept_runs(folder: Path) -> dict[str, list[Run]]:
    """Return the kept runs of each benchmark on the machine and with the command of its last one, oldest first."""
    runs: dict[str, list[Run]] = defaultdict(list)
    for path in sorted(folder.glob("*.json")):
        run = Run(**json.loads(path.read_text("utf-8")))
        runs[run.benchmark].append(run)
    for found in runs.values():
        found.sort(key=lambda run: run.date)
        found[:] = [run for run in found if _is_alike(run, found[-1])]
    return dict(runs)


def _is_alike(run: Run, last: Run) -> bool:
    commands = {_HOW_LONG.sub("", command) for command in (run.command, last.command)}
    return len(commands) == 1 and run.machine == last.machine


def with_tables(text: str, runs: Mapping[str, Sequence[Run]]) -> str:
    """Return a page with the tables between its marks made anew; raise KeyError for a mark without a kept run.

    A table that is marked as copied by hand stays until a run is kept, and is made like the others from then on.
    """

    def made_anew(mark: re.Match[str]) -> str:
        benchmark, is_by_hand, end = mark.groups()
        if is_by_hand and benchmark not in runs:
            return mark[0]
        return f"<!-- figures of {benchmark} -->\n{TABLES[benchmark](runs[benchmark])}\n{end}"

    return _MARKED.sub(made_anew, text)


def keep(folder: Path, run: Run) -> Path:
    """Write a run to a file of the folder, named by benchmark and time."""
    path = folder / f"{run.benchmark}-{run.date.replace(':', '')}.json"
    path.write_text(json.dumps(dataclasses.asdict(run)) + "\n", "utf-8")
    return path


def _run(benchmark: str, options: list[str]) -> Run:
    words = ["-m", f"tests.benchmarks.{benchmark}", *options]
    # A benchmark that misses a bound exits with 1, and its figures count all the same.
    done = subprocess.run([sys.executable, *words, "--json"], cwd=_ROOT, stdout=subprocess.PIPE, text=True, check=False)
    found, lines = machine(), done.stdout.splitlines()
    if not lines:
        sys.exit(
            f"{' '.join(words)}: expected its figures as a line of JSON, got none and exit status {done.returncode}"
        )
    return Run(
        benchmark=benchmark,
        date=f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%S}",
        machine=f"{found['cores']}-core {found['processor']}",
        command=" ".join(["python", *words]),
        figures=json.loads(lines[-1]),
    )


def main() -> None:
    """Run the benchmark, if one is named, and write the tables of all pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benchmark", nargs="?", choices=TABLES, help="run this one first, and keep the run")
    parser.add_argument("options", nargs=argparse.REMAINDER, help="of the benchmark")
    asked = parser.parse_args()
    if asked.benchmark:
        print(keep(KEPT, _run(asked.benchmark, asked.options)))
    for page in PAGES:
        page.write_text(with_tables(page.read_text("utf-8"), kept_runs(KEPT)), "utf-8")


if __name__ == "__main__":
    main()
