"""Parts of a prediction: whole or not there, of one prediction only, in order at the end."""

from __future__ import annotations

import json
import sys
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from pyarrow import parquet

from shared.errors import DataError, SettingsError
from trainer_client.training.predicting import prediction_files, prediction_parts
from trainer_client.training.predicting.prediction_files import check_format, write_rows
from trainer_client.training.predicting.prediction_parts import PredictionParts

if TYPE_CHECKING:
    from pathlib import Path

OF = {"model": "levels:model", "checkpoint": {"file": "00000001.npz"}}


@pytest.fixture
def parts(tmp_path: Path) -> PredictionParts:
    parts = PredictionParts(tmp_path / "out.jsonl")
    begin(parts)
    return parts


def begin(parts: PredictionParts, **of: Any) -> None:
    with parts.lock():
        parts.begin({**OF, **of}, 3)


def part(*samples: int, masked: tuple[int, ...] = (), width: int = 2) -> dict[str, np.ndarray]:
    numbers = np.array(samples, np.int64)
    return {
        "sample": numbers,
        "tag": np.array([f"name {sample}" for sample in samples], np.str_),
        "masked": np.isin(numbers, masked),
        "output": np.repeat(numbers[:, None], width, axis=1).astype(np.float32),
        "text": np.array([f"{sample}ü".encode() for sample in samples], "S"),
    }


def finish(parts: PredictionParts) -> dict[str, int]:
    return parts.finish(write_rows)


def row(sample: int, width: int = 2) -> dict[str, Any]:
    return {"sample": sample, "tag": f"name {sample}", "output": [float(sample)] * width, "text": f"{sample}ü"}


@pytest.mark.parametrize("block_bytes", [1, 2**26])
def test_parts_of_any_order_and_shape_become_one_file_in_order(
    parts: PredictionParts, monkeypatch: pytest.MonkeyPatch, block_bytes: int
) -> None:
    monkeypatch.setattr(prediction_parts, "_BLOCK_BYTES", block_bytes)
    parts.write(1, part(5, 0, 11))
    parts.write(0, part(2, 1, masked=(2,), width=3))
    assert (parts.missing(), parts.has(1), parts.has(2)) == ([2], True, False)
    parts.write(2, part())
    parts.write(1, part(5, 0, 11))  # by two trainers
    assert parts.missing() == []
    assert finish(parts) == {"samples": 4, "masked": 1} == parts.finished()
    lines = [json.loads(line) for line in parts.output.read_text("utf-8").splitlines()]
    assert lines == [row(0), row(1, 3), row(5), row(11)]
    assert sorted(path.name for path in parts.folder.iterdir()) == ["lock", "prediction.json"]


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_texts_come_out_as_they_are(tmp_path: Path, suffix: str) -> None:
    texts = ["", "\0", "zero at the end\0\0", "a\nb", "ü😀", "\x01", "long" * 5000]
    parts = PredictionParts(tmp_path / f"out.{suffix}")
    with parts.lock():
        parts.begin(OF, 2)
    parts.write(0, {**part(*range(len(texts))), "id": np.array(texts, object), "text": np.array([b"a\x01"] * 7, "S")})
    parts.write(1, {**part(), "id": np.array([], object)})
    finish(parts)
    if suffix == "parquet":
        rows = parquet.read_table(parts.output).to_pylist()
    else:
        rows = [json.loads(line) for line in parts.output.read_text("utf-8").split("\n")[:-1]]
    assert [row["id"] for row in rows] == texts
    assert {row["text"] for row in rows} == {"a\x01"}


def test_parquet_has_types_and_takes_some_rows_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prediction_files, "_ROWS", 2)
    parts = PredictionParts(tmp_path / "out.parquet")
    begin(parts)
    for number, samples in enumerate([(4, 0), (3, 1), (2,)]):
        parts.write(number, part(*samples))
    finish(parts)
    table = parquet.read_table(parts.output)
    assert table.to_pylist() == [row(sample) for sample in range(5)]
    assert [str(one) for one in table.schema.types] == ["int64", "string", "list<element: float>", "string"]


