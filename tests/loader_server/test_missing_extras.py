"""On a machine that lacks an extra, each command that needs it says which, before anything is made."""

from __future__ import annotations

from typing import TYPE_CHECKING

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from shared.extras import pip_install
from tests.support.corpora import make_corpus
from tests.support.example_protos import example
from tests.support.prepared import prepare, spoken_example
from tests.support.records import write_array_records, write_records
from tests.support.without_package import run_without

if TYPE_CHECKING:
    from pathlib import Path

BATCHING = 'length = "{}"\nbudget = "9 steps"\n'
TEXT = 'source = "lines"\npaths = ["{}"]\ntransforms = ["characters"]\n' + BATCHING.format("text")
RECORDINGS = 'source = "manifest"\npaths = ["csv.csv"]\n{}\n' + BATCHING.format("audio")


def files(source: str, more: str = "") -> str:
    """A stream of files that a source reads."""
    return f'source = "{source}"\npaths = ["a.{source}"]\n{more}\n{BATCHING.format("x")}'


#: What lacks, the extra that has it, the command, and the stream of the job file.
CASES = (
    ("h5py", "hdf5", "index", files("hdf5")),
    ("isal", "hdf5", "index", files("hdf5")),
    ("pyarrow", "parquet", "index", files("parquet")),
    ("pyarrow.parquet", "parquet", "index", files("arrow")),
    ("PIL.Image", "images", "index", files("parquet").replace("a.parquet", "images.parquet")),
    ("array_record", "array_record", "index", files("array_record")),
    ("google_crc32c", "tfrecord", "index", files("tfrecord", "checksums = true")),
    (
        "tensorflow_datasets",
        "tfds",
        "index",
        'source = "tfds"\nfolder = "tiny"\nsplit = "train"\n' + BATCHING.format("audio"),
    ),
    ("fsspec", "remote", "index", TEXT.format("s3://x/a.txt")),
    ("s3fs", "remote", "index", TEXT.format("s3://x/a.txt")),
    ("aiohttp", "remote", "index", TEXT.format("http://127.0.0.1:1/a.txt")),
    ("soundfile", "loader", "index", RECORDINGS.format("")),
    ("soxr", "loader", "index", RECORDINGS.format('transforms = ["waveform"]')),
    ("setproctitle", "loader", "run", files("tfrecord")),
)


def test_each_extra_is_named_where_it_lacks(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file.create_dataset("x", data=np.ones((3, 3)), chunks=(1, 3), compression="gzip")
    write_array_records(tmp_path / "a.array_record", [example(x=[1.0])])
    write_records(tmp_path / "a.tfrecord", [example(x=[1.0])])
    prepare(tmp_path / "tiny", [map(spoken_example, range(3))])
    make_corpus(tmp_path, samples=3)
    # A GIF's first bytes; what follows is never read without the library.
    pq.write_table(pa.table({"x": [{"bytes": b"GIF89a", "path": None}]}), tmp_path / "images.parquet")
    commands = []
    for number, (package, _, command, stream) in enumerate(CASES):
        job = tmp_path / f"{number}.toml"
        job.write_text(f'[job]\nname = "j"\n[streams.train]\n{stream}')
        commands.append((package, command, str(job)))
    before = set(tmp_path.rglob("*"))
    for (_, extra, *_), (code, said) in zip(CASES, run_without(commands), strict=True):
        assert (code, said[:15]) == (1, "loader-server: "), said
        assert f"Run `{pip_install(extra)}`" in said, said
    assert {path.name for path in set(tmp_path.rglob("*")) - before} <= {".stoker", "j"}


def test_a_stream_that_is_not_asked_for_needs_no_package_of_its_own(tmp_path: Path) -> None:
    make_corpus(tmp_path, samples=3)
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    others = {"pyarrow": files("parquet"), "h5py": files("hdf5"), "soundfile": RECORDINGS.format("")}
    commands = []
    for package, stream in others.items():
        job = tmp_path / f"{package}.toml"
        job.write_text(f'[job]\nname = "{package}"\n[streams.train]\n{TEXT.format("a.txt")}[streams.other]\n{stream}')
        commands.append((package, "index", "--stream", "train", str(job)))
        commands.append((package, "index", str(job)))
    answers = run_without(commands)
    for code, said in answers[::2]:
        assert code == 0, said
    for code, said in answers[1::2]:
        assert code == 1, said
        assert "train: unchanged, 2 samples of 2 rows" in said, "it says what has an index"
        assert "other: not indexed, see the error below" in said
