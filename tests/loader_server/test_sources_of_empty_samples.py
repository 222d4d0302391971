"""Samples of length 0 that `min_length = 0` keeps, from files of each format that can hold them."""

from __future__ import annotations

import io
import json
import tarfile
from typing import TYPE_CHECKING

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import loader_server
from loader_server.commands.index import index_missing
from loader_server.job_file import JobFile

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ROWS = [[1, 2, 3], [], [4], [], [5, 6]]
ARRAYS = [np.array(row, np.int32) for row in ROWS]
TABLE = pa.table({"x": pa.array(ROWS, pa.list_(pa.int32()))})


def parquet(folder: Path) -> None:
    pq.write_table(TABLE, folder / "a.parquet")


def arrow(folder: Path) -> None:
    with pa.OSFile(str(folder / "a.arrow"), "wb") as file, pa.ipc.new_file(file, TABLE.schema) as writer:
        writer.write_table(TABLE)


def jsonl(folder: Path) -> None:
    (folder / "a.jsonl").write_text("".join(json.dumps({"x": row}) + "\n" for row in ROWS))


def webdataset(folder: Path) -> None:
    with tarfile.open(folder / "a.tar", "w") as shard:
        for number, array in enumerate(ARRAYS):
            content = io.BytesIO()
            np.save(content, array)
            member = tarfile.TarInfo(f"{number:03}.x.npy")
            member.size = len(content.getvalue())
            shard.addfile(member, io.BytesIO(content.getvalue()))


def files(folder: Path) -> None:
    for number, array in enumerate(ARRAYS):
        np.save(folder / f"{number}.npy", array)
    (folder / "a.csv").write_text("x\n" + "".join(f"{number}.npy\n" for number in range(len(ROWS))))


def hdf5(folder: Path) -> None:
    with h5py.File(folder / "a.h5", "w") as file:
        dataset = file.create_dataset("x", (len(ROWS),), h5py.vlen_dtype(np.int32))
        for number, array in enumerate(ARRAYS):
            dataset[number] = array


@pytest.mark.parametrize(
    ("write", "setting"),
    [
        (parquet, 'paths = ["a.parquet"]'),
        (arrow, 'paths = ["a.arrow"]'),
        (jsonl, 'paths = ["a.jsonl"]'),
        (webdataset, 'paths = ["a.tar"]'),
        (files, 'paths = ["a.csv"]\ncolumns = { x = "array" }'),
        (hdf5, 'paths = ["a.h5"]'),
    ],
)
@pytest.mark.parametrize("size", ["rows = 2", 'budget = "6 steps"'])
def test_each_sample_comes_as_it_is(tmp_path: Path, write: Callable[[Path], None], setting: str, size: str) -> None:
    write(tmp_path)
    path = tmp_path / "job.toml"
    path.write_text(
        f'[job]\nname = "x"\n[streams.train]\nsource = "{write.__name__}"\n{setting}\nlength = "x"\n'
        f"min_length = 0\n{size}\n"
    )
    index_missing(JobFile(path))
    stream, found = loader_server.open(path).stream("train"), dict[int, list[int]]()
    for number in range(stream.batches()):
        batch = stream.batch(number)
        for row, tag in enumerate(batch["tag"].tolist()):
            if tag >= 0:
                assert batch["weight"][row] == 1
                found[tag] = batch["x"][row][: batch["x_length"][row]].tolist()
    assert found == dict(enumerate(ROWS))
