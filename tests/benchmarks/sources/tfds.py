"""A data set that TensorFlow Datasets prepared in ArrayRecord files, with a ragged list of floats (1 000 on average)
and others, beside the library's own data source.

Rules: all sides shuffle, decode all features, pad, and leave arrays that can be used; the peer is read in process, and
pads each batch by numpy.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from loader_server.commands.index import index_streams
from loader_server.job_file import JobFile
from tests.benchmarks.sources.row import interleaved, measured, stoker
from tests.support.example_protos import example
from tests.support.prepared import prepare

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.benchmarks.sources.row import Pass, Row

__all__ = ["rows"]

_SHARDS, _RECORDS, _BATCH = 4, 500, 64

_JOB = """
[job]
name = "prepared"

[streams.train]
source = "tfds"
folder = "tiny/1.0.0"
split = "train"
length = "audio"
budget = "64000 steps"
"""


def rows(folder: Path, rounds: int) -> list[Row]:
    """A worker and a trainer, and the library's data source."""
    prepare(folder / "tiny/1.0.0", map(_records, range(_SHARDS)))
    (folder / "job.toml").write_text(_JOB)
    index_streams(JobFile(folder / "job.toml"), ["train"], processes=1)
    with stoker(folder / "job.toml") as epoch:
        sides = {"stoker": epoch, "tfds data source": functools.partial(_data_source, folder / "tiny/1.0.0")}
        return interleaved("tfds", sides, rounds)


def _records(shard: int) -> Iterator[bytes]:
    random = np.random.default_rng(shard)
    for number in range(_RECORDS):
        audio = random.random(random.integers(200, 1800), np.float32).tolist()
        yield example(audio=audio, label=number % 10, **{"speaker/age": 30}, text="one", tokens=[1, 2])


def _data_source(folder: Path) -> Pass:
    import tensorflow_datasets as tfds  # a peer that need not be there

    return measured(_batches(tfds.builder_from_directory(str(folder)).as_data_source(split="train")))


def _batches(source: Any) -> Iterator[int]:
    order = np.random.default_rng(7).permutation(len(source))
    for start in range(0, len(order), _BATCH):
        samples = [source[int(place)] for place in order[start : start + _BATCH]]
        padded = np.zeros((len(samples), max(len(sample["audio"]) for sample in samples)), np.float32)
        for row, sample in enumerate(samples):
            padded[row, : len(sample["audio"])] = sample["audio"]
        labels = np.array([sample["label"] for sample in samples])
        yield len(labels)
