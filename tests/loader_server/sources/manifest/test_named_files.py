"""Manifests that name files of arrays, images and recordings, several of them a row."""

from __future__ import annotations

import io
import json
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import soundfile
from PIL import Image

from loader_server.commands.index import index_streams
from loader_server.job_file import JobFile
from loader_server.stream import Stream
from shared.errors import DataError, ReadError, SettingsError
from shared.wire.batch_layout import Field
from tests.support.sources import decoded, index_source, open_source, spec_of

if TYPE_CHECKING:
    from pathlib import Path

    from loader_server.index.make import IndexReport

COLUMNS = {"mel": "array", "photo": "image", "speech": "audio", "label": "int32", "score": "float32", "text": "text"}


def saved(folder: Path, row: int) -> dict[str, Any]:
    """The files and cells of a row."""
    noise = np.random.default_rng(row)
    np.save(folder / f"{row}.npy", noise.random((row + 1, 3), np.float32))
    Image.fromarray(noise.integers(0, 255, (4, 5, 3), np.uint8)).save(folder / f"{row}.png")
    soundfile.write(folder / f"{row}.wav", noise.uniform(-0.5, 0.5, 100 + row), 8000, subtype="PCM_16")
    files = {"mel": f"{row}.npy", "photo": f"{row}.png", "speech": f"{row}.wav"}
    return {**files, "label": row, "score": row / 2, "text": "číslo", "unread": "x"}


def manifest(folder: Path, rows: list[dict[str, Any]], name: str = "train.jsonl") -> str:
    if name.endswith(".csv"):
        lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
    else:
        lines = [json.dumps(row) for row in rows]
    (folder / name).write_text("\n".join(lines))
    return name


def opened(folder: Path, *names: str, columns: Any = COLUMNS, **settings: Any) -> tuple[Any, IndexReport]:
    spec = spec_of("files", folder, paths=list(names), columns=columns, **settings)
    report = index_source(spec)
    return open_source(spec), report


@pytest.mark.parametrize("name", ["train.csv", "train.jsonl"])
def test_a_row_has_the_values_of_all_its_files(tmp_path: Path, name: str) -> None:
    source, report = opened(tmp_path, manifest(tmp_path, [saved(tmp_path, row) for row in range(4)], name))
    assert (report.samples, report.bad_counts) == (4, {})
    assert {field.key: field for field in source.fields} == {
        "mel": Field(key="mel", dtype="float32", shape=(None, 3)),
        "photo": Field(key="photo", dtype="uint8", shape=(4, 5, 3)),
        "speech": Field(key="speech", dtype="float32", shape=(None,), per_second=8000.0),
        "label": Field(key="label", dtype="int32", shape=()),
        "score": Field(key="score", dtype="float32", shape=()),
    }
    for row in range(4):
        sample = decoded(source, row)
        assert np.array_equal(sample["mel"], np.load(tmp_path / f"{row}.npy"))
        assert np.array_equal(sample["photo"], np.asarray(Image.open(tmp_path / f"{row}.png")))
        assert np.array_equal(sample["speech"], soundfile.read(tmp_path / f"{row}.wav", dtype="float32")[0])
        assert (sample["speech_rate"], sample["text"]) == (8000, "číslo")
        assert (sample["label"], sample["label"].dtype, sample["score"]) == (row, "int32", row / 2)
        assert {key: int(lengths[row]) for key, lengths in source.lengths.items()} == {
            "mel": row + 1,
            "photo": 4,
            "speech": 100 + row,
            "speech_rate": 8000,
            "text": 5,
        }
    assert source.name(2).startswith("2.")
    assert source.columns["mel"][3] == "3.npy"
    assert [list(block) for block in source.texts("text")] == [["číslo"] * 4]
    assert source.texts("mel") is None
    assert {"pillow", "libsndfile"} <= source.versions.keys()


def test_columns_that_are_not_named_are_not_read(tmp_path: Path) -> None:
    rows = [saved(tmp_path, row) | {"photo": "gone.png", "offset": "nowhere"} for row in range(2)]
    source, report = opened(tmp_path, manifest(tmp_path, rows), columns={"mel": "array"})
    assert (report.samples, list(decoded(source, 0)), dict(source.versions)) == (2, ["mel"], {})


