"""The pages' tables of figures are what the kept runs of the benchmarks say."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from tests.benchmarks.page import KEPT, PAGES, _run, keep, kept_runs, with_tables
from tests.benchmarks.tables import TABLES, Run

if TYPE_CHECKING:
    from pathlib import Path

_BY_HAND = ", by hand until a run is kept"


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
    pages = "".join(page.read_text("utf-8") for page in PAGES)
    marks, by_hand = (re.findall(rf"<!-- figures of (\w+){how} -->", pages) for how in ("", _BY_HAND))
    assert sorted(marks) == sorted(kept_runs(KEPT))
    assert sorted([*marks, *by_hand]) == sorted(TABLES)


def test_a_benchmark_that_prints_no_figures_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "true")
    with pytest.raises(SystemExit, match="data_path --rounds 1: expected its figures as a line of JSON, got none and"):
        _run("data_path", ["--rounds", "1"])


def test_only_what_stands_between_the_marks_is_written_anew() -> None:
    page = with_tables(
        "before\n<!-- figures of data_path -->\nold\n<!-- end of figures -->\nafter\n", {"data_path": [run()]}
    )
    assert page.startswith(
        "before\n<!-- figures of data_path -->\n`python -m it`, 2026-11-26, 2-core AMD EPYC, load 0.5:"
    )
    assert page.endswith("| Stoker, TCP | 6000 | 1.50 | 0.10 | 0.10 |\n<!-- end of figures -->\nafter\n")


def test_a_table_by_hand_stays_until_a_run_is_kept() -> None:
    page = f"<!-- figures of data_path{_BY_HAND} -->\nby hand\n<!-- end of figures -->\n"
    assert with_tables(page, {}) == page
    made = with_tables(page, {"data_path": [run()]})
    assert made.startswith("<!-- figures of data_path -->\n`python -m it`")
    assert "by hand" not in made


def source_row(side: str, epoch: str, cpu_us: float, *, name: str = "tfrecord", left_out: str = "") -> dict[str, Any]:
    return {"format": name, "side": side, "epoch": epoch, "cpu_us_per_sample": cpu_us, "left_out": left_out}


def sources_run(*rows: dict[str, Any]) -> Run:
    return Run(
        benchmark="sources", date="2026-11-26T15:00", machine="2-core AMD EPYC", command="it", figures={"rows": rows}
    )


def test_each_format_has_a_line_for_each_pair_of_stoker_and_a_peer() -> None:
    kept = sources_run(
        source_row("stoker", "first", 10.0),
        source_row("tf.data", "first", 15.0),
        source_row("stoker, Parquet", "first", 5.0),
        source_row("stoker", "later", 8.0),
        source_row("tf.data", "later", 16.0),
        source_row("stoker, Parquet", "later", 4.0),
    )
    assert TABLES["sources"]([kept]).splitlines()[2:] == [
        "| format | beside | first epoch | later epochs | CPU µs a sample, later | of the peer |",
        "| --- | --- | --: | --: | --: | --: |",
        "| TFRecord | tf.data | 1.50 | 2.00 | 8.0 | 16.0 |",
        "| TFRecord, Parquet | tf.data | 3.00 | 4.00 | 4.0 | 16.0 |",
    ]


def test_formats_have_the_range_over_runs_that_measured_them() -> None:
    runs = [
        sources_run(source_row("stoker", "first", 10.0), source_row("tf.data", "first", peer)) for peer in (12.0, 30.0)
    ]
    runs.insert(0, sources_run(source_row("stoker", "first", 10.0, name="unknown"), *runs[0].figures["rows"][:1]))
    assert TABLES["sources"](runs).splitlines()[-1] == "| TFRecord | tf.data | 3.00 (1.20 to 3.00) | - | - | - |"


def test_a_peer_that_is_not_installed_is_named() -> None:
    kept = sources_run(
        source_row("stoker", "first", 10.0), source_row("grain", "first", 0.0, left_out="No module named 'grain'")
    )
    assert TABLES["sources"]([kept]).splitlines()[-1] == "| TFRecord | grain | not installed | - | - | - |"


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
