"""TFRecords of Examples with a ragged list of floats (1 000 on average), a number, and a text that nobody asks for,
beside `tf.data`.

Rules: all sides shuffle, pad and leave the same two arrays; `tf.data` has one thread for its work. The first peer
parses record by record, as most people write it, the second whole batches.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from loader_server.commands.index import index_streams
from loader_server.job_file import JobFile
from tests.benchmarks.sources.ragged_examples import ragged_examples
from tests.benchmarks.sources.row import interleaved, measured, stoker
from tests.support.records import write_records

if TYPE_CHECKING:
    from pathlib import Path

    from tests.benchmarks.sources.row import Pass, Row

__all__ = ["rows"]

_FILES, _RECORDS, _BATCH = 8, 4000, 64

_JOB = """
[job]
name = "records"

[streams.train]
source = "tfrecord"
paths = ["*.tfrecord"]
features = { audio = "float32 [any]", label = "int64" }
length = "audio"
budget = "64000 steps"
"""


def rows(folder: Path, rounds: int) -> list[Row]:
    """A worker and a trainer, and `tf.data` in process."""
    for number in range(_FILES):
        write_records(folder / f"{number}.tfrecord", ragged_examples(number, _RECORDS, {"words": b"what was said"}))
    (folder / "job.toml").write_text(_JOB)
    index_streams(JobFile(folder / "job.toml"), ["train"], processes=1)
    with stoker(folder / "job.toml") as epoch:
        sides = {
            "stoker": epoch,
            "tf.data, parse_single_example": functools.partial(_by_record, folder),
            "tf.data, parse_example": functools.partial(_by_batch, folder),
        }
        return interleaved("tfrecord", sides, rounds)


def _by_record(folder: Path) -> Pass:
    import tensorflow as tf  # a peer that need not be there

    features = {**_label(tf), "audio": tf.io.FixedLenSequenceFeature([], tf.float32, allow_missing=True)}
    return _pass(_shuffled(tf, folder).map(lambda raw: tf.io.parse_single_example(raw, features)).padded_batch(_BATCH))


def _by_batch(folder: Path) -> Pass:
    import tensorflow as tf  # a peer that need not be there

    features = {**_label(tf), "audio": tf.io.RaggedFeature(tf.float32)}

    def parse(raw: Any) -> Any:
        parsed = tf.io.parse_example(raw, features)
        return {**parsed, "audio": parsed["audio"].to_tensor()}

    return _pass(_shuffled(tf, folder).batch(_BATCH).map(parse))


def _label(tf: Any) -> dict[str, Any]:
    return {"label": tf.io.FixedLenFeature([], tf.int64)}


def _shuffled(tf: Any, folder: Path) -> Any:
    options = tf.data.Options()
    options.threading.private_threadpool_size = 1
    files = sorted(str(path) for path in folder.glob("*.tfrecord"))
    return tf.data.TFRecordDataset(files).with_options(options).shuffle(2048)


def _pass(dataset: Any) -> Pass:
    return measured(int(batch["label"].shape[0]) for batch in dataset.prefetch(1))
