"""ArrayRecord files of Examples with a ragged list of floats (1 000 on average), beside Grain.

Rules: all sides shuffle, parse, pad, and leave arrays that can be used; the peer parses by the protobuf runtime, whose
parser is written in C, and pads each batch by numpy.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from loader_server.commands.index import index_streams
from loader_server.job_file import JobFile
from tests.benchmarks.sources.ragged_examples import ragged_examples
from tests.benchmarks.sources.row import interleaved, measured, stoker
from tests.support.example_protos import Example
from tests.support.records import write_array_records

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.benchmarks.sources.row import Pass, Row

__all__ = ["rows"]

_FILES, _RECORDS, _BATCH = 4, 1000, 64

_JOB = """
[job]
name = "records"

[streams.train]
source = "array_record"
paths = ["*.array_record"]
features = { audio = "float32 [any]", label = "int64" }
length = "audio"
budget = "64000 steps"
"""


def rows(folder: Path, rounds: int) -> list[Row]:
    """A worker and a trainer, and Grain in process."""
    for number in range(_FILES):
        write_array_records(folder / f"{number}.array_record", ragged_examples(number, _RECORDS))
    (folder / "job.toml").write_text(_JOB)
    index_streams(JobFile(folder / "job.toml"), ["train"], processes=1)
    with stoker(folder / "job.toml") as epoch:
        return interleaved("array_record", {"stoker": epoch, "grain": functools.partial(_grain, folder)}, rounds)


def _grain(folder: Path) -> Pass:
    import grain  # a peer that need not be there

    paths = sorted(str(path) for path in folder.glob("*.array_record"))
    data = grain.MapDataset.source(grain.sources.ArrayRecordDataSource(paths)).shuffle(seed=7).map(_parsed)
    batches = data.to_iter_dataset(grain.ReadOptions(num_threads=0)).batch(_BATCH, batch_fn=_padded)
    return measured(len(batch["label"]) for batch in batches)


def _parsed(raw: bytes) -> dict[str, Any]:
    feature = Example.FromString(raw).features.feature
    audio = np.array(feature["audio"].float_list.value, np.float32)
    return {"audio": audio, "label": np.int64(feature["label"].int64_list.value[0])}


def _padded(samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
    made = np.zeros((len(samples), max(len(sample["audio"]) for sample in samples)), np.float32)
    for row, sample in enumerate(samples):
        made[row, : len(sample["audio"])] = sample["audio"]
    return {"audio": made, "label": np.array([sample["label"] for sample in samples])}