def test_many_are_decoded_at_once_if_they_are_small(tmp_path: Path) -> None:
    rows = [saved(tmp_path, row) for row in range(3)]
    columns = {"mel": "array", "speech": "audio", "label": "int32", "text": "text"}
    source, _ = opened(tmp_path, manifest(tmp_path, rows), columns=columns)
    found = source.decode_all([2, 0], list(source.read([2, 0])))
    assert ([len(mel) for mel in found["mel"]], found["label"].tolist()) == ([3, 1], [2, 0])
    np.save(tmp_path / "1.npy", np.zeros((2**22, 3), np.float32))
    source, _ = opened(tmp_path, manifest(tmp_path, rows), columns=columns)
    assert source.decode_all([0, 1], list(source.read([0, 1]))) is None
    assert source.decode_all([], []) is None


def test_paths_are_relative_to_the_manifest_and_absolute_ones_stay(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    row = saved(tmp_path / "sub", 1)
    manifest(tmp_path / "sub", [row, row | {"mel": str(tmp_path / "sub/1.npy"), "text": "other"}])
    source, report = opened(tmp_path, "sub/train.jsonl", columns={"mel": "array", "text": "text"})
    assert (report.samples, decoded(source, 1)["mel"].shape) == (2, (2, 3))


def test_images_are_resized(tmp_path: Path) -> None:
    rows = [saved(tmp_path, row) for row in range(2)]
    Image.new("RGB", (30, 20)).save(tmp_path / "1.png")
    columns = {"photo": "image", "label": "int32"}
    source, report = opened(tmp_path, manifest(tmp_path, rows), columns=columns, resize=[6, 8])
    assert (report.samples, source.fields[0].shape) == (2, (None, 8, 3))  # without other axes, its rows are its length
    assert decoded(source, 1)["photo"].shape == (6, 8, 3)


def test_columns_may_have_other_keys(tmp_path: Path) -> None:
    name = manifest(tmp_path, [saved(tmp_path, row) for row in range(2)], "train.csv")
    columns, rename = {"speech": "audio", "text": "text"}, {"audio": "speech"}
    source, _ = opened(tmp_path, name, columns=columns, rename=rename)
    assert list(decoded(source, 1)) == ["audio", "audio_rate", "text"]
    assert source.stamp() != ""
    before = source.stamp()
    soundfile.write(tmp_path / "1.wav", np.zeros(70), 8000)
    assert source.stamp() != before
    for wrong, got in (({"audio": "sound"}, '"sound", which `columns` lacks'), ({"text": "speech"}, "two columns of")):
        with pytest.raises(SettingsError, match=f"a key of its own for each column of `columns`, got {got}"):
            opened(tmp_path, name, columns=columns, rename=wrong)


# --- what is refused ---


@pytest.mark.parametrize(
    ("change", "reason", "detail"),
    [
        ({"mel": "gone.npy"}, "missing_file", "No such file"),
        ({"mel": ""}, "missing_column", 'expected a value for the column "mel", got none'),
        ({"photo": None}, "missing_column", 'expected a path in the column "photo", got none'),
        ({"photo": "a\0b"}, "missing_column", 'expected a path in the column "photo"'),
        ({"mel": "noise.npy"}, "undecodable", "expected an array of .npy or .npz, got "),
        ({"mel": "tensor.pt"}, "undecodable", "a pickle, as torch.save and pickle write it, which would run code"),
        ({"mel": "wide.npy"}, "other_array", "expected float32 [any, 3], as the first array is, got float32 [2, 4]"),
        ({"mel": "doubles.npy"}, "other_array", "expected float32 [any, 3], as the first array is, got float64 [2, 3]"),
        ({"mel": "pipe"}, "not_a_file", "expected a file, got something else"),
        ({"mel": "."}, "not_a_file", "expected a file, got something else"),
        ({"photo": "noise.npy"}, "undecodable", "expected JPEG, PNG or another image that Pillow reads"),
        (
            {"photo": "large.png"},
            "other_size",
            "Write resize = [4, 5] to have all images of one size, or any_size = true.",
        ),
        ({"speech": "noise.npy"}, "undecodable", "expected WAV, FLAC, OGG or MP3"),
        ({"label": 1.5}, "wrong_type", 'expected int32, got "1.5"'),
        ({"label": 2**40}, "wrong_type", f'expected int32, got "{2**40}"'),
        ({"score": "high"}, "wrong_type", 'expected float32, got "high"'),
        ({}, "duplicate", "expected each row once"),
    ],
)
def test_a_row_that_cannot_be_used_is_a_bad_one(tmp_path: Path, change: Any, reason: str, detail: str) -> None:
    first = saved(tmp_path, 0)
    np.save(tmp_path / "wide.npy", np.zeros((2, 4), np.float32))
    np.save(tmp_path / "doubles.npy", np.zeros((2, 3)))
    Image.new("RGB", (9, 9)).save(tmp_path / "large.png")
    (tmp_path / "noise.npy").write_bytes(b"neither this nor that")
    (tmp_path / "tensor.pt").write_bytes(b"\x80\x02.")
    os.mkfifo(tmp_path / "pipe")
    _, report = opened(tmp_path, manifest(tmp_path, [first, first | change]))
    (bad,) = report.bad
    assert (bad.line, bad.reason, report.samples) == (2, reason, 1)
    assert detail in bad.detail


def test_a_column_of_pickles_is_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "a.pt").write_bytes(b"\x80\x02.")
    with pytest.raises(DataError, match=r'in the column "mel", as array, got .*a pickle, as torch.save.* run code'):
        opened(tmp_path, manifest(tmp_path, [{"mel": "a.pt"}]), columns={"mel": "array"})


