"""Columns and bad rows go to files: all of them, as they were, mapped when read, and without growing in memory."""

from __future__ import annotations

import tracemalloc
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader_server.index.column_files import (
    BadRowsWriter,
    ColumnWriter,
    StringsWriter,
    first_bad_rows,
    mapped,
    open_strings,
)
from loader_server.index.make import IndexRequest, make_index
from loader_server.sources import BadRow, Found, Inventory, Source
from loader_server.sources.registry import SourceSpec

if TYPE_CHECKING:
    from pathlib import Path

ROWS = (
    BadRow("a.csv", 2, "missing_file", "No such file: caf\u00e9\n\udcff.wav"),
    BadRow("b.csv", 3, "undecodable", 'expected "audio"'),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AllMissingSettings:
    """It has none."""


class AllMissing(Source):
    """One good row, and very many bad ones."""

    Settings = AllMissingSettings
    total = 0

    @property
    def fields(self):
        return ()

    def stamp(self):
        return "all missing"

    def survey(self):
        return Inventory(
            total=self.total,
            pieces=lambda rows: (range(at, min(at + rows, self.total)) for at in range(0, self.total, rows)),
        )

    def probe(self, piece):
        good = [row for row in piece if row == 0]
        bad = {row: BadRow("/data/train.csv", row, "missing_file", f"No such file: {row}.wav") for row in piece if row}
        return Found(rows=good, numbers={"length_text": np.ones(len(good), np.int64)}, bad=bad)


def test_rows_come_back_as_they_were_after_an_interruption_too(tmp_path: Path) -> None:
    assert first_bad_rows(tmp_path, 9) == ()
    writer = BadRowsWriter(tmp_path / "bad_rows.jsonl")
    writer.append(ROWS[:1])
    size = writer.size
    writer.append(ROWS)
    writer.close()
    assert first_bad_rows(tmp_path, 2) == (ROWS[0], ROWS[0])
    writer = BadRowsWriter(tmp_path / "bad_rows.jsonl", size)
    writer.append(ROWS[1:])
    writer.close()
    assert first_bad_rows(tmp_path, 9) == ROWS
    assert writer.size == (tmp_path / "bad_rows.jsonl").stat().st_size


def test_no_bad_row_leaves_no_file(tmp_path: Path) -> None:
    BadRowsWriter(tmp_path / "bad_rows.jsonl").close()
    assert list(tmp_path.iterdir()) == []


def _peak(folder: Path, rows: int, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(AllMissing, "total", rows)
    spec = SourceSpec(name="x", dotted=f"{__name__}:AllMissing", settings=AllMissingSettings(), base=folder)
    tracemalloc.start()
    report = make_index(IndexRequest(folder=folder / f"index-{rows}", spec=spec, source=spec.make(), processes=1))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (report.samples, report.bad_counts, report.rows) == (1, {"missing_file": rows - 1}, rows)
    assert report.bad_path is not None
    assert len(report.bad_path.read_text().splitlines()) == rows - 1
    assert [row.line for row in report.bad] == list(range(1, 1001))
    return peak


def test_memory_does_not_grow_with_the_number_of_bad_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = (_peak(tmp_path, rows, monkeypatch) for rows in (2_000, 10_000))
    assert many < few + 500_000  # the 8 000 more would take 1.7 MB


# --- columns ---


@given(parts=st.lists(st.lists(st.integers(-(2**63), 2**63 - 1))))
def test_numbers_come_back(parts, tmp_path_factory):
    path = tmp_path_factory.mktemp("columns") / "numbers.npy"
    writer = ColumnWriter(path, "int64")
    for part in parts:
        writer.append(part)
    writer.close()
    assert mapped(path).tolist() == [number for part in parts for number in part]
    assert np.load(path, allow_pickle=False).dtype == np.int64


@given(parts=st.lists(st.lists(st.text(st.characters(codec="utf-8")))))
def test_strings_come_back(parts, tmp_path_factory):
    folder = tmp_path_factory.mktemp("columns")
    writer = StringsWriter(folder, "words")
    for part in parts:
        writer.append(part)
    writer.close()
    words = [word for part in parts for word in part]
    column = open_strings(folder, "words")
    assert len(column) == len(words)
    assert [column[row] for row in range(len(column))] == words


def test_reading_maps_the_file_and_copies_nothing(tmp_path):
    writer = ColumnWriter(tmp_path / "n.npy", "int64")
    writer.append(range(1000))
    writer.close()
    column = mapped(tmp_path / "n.npy")
    assert not column.flags.owndata
    assert not column.flags.writeable


@pytest.mark.parametrize(
    "values",
    [
        [2**63], [-(2**63) - 1], [2**70], np.array([1, 2**63 + 5], np.uint64), np.array([np.nan]), np.array([1.5]),
    ],
)  # fmt: skip
def test_numbers_that_a_column_cannot_hold_are_refused_and_none_is_written(values, tmp_path):
    writer = ColumnWriter(tmp_path / "n.npy", "int64")
    writer.append([7])
    with pytest.raises(OverflowError):
        writer.append(values)
    writer.append(np.array([2**63 - 1], np.uint64))
    writer.append(np.array([-1], np.int8))
    writer.close()
    assert mapped(tmp_path / "n.npy").tolist() == [7, 2**63 - 1, -1]


def test_an_empty_file_is_damaged_and_named(tmp_path):
    (tmp_path / "n.npy").touch()
    with pytest.raises(ValueError, match=r"n\.npy is empty"):
        mapped(tmp_path / "n.npy")