def special() -> dict[str, np.ndarray]:
    """Texts of two axes that are no ASCII or no text at all, and numbers that JSON does not have."""
    columns = part(0, 1)
    columns["output"] = np.array([[np.nan, 1.5], [np.inf, -np.inf]], np.float32)
    columns["loss"] = np.array([np.nan, 0.25], np.float64)
    columns["text"] = np.array([["ü".encode(), b"a"], ["é𝄞".encode(), b"\xff"]], "S")
    return columns


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_texts_of_several_axes_are_utf_8(tmp_path: Path, suffix: str) -> None:
    parts = PredictionParts(tmp_path / f"out.{suffix}")
    begin(parts)
    for number, columns in enumerate([special(), part(), part()]):
        parts.write(number, columns)
    finish(parts)
    if suffix == "parquet":
        rows = parquet.read_table(parts.output).to_pylist()
        assert np.isnan(rows[0]["loss"])
    else:
        rows = [json.loads(line) for line in parts.output.read_text("utf-8").splitlines()]
    assert [one["text"] for one in rows] == [["ü", "a"], ["é𝄞", "\ufffd"]]


def test_numbers_that_json_does_not_have_are_null(parts: PredictionParts) -> None:
    for number, columns in enumerate([special(), part(), part()]):
        parts.write(number, columns)
    finish(parts)

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    lines = parts.output.read_text("utf-8").splitlines()
    rows = [json.loads(line, parse_constant=refuse) for line in lines]
    assert [(one["output"], one["loss"]) for one in rows] == [([None, 1.5], None), ([None, None], 0.25)]


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_nothing_at_all_is_a_file_as_well(tmp_path: Path, suffix: str) -> None:
    parts = PredictionParts(tmp_path / f"out.{suffix}")
    begin(parts)
    for number in range(3):
        parts.write(number, part())
    assert finish(parts) == {"samples": 0, "masked": 0}
    assert parts.output.exists()


def test_what_is_half_written_counts_for_nothing(parts: PredictionParts) -> None:
    (parts.folder / "00000000.npy.tmp1").write_bytes(b"half")
    assert parts.missing() == [0, 1, 2]
    for number in range(3):
        parts.write(number, part(number))
    finish(parts)
    assert list(parts.folder.glob("*.tmp*")) == []


def test_a_prediction_of_something_else_is_refused_by_name(parts: PredictionParts) -> None:
    begin(parts)
    with pytest.raises(DataError) as caught:
        begin(parts, checkpoint={"file": "00000002.npz"})
    assert str(caught.value) == (
        f'--output {parts.output}: expected outputs of checkpoint {{"file": "00000002.npz"}}, got some of '
        f'{{"file": "00000001.npz"}} ({parts.folder}/prediction.json). '
        "Name another output; or remove out.jsonl and out.jsonl.parts to begin anew."
    )


def test_once_the_output_is_removed_another_prediction_may_begin(parts: PredictionParts) -> None:
    for number in range(3):
        parts.write(number, part(number))
    finish(parts)
    with pytest.raises(DataError, match="expected outputs of model other:model"):
        begin(parts, model="other:model")
    parts.output.unlink()
    other = PredictionParts(parts.output)
    begin(other, model="other:model")
    parts.write(1, part(1))  # by somebody who has not noticed yet
    assert (other.finished(), other.missing()) == (None, [0, 1, 2])
    with pytest.raises(DataError, match="expected the prediction that was begun, got another, begun in its place"):
        parts.missing()


def test_a_part_that_comes_after_the_end_is_not_asked_for(parts: PredictionParts) -> None:
    for number in range(3):
        parts.write(number, part(number))
    late = PredictionParts(parts.output)
    begin(late)
    finish(parts)
    assert late.has(0)
    assert late.finished() == {"samples": 3, "masked": 0}


