"""Paths that lead to pipes, devices and folders, and files with absurd forms: refused at once, with a short sentence.

Nobody writes into the pipes, so whoever opens one and waits hangs.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from loader_server.cli import main

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

JOB = '[job]\nname = "j"\n[streams.train]\n{}\nbudget = "300 steps"\n'
TEXT = 'source = "lines"\npaths = ["a.txt"]\ntransforms = ["characters"]\nlength = "text"'
LONGEST = 1000


def index(folder: Path, stream: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    (folder / "a.txt").write_text("one\ntwo\nthree\n")
    (folder / "job.toml").write_text(JOB.format(stream))
    with pytest.raises(SystemExit) as ended:
        main(["index", str(folder / "job.toml")])
    return int(str(ended.value.code)), capsys.readouterr().err


def assert_is_a_sentence(code: int, said: str) -> None:
    assert code in (1, 2), said[:LONGEST]
    assert len(said) < LONGEST, said[:LONGEST]
    assert said.startswith("loader-server: ")
    assert said.count("\n") == 1


#: What reads the file or folder "odd".
READERS = {
    "manifest": 'source = "manifest"\npaths = ["odd"]\nlength = "audio"',
    "manifest in CSV": 'source = "manifest"\npaths = ["odd.csv"]\nlength = "audio"',
    "manifest in JSON": 'source = "manifest"\npaths = ["odd.jsonl"]\nlength = "audio"',
    "files": 'source = "files"\npaths = ["odd.csv"]\ncolumns = { a = "array" }\nlength = "a"',
    "lines": TEXT.replace("a.txt", "odd"),
    "parallel": TEXT.replace("lines", "parallel").replace('["a.txt"]', '{ text = "a.txt", b = "odd" }'),
    "jsonl": TEXT.replace("lines", "jsonl").replace("a.txt", "odd.jsonl"),
    "tfrecord": 'source = "tfrecord"\npaths = ["odd"]\nlength = "x"',
    "array_record": 'source = "array_record"\npaths = ["odd"]\nlength = "x"',
    "webdataset": 'source = "webdataset"\npaths = ["odd"]\nlength = "npy"',
    "parquet": 'source = "parquet"\npaths = ["odd"]\nlength = "tokens"',
    "arrow": 'source = "arrow"\npaths = ["odd"]\nlength = "tokens"',
    "hdf5": 'source = "hdf5"\npaths = ["odd"]\nlength = "audio"',
    "numpy": 'source = "numpy"\npaths = ["odd.npy"]\nlength = "a"',
    "numpy in an archive": 'source = "numpy"\npaths = ["odd.npz"]\nlength = "a"',
    "kaldi": 'source = "kaldi"\npaths = ["odd"]\nlength = "audio"',
    "lhotse": 'source = "lhotse"\npaths = ["odd.jsonl"]\nlength = "audio"',
    "lhotse in gzip": 'source = "lhotse"\npaths = ["odd.jsonl.gz"]\nlength = "audio"',
    "tfds": 'source = "tfds"\nfolder = "odd"\nsplit = "train"\nlength = "audio"',
    "a statistics file": 'source = "manifest"\npaths = ["good.csv"]\nlength = "audio"\n'
    'transforms = ["logmel", "normalise"]\n[streams.train.normalise]\nstatistics = "odd"',
    "a tokenizer": TEXT.replace("characters", "tokenizers") + '\n[streams.train.tokenizers]\nfile = "odd"',
    "a model": TEXT.replace("characters", "sentencepiece") + '\n[streams.train.sentencepiece]\nmodel = "odd"',
}  # fmt: skip

MAKERS: dict[str, Callable[[Path], object]] = {
    "a pipe": os.mkfifo,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "memory of the kernel's": lambda path: path.symlink_to("/proc/self/mem"),
    "a link to itself": lambda path: path.symlink_to(path),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("name", READERS)
def test_what_is_no_file_is_refused(name: str, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for odd in ("odd", "odd.csv", "odd.jsonl", "odd.jsonl.gz", "odd.npy", "odd.npz"):
        MAKERS[kind](tmp_path / odd)
    (tmp_path / "good.csv").write_text("audio\nnone.wav\n")
    assert_is_a_sentence(*index(tmp_path, READERS[name], capsys))


#: Files of a folder of which one is a pipe.
FOLDERS: dict[str, tuple[str, str, str]] = {
    "a recording table": ("kaldi", "wav.scp", 'paths = ["data"]\nlength = "audio"'),
    "a table of texts": ("kaldi", "text", 'paths = ["data"]\nlength = "audio"'),
    "a table of segments": ("kaldi", "segments", 'paths = ["data"]\nlength = "audio"'),
    "a table of features": ("kaldi", "feats.scp", 'paths = ["data"]\nvalues = "features"\nlength = "features"'),
    "a file of lines": ("lines", "x.txt", 'paths = ["data/*"]\ntransforms = ["characters"]\nlength = "text"'),
    "a shard": ("webdataset", "x.tar", 'paths = ["data"]\nlength = "npy"'),
    "a part": ("parquet", "x.parquet", 'paths = ["data"]\nlength = "tokens"'),
    "a state": ("arrow", "state.json", 'paths = ["data"]\nlength = "tokens"'),
    "what a data set says of itself": ("tfds", "dataset_info.json", 'folder = "data"\nsplit = "train"\nlength = "a"'),
    "its features": ("tfds", "features.json", 'folder = "data"\nsplit = "train"\nlength = "a"'),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", FOLDERS)
def test_a_pipe_in_a_folder_is_refused(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, odd, settings = FOLDERS[name]
    (tmp_path / "data").mkdir()
    if source == "kaldi" and odd != "wav.scp":
        (tmp_path / "data/wav.scp").write_text("a a.wav\n")
    if odd == "features.json":
        (tmp_path / "data/dataset_info.json").write_text("{}")
    os.mkfifo(tmp_path / "data" / odd)
    assert_is_a_sentence(*index(tmp_path, f'source = "{source}"\n{settings}', capsys))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["a pipe", "a device", "a link to itself"])
def test_a_job_file_that_is_none_is_refused(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    MAKERS[kind](tmp_path / "odd.toml")
    with pytest.raises(SystemExit) as ended:
        main(["index", str(tmp_path / "odd.toml")])
    assert_is_a_sentence(int(str(ended.value.code)), capsys.readouterr().err)


CSV = 'source = "manifest"\npaths = ["a.csv"]\nlength = "audio"'

MANIFESTS: dict[str, tuple[str, str]] = {
    "200 000 columns": (",".join(f"c{n}" for n in range(200_000)), "expected at most 1000 columns, got 200000"),
    "200 000 columns with one of audio": (
        ",".join(["audio", *(f"c{n}" for n in range(200_000))]) + "\n",
        "expected at most 1000 columns, got 200001",
    ),
    "999 columns without audio": (",".join(f"c{n}" for n in range(999)), "got the columns c0, c1, "),
    "a column of a long name": ("x" * 100_000, "got the columns xxx"),
    "a column of a name that is too long": ("x" * 200_000, "expected a first line with the columns, got field larger"),
    "a quote without end": ('audio,"' + "x" * 200_000, "expected a first line with the columns, got field larger"),
    "only commas": ("," * 200_000, "got the columns"),
    "nothing but line ends": ("\n" * 100_000, "got no columns"),
    "a NUL": ("\0", "expected"),
}


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_of_an_absurd_form(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content, expected = MANIFESTS[name]
    (tmp_path / "a.csv").write_text(content)
    code, said = index(tmp_path, CSV, capsys)
    assert_is_a_sentence(code, said)
    assert expected in said


def test_objects_of_very_many_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = ",".join(f'"c{n}":1' for n in range(200_000))
    (tmp_path / "a.jsonl").write_text('{"audio":"a.wav",' + keys + "}\n")
    code, said = index(tmp_path, CSV.replace("csv", "jsonl"), capsys)
    assert_is_a_sentence(code, said)
    assert "expected at most 1000 columns, got 200001" in said


def test_text_of_very_many_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = ",".join(f'"c{n}":"x"' for n in range(50_000))
    (tmp_path / "a.jsonl").write_text('{"text":"x",' + keys + "}\n")
    code, said = index(tmp_path, TEXT.replace("lines", "jsonl").replace("a.txt", "a.jsonl"), capsys)
    assert_is_a_sentence(code, said)
    assert "at most 2000 facts each, got 50" in said
