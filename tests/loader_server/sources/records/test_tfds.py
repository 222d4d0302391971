"""The tfds source: what TensorFlow Datasets prepared is read as it reads it, and without TensorFlow."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from loader_server.sources.records.tfds import PreparedItems, TfdsSource
from shared.errors import DataError, ReadError, SettingsError
from tests.support.example_protos import example
from tests.support.prepared import PACKAGE, prepare, spoken_example, tensor
from tests.support.records import write_array_records
from tests.support.sources import decoded, index_source, open_source, raw_of, spec_of

if TYPE_CHECKING:
    from loader_server.index.make import IndexReport

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


def written_anew(folder: Path, **features: Any) -> None:
    """The data set's features are described in another way."""
    said = json.loads((folder / "features.json").read_text())
    said["featuresDict"]["features"] |= features
    (folder / "features.json").write_text(json.dumps(said))


def assert_as_the_library_has_it(source: TfdsSource) -> None:
    library = PreparedItems(source.settings, source.files)
    for sample in range(source.samples):
        expected, found = library[sample], decoded(source, sample)
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            assert np.asarray(found[key]).dtype == np.asarray(value).dtype
            assert np.array_equal(found[key], value)
    library.close()


def test_plain_features_are_taken_from_the_records_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also lists of one length, lists in others, and empty ones."""
    numbers = [3, 0, 5]
    records = [
        example(**{"audio": [n / 3] * n, "label": -n, "speaker/age": 2**30, "text": "ä" * n, "tokens": [n] * 4})
        + example(**{"speaker/words": [n] * n})
        for n in numbers
    ]
    folder = prepare(tmp_path / "tiny" / "1.0.0", [records])
    words = {"pythonClassName": f"{PACKAGE}sequence_feature.Sequence"}
    words["sequence"] = {"feature": tensor("int64"), "length": "-1"}
    speaker = {"features": {"age": tensor("int32"), "words": words}}
    written_anew(folder, speaker={"pythonClassName": f"{PACKAGE}features_dict.FeaturesDict", "featuresDict": speaker})
    source, report = indexed(tmp_path)
    assert (source.samples, report.bad) == (len(numbers), ())
    assert {key: lengths.tolist() for key, lengths in source.lengths.items()} == {
        "audio": numbers,
        "text": numbers,
        "tokens": [4, 4, 4],
        "speaker/words": numbers,
    }
    assert_as_the_library_has_it(source)
    assert source.gathers
    monkeypatch.delattr(PreparedItems, "decoded")
    assert decoded(source, 2)["tokens"].tolist() == [5] * 4


def test_what_the_library_makes_something_else_of_is_its_own_to_decode(tmp_path: Path) -> None:
    """A truth that is written as 2, and bytes."""
    folder = prepared(tmp_path)
    written_anew(folder, label=tensor("bool"))
    source, _ = indexed(tmp_path)
    assert [bool(decoded(source, sample)["label"]) for sample in range(3)] == [True] * 3
    assert not source.gathers
    assert_as_the_library_has_it(source)
    written_anew(folder, label=tensor("int64"), text=tensor("string"))
    source, _ = indexed(tmp_path)
    assert decoded(source, 0)["text"] == b"B\xc3\xa4ume 1"
    assert not source.gathers


def test_an_index_from_before_features_were_taken_from_bytes_is_still_good(tmp_path: Path) -> None:
    prepared(tmp_path)
    source, _ = indexed(tmp_path)
    about = {key: value for key, value in source.indexed.about.items() if key != "forms"}
    source.open(replace(source.indexed, about=about))
    assert not source.gathers
    assert_as_the_library_has_it(source)


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
    prepare(tmp_path / "old" / "1.0.0", [map(spoken_example, range(3))], file_format="riegeli")
    with pytest.raises(
        DataError, match=r"expected a data set in TFRecord or ArrayRecord files, got one in riegeli files"
    ):
        indexed(tmp_path, folder="old/1.0.0")


def test_a_data_set_in_tfrecord_files_is_that_in_array_record_files(tmp_path: Path) -> None:
    prepared(tmp_path)
    prepare(tmp_path / "plain" / "1.0.0", [map(spoken_example, numbers) for numbers in SHARDS], file_format="tfrecord")
    one, _ = indexed(tmp_path, split="train[25%:]")
    other, report = indexed(tmp_path, folder="plain/1.0.0", split="train[25%:]")
    assert (report.samples, report.bad) == (6, ())
    for number in range(6):
        assert raw_of(one, number) == raw_of(other, number)
        np.testing.assert_equal(decoded(one, number), decoded(other, number))
    shard = tmp_path / "plain" / "1.0.0" / "tiny-train.tfrecord-00001-of-00002"
    whole = shard.read_bytes()
    other.close()
    shard.write_bytes(whole[:-3])
    with pytest.raises((DataError, ReadError)):
        raw_of(other, 5)


@pytest.mark.parametrize(("cut", "words"), [(3, "is damaged: it has"), (-1, "expected a TFRecord file")])
def test_tfrecord_files_that_are_not_whole_are_refused(tmp_path: Path, cut: int, words: str) -> None:
    prepare(tmp_path / "tiny" / "1.0.0", [map(spoken_example, range(1, 5))], file_format="tfrecord")
    shard = tmp_path / "tiny" / "1.0.0" / "tiny-train.tfrecord-00000-of-00001"
    shard.write_bytes(shard.read_bytes()[:-3] if cut > 0 else b"no record at all, but quite some bytes")
    with pytest.raises(DataError, match=words):
        indexed(tmp_path)


def test_what_the_library_itself_prepared_in_tfrecord_files(tmp_path: Path) -> None:
    tfds = pytest.importorskip("tensorflow_datasets")
    pytest.importorskip("tensorflow")

    from tensorflow_datasets.core.sequential_writer import SequentialWriter

    folder = tmp_path / "written" / "1.0.0"
    folder.mkdir(parents=True)
    features = {"tokens": tfds.features.Sequence(np.int64), "label": np.int64, "text": tfds.features.Text()}
    identity = tfds.core.dataset_info.DatasetIdentity("written", tfds.core.Version("1.0.0"), str(folder), "tests")
    info = tfds.core.DatasetInfo(builder=identity, features=tfds.features.FeaturesDict(features))
    writer = SequentialWriter(info, max_examples_per_shard=8)
    writer.initialize_splits(["train"])
    rows = [{"tokens": [n] * (n % 5), "label": n, "text": f"n {n}"} for n in range(20)]
    writer.add_examples({"train": rows})
    writer.close_all()
    builder = tfds.builder_from_directory(str(folder))
    source, report = indexed(tmp_path, folder="written/1.0.0")
    assert (report.samples, report.bad) == (20, ())
    wanted = {int(row["label"]): row for row in tfds.as_numpy(builder.as_dataset(split="train"))}
    for number in range(20):
        found = decoded(source, number)
        row = wanted.pop(int(found["label"]))
        assert found["tokens"].tolist() == row["tokens"].tolist()
        assert found["text"] == row["text"].decode()
    assert not wanted


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