@pytest.mark.parametrize("is_written_first", [False, True])
def test_a_part_that_is_being_written_at_the_end_is_no_error_and_does_not_stay(
    parts: PredictionParts, monkeypatch: pytest.MonkeyPatch, is_written_first: bool
) -> None:
    """Another trainer ends the prediction before or after the bytes are on disk."""
    for number in range(3):
        parts.write(number, part(number))
    late = PredictionParts(parts.output)
    begin(late)
    save, ended = np.save, []

    def save_while_another_finishes(*arguments: Any, **settings: Any) -> None:
        if is_written_first:
            save(*arguments, **settings)
        ended.append(finish(parts))
        if not is_written_first:
            save(*arguments, **settings)

    monkeypatch.setattr(prediction_parts.np, "save", save_while_another_finishes)
    late.write(1, part(1))
    assert ended == [late.finished()]
    assert sorted(path.name for path in parts.folder.iterdir()) == ["lock", "prediction.json"]


def test_a_part_that_is_written_after_the_end_does_not_stay(parts: PredictionParts) -> None:
    for number in range(3):
        parts.write(number, part(number))
    late = PredictionParts(parts.output)
    begin(late)
    finish(parts)
    late.write(1, part(1))
    assert sorted(path.name for path in parts.folder.iterdir()) == ["lock", "prediction.json"]


def test_a_part_that_cannot_be_written_is_an_error(parts: PredictionParts, monkeypatch: pytest.MonkeyPatch) -> None:
    save = np.save

    def save_and_lose(*arguments: Any, **settings: Any) -> None:
        save(*arguments, **settings)
        for path in parts.folder.glob("*.tmp*"):
            path.unlink()

    monkeypatch.setattr(prediction_parts.np, "save", save_and_lose)
    with pytest.raises(FileNotFoundError):
        parts.write(1, part(1))


def test_a_file_of_somebody_elses_stays(tmp_path: Path) -> None:
    parts = PredictionParts(tmp_path / "out.jsonl")
    parts.output.write_text("precious")
    with pytest.raises(DataError, match="expected a name that is free"):
        begin(parts)
    assert parts.output.read_text() == "precious"


def test_one_at_a_time_has_the_lock(parts: PredictionParts) -> None:
    got = threading.Event()

    def other() -> None:
        with PredictionParts(parts.output).lock():
            got.set()

    with parts.lock():
        thread = threading.Thread(target=other)
        thread.start()
        assert not got.wait(0.05)
    thread.join(60)
    assert got.is_set()


def test_a_sample_that_comes_again_is_refused_when_it_comes(parts: PredictionParts) -> None:
    parts.write(0, part(4, 2))
    parts.write(2, part(2000))
    parts.write(0, part(4, 2))  # this batch again, as another's lease expired
    with pytest.raises(DataError, match="expected each sample once, got sample 2 again") as caught:
        parts.write(1, part(3, 2, 2000))
    assert "neither mixed nor packed" in str(caught.value)
    with pytest.raises(DataError, match="got sample 5 again"):
        parts.write(1, part(5, 6, 5))
    assert parts.missing() == [1]


def test_a_sample_twice_is_an_error_and_so_is_a_damaged_part(parts: PredictionParts) -> None:
    for number in range(3):  # each by another trainer
        other = PredictionParts(parts.output)
        begin(other)
        other.write(number, part(7))
    with pytest.raises(DataError, match="expected each sample once, got sample 7 again"):
        finish(parts)
    parts._part(1).write_bytes(b"\x93NUMPY")
    with pytest.raises(
        DataError, match=r"00000001-.{8}.npy: expected a part of a prediction, got .* Remove it and run"
    ):
        finish(parts)
    assert not parts.output.exists()


def test_parquet_needs_pyarrow_and_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    check_format(tmp_path / "out.jsonl")
    with pytest.raises(SettingsError, match=r"pyarrow, which writes Parquet, .* `pip install 'stoker\[parquet\]'`, or"):
        check_format(tmp_path / "out.parquet")