def test_an_array_of_a_dtype_that_no_batch_has_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array(["text"]))
    with pytest.raises(DataError, match=r'in the column "mel", as array, got <U4'):
        opened(tmp_path, manifest(tmp_path, [{"mel": "a.npy"}]), columns={"mel": "array"})


def test_a_column_that_the_manifest_lacks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match='expected a column "f0", as `columns` says, got the columns mel, photo'):
        opened(tmp_path, manifest(tmp_path, [saved(tmp_path, 0)]), columns={"mel": "array", "f0": "array"})


def test_columns_without_a_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match='one of them "array", "image" or "audio", got 1: label = int32'):
        opened(tmp_path, manifest(tmp_path, [saved(tmp_path, 0)]), columns={"label": "int32"})


def test_what_a_column_becomes_has_to_be_known(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r'"array", "image", "audio", "text", "int32".*perhaps "array"'):
        opened(tmp_path, manifest(tmp_path, [saved(tmp_path, 0)]), columns={"mel": "arrays"})


def test_an_archive_of_one_array_will_do(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", np.arange(4))
    np.savez(tmp_path / "b.npz", a=np.arange(4), b=np.arange(4))
    rows = [{"mel": "a.npz"}, {"mel": "b.npz"}]
    source, report = opened(tmp_path, manifest(tmp_path, rows), columns={"mel": "array"})
    assert decoded(source, 0)["mel"].tolist() == [0, 1, 2, 3]
    assert "an archive of a, b, of which it needs one array" in report.bad[0].detail


def test_a_number_may_be_a_file(tmp_path: Path) -> None:
    for row in range(2):
        np.save(tmp_path / f"{row}.npy", np.float32(row + 0.5))
        np.save(tmp_path / f"{row}_mel.npy", np.zeros(row + 1))
    rows = [{"mel": f"{row}_mel.npy", "target": f"{row}.npy"} for row in range(2)]
    source, _ = opened(tmp_path, manifest(tmp_path, rows), columns={"mel": "array", "target": "array"})
    assert source.fields[1] == Field(key="target", dtype="float32", shape=())
    assert (decoded(source, 1)["target"], decoded(source, 1)["target"].dtype) == (1.5, "float32")


def test_a_large_array_is_known_by_its_header(tmp_path: Path) -> None:
    """Its values are not read while indexing: the file's middle may be anything."""
    np.save(tmp_path / "a.npy", np.zeros((2**20, 2), np.float32))
    source, report = opened(tmp_path, manifest(tmp_path, [{"mel": "a.npy"}]), columns={"mel": "array"})
    assert (report.samples, source.lengths["mel"].tolist()) == (1, [2**20])


def test_an_array_above_the_largest_sample_is_a_bad_row(tmp_path: Path) -> None:
    first = saved(tmp_path, 0)
    np.save(tmp_path / "huge.npy", np.zeros((2**19, 3), np.float32))
    manifest(tmp_path, [first, first | {"mel": "huge.npy"}])
    (tmp_path / "job.toml").write_text(
        '[job]\nname = "x"\nlargest_sample = "1 MB"\nmax_bad = 0.9\n[streams.train]\nsource = "files"\n'
        'paths = ["train.jsonl"]\ncolumns = { mel = "array" }\nlength = "mel"\nbudget = "20 steps"\n'
    )
    assert index_streams(JobFile(tmp_path / "job.toml"), ["train"])["train"].bad_counts == {"over_largest_sample": 1}


def test_features_become_batches(tmp_path: Path) -> None:
    manifest(tmp_path, [saved(tmp_path, row) for row in range(5)])
    (tmp_path / "job.toml").write_text(
        '[job]\nname = "x"\n[streams.train]\nsource = "files"\npaths = ["train.jsonl"]\n'
        'columns = { mel = "array", label = "int64", text = "text" }\n'
        'transforms = ["characters"]\nlength = "mel"\nbudget = "20 steps"\n'
        '[streams.train.characters]\nunknown = "drop"\n'
    )
    job = JobFile(tmp_path / "job.toml")
    index_streams(job, ["train"])
    assert {field.key for field in Stream(job, "train").chain.fields} == {"mel", "label", "text"}


# --- files that change ---


def test_a_file_that_changed_is_refused(tmp_path: Path) -> None:
    source, _ = opened(tmp_path, manifest(tmp_path, [saved(tmp_path, row) for row in range(2)]))
    np.save(tmp_path / "1.npy", np.ones((2, 3), np.float32))
    assert len(list(source.read([0]))) == 1
    with pytest.raises(ReadError, match=r"1\.npy \(.*train.jsonl, line 2\): expected the file that was indexed"):
        list(source.read([1]))
    with pytest.raises(ReadError, match="with other bytes, changed since"):
        source.look_for_changes(10)


def test_a_manifest_that_changed_is_refused(tmp_path: Path) -> None:
    rows = [saved(tmp_path, row) for row in range(2)]
    spec = spec_of("files", tmp_path, paths=[manifest(tmp_path, rows)], columns={"mel": "array"})
    index_source(spec)
    manifest(tmp_path, rows[:1])
    with pytest.raises(DataError, match="manifest"):
        open_source(spec)


def test_all_files_are_counted(tmp_path: Path) -> None:
    source, _ = opened(tmp_path, manifest(tmp_path, [saved(tmp_path, row) for row in range(3)]))
    files = source.indexed_files()
    names = sorted(files.file_at(number)[0].rpartition("/")[2] for number in range(files.count))
    assert names == sorted(f"{row}.{suffix}" for row in range(3) for suffix in ("npy", "png", "wav"))


def test_a_truncated_picture_is_a_bad_sample_and_not_an_end(tmp_path: Path) -> None:
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)).save(file, format="jpeg")
    (tmp_path / "whole.jpg").write_bytes(file.getvalue())
    (tmp_path / "cut.jpg").write_bytes(file.getvalue()[:-900])
    rows = [{"photo": "whole.jpg"}, {"photo": "cut.jpg"}]
    source, report = opened(tmp_path, manifest(tmp_path, rows), columns={"photo": "image"})
    assert report.samples == 2  # its header is whole
    with pytest.raises(Exception, match=r"expected JPEG, PNG or another image that Pillow reads, got .*[Tt]runcated"):
        decoded(source, 1)
