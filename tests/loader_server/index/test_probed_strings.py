"""Which strings an index has, and which rows are bad for want of one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import soundfile

from loader_server.index.folder import open_index
from loader_server.index.make import IndexReport, IndexRequest, make_index, unchanged_index
from loader_server.index.string_columns import LONGEST_STRING
from loader_server.sources.registry import SourceSpec, source_class
from loader_server.sources.source import OfJob
from shared.errors import DataError
from shared.settings.tables import read_table

if TYPE_CHECKING:
    from pathlib import Path

    from loader_server.sources.source import Source


def request(folder: Path, source: str, strings: tuple[str, ...], /, **settings: Any) -> IndexRequest:
    kind = source_class(source, "here")
    spec = SourceSpec(
        name=source,
        dotted=f"{kind.__module__}:{kind.__qualname__}",
        settings=read_table(kind.Settings, settings, "here"),
        base=folder,
        where="here",
        of_job=OfJob(strings=strings),
    )
    return IndexRequest(folder=folder / "index", spec=spec, source=spec.make(), processes=1)


def indexed(folder: Path, source: str, /, *strings: str, **settings: Any) -> tuple[IndexReport, dict[str, list[str]]]:
    report = make_index(request(folder, source, strings, **settings))
    columns = open_index(folder / "index").indexed.strings
    return report, {key: [columns[f"strings.{key}"][row] for row in range(report.samples)] for key in strings}


def test_rows_whose_string_is_missing_no_string_or_too_long_are_bad(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"text": "first", "id": "a"},
        {"text": "no id"},
        {"text": "a number", "id": 7},
        {"text": "too long", "id": "x" * (LONGEST_STRING + 1)},
        {"text": "as long as may be", "id": "x" * LONGEST_STRING},
        {"text": "empty", "id": ""},
    ]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    report, got = indexed(tmp_path, "jsonl", "id", "text", paths=["a.jsonl"])
    assert got == {"id": ["a", "x" * LONGEST_STRING, ""], "text": ["first", "as long as may be", "empty"]}
    assert report.bad_counts["string_too_long"] == 1
    assert sum(report.bad_counts.values()) == 3
    details = {bad.line: bad.detail for bad in report.bad}
    assert f"at most {LONGEST_STRING} bytes, got {LONGEST_STRING + 1}" in details[4]


def test_columns_of_bytes_are_strings_if_they_are_utf_8(tmp_path: Path) -> None:
    values = ["zwölf".encode(), b"\xff", b"fine"]
    pq.write_table(pa.table({"n": [[1], [2], [3]], "raw": pa.array(values, pa.binary())}), tmp_path / "a.parquet")
    report, got = indexed(tmp_path, "parquet", "raw", paths=["a.parquet"])
    assert got == {"raw": ["zwölf", "fine"]}
    assert [(bad.line, bad.reason) for bad in report.bad] == [(1, "no_string")]
    assert "as UTF-8" in report.bad[0].detail


def test_a_key_that_no_sample_has_is_refused_with_those_that_there_are(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.arange(6).reshape(3, 2))
    with pytest.raises(DataError, match='expected a string "text", got only x '):
        indexed(tmp_path, "numpy", "text", paths=["a.npz"])
    soundfile.write(tmp_path / "a.wav", np.zeros(80, np.int16), 8000)
    (tmp_path / "a.csv").write_text("path,text,mood\na.wav,hello,fine\n")
    with pytest.raises(DataError, match='expected a string "id", got only audio, audio_rate, mood, text, path'):
        indexed(tmp_path, "manifest", "id", paths=["a.csv"])


def test_a_sample_over_which_memory_runs_out_is_bad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["n"] = np.arange(3)
        file["id"] = ["a", "b", "c"]
    kind = source_class("hdf5", "here")
    decode = kind.decode

    def hungry(source: Source, sample: int, raw: bytes) -> dict[str, Any]:
        found: dict[str, Any] = decode(source, sample, raw)
        if found["id"] == "b":
            raise MemoryError
        return found

    monkeypatch.setattr(kind, "decode", hungry)
    report, got = indexed(tmp_path, "hdf5", "id", paths=["a.h5"])
    assert got == {"id": ["a", "c"]}
    assert report.bad_counts == {"exhausts": 1}


def test_an_index_without_the_strings_is_made_anew(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    report, _ = indexed(tmp_path, "lines", paths=["a.txt"])
    assert unchanged_index(request(tmp_path, "lines", (), paths=["a.txt"])) is not None
    assert unchanged_index(request(tmp_path, "lines", ("text",), paths=["a.txt"])) is None
    with pytest.raises(DataError, match=r"with the columns strings.text, got one without strings.text. .* run loader"):
        open_index(tmp_path / "index").refuse_lacking(frozenset({"strings.text"}))
    again, got = indexed(tmp_path, "lines", "text", paths=["a.txt"])
    assert got == {"text": ["one", "two"]}
    assert again.fingerprint != report.fingerprint


def test_pieces_and_processes_do_not_matter(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"id": f"ü{row}"}) + "\n" for row in range(50)))
    found = []
    for processes, rows in ((1, 0), (1, 7), (2, 3)):
        made = request(tmp_path, "jsonl", ("id",), paths=["a.jsonl"])
        made = IndexRequest(
            folder=tmp_path / f"{processes}-{rows}", spec=made.spec, source=made.source, processes=processes,
            piece_rows=rows,
        )  # fmt: skip
        found.append(make_index(made).fingerprint)
        column = open_index(made.folder).indexed.strings["strings.id"]
        assert [column[row] for row in range(len(column))] == [f"ü{row}" for row in range(50)]
    assert len(set(found)) == 1
