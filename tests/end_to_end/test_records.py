"""The same samples in files of records of each format, a stream each: each comes through whole, once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

import trainer_client
from tests.support.example_protos import example
from tests.support.loaders import running
from tests.support.prepared import prepare, spoken_example
from tests.support.records import write_array_records, write_records
from tests.support.shards import npy, write_shard

if TYPE_CHECKING:
    from pathlib import Path

FORMATS = {
    "tfrecord": 'paths = ["*.tfrecord"]',
    "webdataset": 'paths = ["*.tar"]',
    "array_record": 'paths = ["*.array_record"]',
    "tfds": 'folder = "tiny/1.0.0"\nsplit = "train"\nkeys = ["audio", "label"]',
}
JOB = '[job]\nname = "records"\nlisten = "tcp://127.0.0.1:*"\n'
STREAM = '[streams.{0}]\nsource = "{0}"\n{1}\nlength = "audio"\nbudget = "30 steps"\nshapes = 2\n'
NUMBERS = range(1, 10)


def write_all(folder: Path) -> None:
    examples = [example(audio=[float(n)] * n, label=n) for n in NUMBERS]
    write_records(folder / "a.tfrecord", examples)
    write_array_records(folder / "a.array_record", examples)
    members = ([(f"{n}.audio.npy", npy(np.full(n, n, np.float32))), (f"{n}.label.cls", b"%d" % n)] for n in NUMBERS)
    write_shard(folder / "a.tar", (member for sample in members for member in sample))
    prepare(folder / "tiny" / "1.0.0", [map(spoken_example, NUMBERS)])
    streams = (STREAM.format(name, said) for name, said in FORMATS.items())
    (folder / "job.toml").write_text(JOB + "".join(streams))


def test_records_of_each_format_are_trained_on(tmp_path: Path) -> None:
    write_all(tmp_path)
    with running(tmp_path / "job.toml") as loaders:
        for name in FORMATS:
            assert samples_of(loaders.endpoint, name) == {n: [n] * n for n in NUMBERS}
    assert (tmp_path / ".stoker/records/quarantine.jsonl").read_text() == ""


def samples_of(endpoint: str, stream: str) -> dict[int, list[float]]:
    """What an epoch holds, by label."""
    seen: dict[int, list[float]] = {}
    with trainer_client.connect(endpoint, stream=stream) as feed:
        for batch in feed:
            for row in np.flatnonzero(batch["weight"]):
                assert int(batch["label"][row]) not in seen
                seen[int(batch["label"][row])] = batch["audio"][row, : batch["audio_length"][row]].tolist()
    return seen
