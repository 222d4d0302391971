"""The jsonl source: each row with the keys of all, and whatever is wrong with a row named."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from loader_server.sources.text_files import jsonl
from shared.errors import DataError, ReadError, SettingsError
from shared.wire.batch_layout import Field
from tests.support.sources import decoded, index_source, open_source, raw_of, spec_of

if TYPE_CHECKING:
    from pathlib import Path

    from loader_server.index.make import IndexReport
    from loader_server.sources.source import Source


def indexed(folder: Path, *rows: object, **table: Any) -> tuple[Source, IndexReport]:
    """From rows as objects, or as the bytes of a line."""
    lines = [row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows]
    (folder / "a.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    spec = spec_of("jsonl", folder, paths=["a.jsonl"], **table)
    report = index_source(spec)
    return open_source(spec), report


def test_a_sample_is_an_object_with_the_keys_of_the_first_rows(tmp_path: Path) -> None:
    rows = [
        {"text": "one é", "tokens": [1, 2], "label": 3, "score": 0.5, "good": True, "meta": {"a": 1}, "tags": ["x"]}
    ]
    source, report = indexed(tmp_path, *rows, {**rows[0], "text": "zwei", "tokens": []})
    assert source.fields == (
        Field(key="good", dtype="bool", shape=()),
        Field(key="label", dtype="int64", shape=()),
        Field(key="score", dtype="float32", shape=()),
        Field(key="tokens", dtype="int64", shape=(None,)),
    )
    sample = decoded(source, 0)
    assert list(sample) == ["good", "label", "score", "text", "tokens"]
    assert (sample["text"], sample["label"], sample["score"], sample["good"]) == ("one é", 3, 0.5, True)
    assert sample["tokens"].tolist() == [1, 2]
    assert {key: column.tolist() for key, column in source.lengths.items()} == {"text": [5, 4], "tokens": [2, 0]}
    assert (report.samples, report.bad) == (2, ())
    assert source.name(1) == "a.jsonl:2"


def test_settings_say_which_keys_and_of_which_kind(tmp_path: Path) -> None:
    rows = [{"text": "one", "tokens": [1, 2], "x": [1, 0.5]}, {"tokens": [3], "x": [2]}]
    source, report = indexed(tmp_path, *rows, keys={"tokens": "int32 [any]", "x": "float64 [any]"})
    sample = decoded(source, 1)
    assert {key: (str(value.dtype), value.tolist()) for key, value in sample.items()} == {
        "tokens": ("int32", [3]),
        "x": ("float64", [2.0]),
    }
    assert report.bad == ()
    with pytest.raises(SettingsError, match=r'values are each one of "text", .*"int32 \[any\]".*, perhaps "int32'):
        spec_of("jsonl", tmp_path, paths=["a.jsonl"], keys={"tokens": "int3"})


def test_all_of_the_first_rows_tell_the_keys_and_numbers_with_fractions_may_come_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jsonl, "_FIRST_ROWS", 3)
    rows = [{"a": 1, "b": [], "d": [1]}, b"no json", {"a": 2.5, "b": [1, 2.5], "d": [0.5]}, {"a": 3, "c": "x"}]
    source, report = indexed(tmp_path, *rows, {"a": 4, "b": [7], "c": "y", "d": [2], "e": 5})
    assert [(field.key, field.dtype) for field in source.fields] == [
        ("a", "float32"),
        ("b", "float32"),
        ("d", "float32"),
    ]
    assert report.bad_counts == {"malformed": 1, "missing_key": 3}
    assert decoded(source, 0)["c"] == "y"
    assert decoded(source, 0)["b"].tolist() == [7.0]


@pytest.mark.parametrize(
    ("line", "reason", "said"),
    [
        (b"", "empty_line", "expected an object, got an empty line"),
        (b'{"text": "a\xff"}', "not_utf8", "expected UTF-8, got the byte 0xff after 11 others"),
        (b'{"text": "a', "malformed", "expected JSON: Unterminated string starting at: line 1 column 10 (char 9)"),
        (b'{"text": "a", "n": NaN, "t": [1]}', "malformed", "expected JSON: NaN is no JSON"),
        (b'["a"]', "malformed", "expected an object, got list"),
        (b"[" * 100_000, "malformed", "expected JSON: maximum recursion depth exceeded"),
        (b'{"text": "a", "t": [1]}', "missing_key", 'expected "n", got no such key'),
        (b'{"text": "a", "n": 1, "t": null}', "null", 'expected "t", got null'),
        (b'{"text": 7, "n": 1, "t": []}', "wrong_type", 'expected "text" as text, got 7'),
        (b'{"text": "a", "n": 1.5, "t": []}', "wrong_type", 'expected "n" as int32, got 1.5'),
        (b'{"text": "a", "n": true, "t": []}', "wrong_type", 'expected "n" as int32, got true'),
        (b'{"text": "a", "n": [1], "t": []}', "wrong_type", 'expected "n" as int32, got [1]'),
        (b'{"text": "a", "n": 1, "t": 1}', "wrong_type", 'expected "t" as float32 [any], got 1'),
        (b'{"text": "a", "n": 1, "t": [1, "2"]}', "wrong_type", 'expected "t" as float32 [any], got [1, "2"]'),
        (b'{"text": "a", "n": 1, "t": [1, [2]]}', "wrong_type", 'expected "t" as float32 [any], got [1, [2]]'),
        (b'{"text": "a", "n": 1, "t": [1, null]}', "wrong_type", 'expected "t" as float32 [any], got [1, null]'),
        (b'{"text": "a", "n": 2147483648, "t": []}', "out_of_range", 'expected "n" to fit into int32, got 2147483648'),
        (b'{"text": "a", "n": 1, "t": [1e400]}', "out_of_range", 'expected "t" to fit into float32, got [Infinity]'),
        (
            b'{"text": "\\ud800", "n": 1, "t": []}',
            "not_utf8",
            'expected "text" in Unicode, got half of a surrogate pair',
        ),
    ],
)
def test_what_is_wrong_with_a_row_is_told(tmp_path: Path, line: bytes, reason: str, said: str) -> None:
    good = {"text": "ok", "n": 1, "t": [1, 0.5]}
    _, report = indexed(tmp_path, good, line, good, keys={"text": "text", "n": "int32", "t": "float32 [any]"})
    (bad,) = report.bad
    assert (bad.where, bad.line, bad.reason) == (str(tmp_path / "a.jsonl"), 2, reason)
    assert bad.detail.startswith(said)
    assert report.samples == 2


def test_a_long_value_is_shown_in_part(tmp_path: Path) -> None:
    _, report = indexed(tmp_path, {"t": "x"}, {"t": [1] * 1000})
    assert report.bad[0].detail == f'expected "t" as text, got [{"1, " * 18}1,...'


def test_files_without_any_key_are_refused(tmp_path: Path) -> None:
    said = r"a\.jsonl: expected objects with texts.* got none in the first 100 rows \(line 2: expected JSON.*keys ="
    with pytest.raises(DataError, match=said):
        indexed(tmp_path, {"meta": {}}, b"text")
    with pytest.raises(DataError, match=r"gone\.jsonl: expected a file that can be read, got No such file"):
        _ = spec_of("jsonl", tmp_path, paths=["gone.jsonl"]).make().fields
    with pytest.raises(DataError, match="expected at least one file, got none"):
        spec_of("jsonl", tmp_path, paths=[]).make().survey()


def test_a_row_that_changed_is_refused_when_it_is_read(tmp_path: Path) -> None:
    source, _ = indexed(tmp_path, {"n": 1}, {"n": 2})
    (tmp_path / "a.jsonl").write_bytes(b'{"n": 1}\n{"n": 3}\n')
    assert raw_of(source, 0) == b'{"n": 1}'
    with pytest.raises(ReadError, match=r"a\.jsonl, line 2: expected the line that was indexed"):
        raw_of(source, 1)


def test_the_keys_are_those_of_the_index_whatever_the_rows_are_by_now(tmp_path: Path) -> None:
    source, _ = indexed(tmp_path, {"n": 1, "text": "a"})
    again = spec_of("jsonl", tmp_path, paths=["a.jsonl"]).make()
    (tmp_path / "a.jsonl").write_bytes(b'{"m": 1, "text": "a"}\n')
    again.open(source.indexed)
    assert [field.key for field in again.fields] == ["n"]
    assert np.array_equal(again.lengths["text"], [1])
