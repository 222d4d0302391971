"""The tfds source: what TensorFlow Datasets prepared is read as it reads it, and without TensorFlow."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from loader_server.sources.records.tfds import TfdsSource
from shared.errors import DataError, ReadError, SettingsError
from tests.support.example_protos import example
from tests.support.prepared import prepare, spoken_example
from tests.support.records import write_array_records
from tests.support.sources import decoded, index_source, open_source, raw_of, spec_of

if TYPE_CHECKING:
    from loader_server.sources.index.make import IndexReport

ROOT = Path(__file__).parents[4]
SHARDS = [range(1, 4), range(4, 9)]


def prepared(folder: Path) -> Path:
    return prepare(folder / "tiny" / "1.0.0", [map(spoken_example, numbers) for numbers in SHARDS])


def indexed(base: Path, **table: Any) -> tuple[TfdsSource, IndexReport]:
    spec = spec_of("tfds", base, **{"folder": "tiny/1.0.0", "split": "train", **table})
    report = index_source(spec)
    source = open_source(spec)
    assert isinstance(source, TfdsSource)
    return source, report


def test_samples_are_what_the_library_makes_of_the_records(tmp_path: Path) -> None:
    prepared(tmp_path)
    source, report = indexed(tmp_path)
    assert (report.samples, report.bad) == (8, ())
    fields = {field.key: (field.dtype, field.shape) for field in source.fields}
    assert fields == {
        "audio": ("float32", (None,)),
        "label": ("int64", ()),
        "speaker/age": ("int32", ()),
        "tokens": ("int64", (None,)),
    }
    found = decoded(source, 4)
    assert found["audio"].tolist() == [5.0] * 5
    assert (found["label"], found["speaker/age"], found["text"], found["tokens"].tolist()) == (
        5,
        35,
        "Bäume 5",
        [5] * 5,
    )
    assert source.lengths["text"].tolist() == [7] * 8
    assert source.name(4) == "tiny/1.0.0 (train), sample 4"


@pytest.mark.parametrize(("split", "labels"), [("train[2:5]", [3, 4, 5]), ("train[:25%]+train[7:]", [1, 2, 8])])
def test_a_split_may_be_a_part(tmp_path: Path, split: str, labels: list[int]) -> None:
    prepared(tmp_path)
    source, _ = indexed(tmp_path, split=split, keys=["label"])
    assert [decoded(source, sample) for sample in range(3)] == [{"label": np.int64(label)} for label in labels]


def test_a_record_that_cannot_be_decoded_is_a_bad_row(tmp_path: Path) -> None:
    prepare(tmp_path / "tiny" / "1.0.0", [[spoken_example(1), example(label=1)]])
    source, report = indexed(tmp_path)
    assert (source.samples, [(row.line, row.reason) for row in report.bad]) == (1, [(1, "undecodable")])


@pytest.mark.fault(29)
def test_a_record_that_changed_is_refused_when_it_is_read_and_others_are_not(tmp_path: Path) -> None:
    folder = prepared(tmp_path)
    source, _ = indexed(tmp_path)
    write_array_records(folder / "tiny-train.array_record-00000-of-00002", map(spoken_example, (1, 7, 3)))
    assert raw_of(source, 0) == spoken_example(1)
    with pytest.raises(ReadError, match=r"sample 1: expected the record that was indexed, got other bytes"):
        raw_of(source, 1)


def test_other_data_are_refused_when_they_are_opened(tmp_path: Path) -> None:
    prepared(tmp_path)
    indexed(tmp_path)
    prepare(tmp_path / "tiny" / "1.0.0", [map(spoken_example, range(6))])
    with pytest.raises(DataError, match=r"got 6 samples, fingerprint .*The data has changed: run loader-server index"):
        open_source(spec_of("tfds", tmp_path, folder="tiny/1.0.0", split="train"))


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"1\.0\.0: expected a data set that TensorFlow Datasets prepared"):
        indexed(tmp_path)
    prepared(tmp_path)
    with pytest.raises(DataError, match=r"with the split dev, got Unknown split.*dev"):
        indexed(tmp_path, split="dev")
    with pytest.raises(SettingsError, match=r"expected keys out of audio, label, speaker, text, tokens, got sound"):
        indexed(tmp_path, keys=["sound"])
    prepare(tmp_path / "old" / "1.0.0", [map(spoken_example, range(3))], file_format="tfrecord")
    with pytest.raises(DataError, match=r"expected a data set in ArrayRecord files, got one in tfrecord files"):
        indexed(tmp_path, folder="old/1.0.0")


def test_tensorflow_is_not_imported(tmp_path: Path) -> None:
    prepared(tmp_path)
    indexed(tmp_path)
    code = (
        "import sys; from pathlib import Path; from tests.support.sources import *\n"
        f"source = open_source(spec_of('tfds', Path({str(tmp_path)!r}), folder='tiny/1.0.0', split='train'))\n"
        "print(decoded(source, 2)['text'], 'tensorflow' in sys.modules)"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=60)
    assert done.stdout == "Bäume 3 False\n", done.stderr
