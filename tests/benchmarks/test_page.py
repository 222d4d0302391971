"""The pages' tables of figures are what the kept runs of the benchmarks say."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from tests.benchmarks.page import KEPT, PAGES, keep, kept_runs, with_tables
from tests.benchmarks.tables import TABLES, Run

if TYPE_CHECKING:
    from pathlib import Path


def run(
    date: str = "2026-11-26T15:00", *, machine: str = "2-core AMD EPYC", ratio: float = 1.5, options: str = ""
) -> Run:
    """A run of `data_path` with one payload and one path."""
    row = {"payload": "tokens_small", "path": "tcp", "batches_per_s": 4000 * ratio, "ratio_to_tfdata_service": ratio}
    figures: dict[str, Any] = {"rows": [row | {"worker_cpu_ms": 0.1, "trainer_cpu_ms": 0.1}], "load_15_min": 0.5}
    return Run(benchmark="data_path", date=date, machine=machine, command=f"python -m it{options}", figures=figures)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_tables_are_those_of_the_kept_runs(page: Path) -> None:
    """After a change, `python -m tests.benchmarks.page` writes them anew."""
    text = page.read_text("utf-8")
    assert text == with_tables(text, kept_runs(KEPT))


def test_every_kept_run_is_shown() -> None:
    marks = re.findall(r"<!-- figures of (\w+) -->", "".join(page.read_text("utf-8") for page in PAGES))
    assert sorted(marks) == sorted(kept_runs(KEPT)) == sorted(TABLES)


def test_only_what_stands_between_the_marks_is_written_anew() -> None:
    page = with_tables(
        "before\n<!-- figures of data_path -->\nold\n<!-- end of figures -->\nafter\n", {"data_path": [run()]}
    )
    assert page.startswith(
        "before\n<!-- figures of data_path -->\n`python -m it`, 2026-11-26, 2-core AMD EPYC, load 0.5:"
    )
    assert page.endswith("| Stoker, TCP | 6000 | 1.50 | 0.10 | 0.10 |\n<!-- end of figures -->\nafter\n")


def test_the_last_run_is_shown_with_the_range_over_all() -> None:
    table = TABLES["data_path"]([run(ratio=1.2), run(ratio=1.9), run(ratio=1.5)])
    assert "; in brackets the range over 3 runs:" in table
    assert "| Stoker, TCP | 6000 (4800 to 7600) | 1.50 (1.20 to 1.90) | 0.10 | 0.10 |" in table


def test_the_range_is_of_runs_of_the_last_ones_machine_and_command(tmp_path: Path) -> None:
    for kept in (
        run("2026-11-26T15:00", ratio=1.2),
        run("2026-11-26T14:00", ratio=1.9, options=" --rounds 5"),
        run("2026-11-26T14:15", options=" --wire 10gbit"),
        run("2026-11-26T14:30", machine="8-core Intel Xeon"),
    ):
        keep(tmp_path, kept)
    ratios = [kept.figures["rows"][0]["ratio_to_tfdata_service"] for kept in kept_runs(tmp_path)["data_path"]]
    assert ratios == [1.9, 1.2]


def test_a_mark_without_a_run_is_refused() -> None:
    with pytest.raises(KeyError, match="data_path"):
        with_tables("<!-- figures of data_path -->\n<!-- end of figures -->", {})
