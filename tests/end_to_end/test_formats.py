"""The same samples in files of each format, written by the format's own library, a stream each in one job: each comes
through whole, once, and a model is fit on them.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import trainer_client
from tests.loader_server.sources.speech.kaldi_data import table, write_features
from tests.support.example_protos import example
from tests.support.loaders import running
from tests.support.prepared import prepare, spoken_example
from tests.support.records import write_array_records, write_records
from tests.support.shards import npy, write_shard

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.loaders import Loaders

#: What each stream says, and what its samples call the values and the number; Kaldi has that as a speaker's name.
FORMATS = {
    "tfrecord": ('paths = ["*.tfrecord"]', "audio", "label"),
    "webdataset": ('paths = ["*.tar"]', "audio", "label"),
    "array_record": ('paths = ["*.array_record"]', "audio", "label"),
    "tfds": ('folder = "tiny/1.0.0"\nsplit = "train"\nkeys = ["audio", "label"]', "audio", "label"),
    "jsonl": ('paths = ["a.jsonl"]', "audio", "label"),
    "parquet": ('paths = ["a.parquet"]', "audio", "label"),
    "arrow": ('paths = ["saved"]', "audio", "label"),
    "numpy": ('paths = ["arrays.npz"]', "audio", "label"),
    "hdf5": ('paths = ["a.h5"]', "audio", "label"),
    "files": ('paths = ["files.jsonl"]\ncolumns = { audio = "array", label = "int32" }', "audio", "label"),
    "kaldi": ('paths = ["data"]\nvalues = "features"', "features", ""),
}
JOB = '[job]\nname = "formats"\nlisten = "tcp://127.0.0.1:*"\n'
STREAM = '[streams.{0}]\nsource = "{0}"\n{1}\nlength = "{2}"\nbudget = "30 steps"\nshapes = 2\n'
NUMBERS = range(1, 10)
VALUES = [np.full(n, n, np.float32) for n in NUMBERS]


def write_records_of_each_kind(folder: Path) -> None:
    examples = [example(audio=[float(n)] * n, label=n) for n in NUMBERS]
    write_records(folder / "a.tfrecord", examples)
    write_array_records(folder / "a.array_record", examples)
    members = ([(f"{n}.audio.npy", npy(np.full(n, n, np.float32))), (f"{n}.label.cls", b"%d" % n)] for n in NUMBERS)
    write_shard(folder / "a.tar", (member for sample in members for member in sample))
    prepare(folder / "tiny" / "1.0.0", [map(spoken_example, NUMBERS)])
    rows = ({"audio": one.tolist(), "label": n} for n, one in zip(NUMBERS, VALUES, strict=True))
    (folder / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))


def write_columns_of_each_kind(folder: Path) -> None:
    columns = pa.table({"audio": pa.array(VALUES, pa.list_(pa.float32())), "label": pa.array(NUMBERS, pa.int32())})
    pq.write_table(columns, folder / "a.parquet", row_group_size=4)
    (folder / "saved").mkdir()  # as save_to_disk leaves a data set
    with pa.ipc.new_stream(folder / "saved/data-00000-of-00001.arrow", columns.schema) as stream:
        stream.write_table(columns, max_chunksize=4)
    state = {"_data_files": [{"filename": "data-00000-of-00001.arrow"}], "_format_type": None, "_split": "train"}
    (folder / "saved/state.json").write_text(json.dumps(state))
    arrays = {
        "audio_values": np.concatenate(VALUES),
        "audio_offsets": np.cumsum([0, *NUMBERS]),
        "label": np.array(NUMBERS),
    }
    np.savez(folder / "arrays.npz", **arrays)
    with h5py.File(folder / "a.h5", "w") as file:
        for name, array in arrays.items():
            file[name] = array


def write_a_file_for_each_sample(folder: Path) -> None:
    for number, values in zip(NUMBERS, VALUES, strict=True):
        np.save(folder / f"{number}.npy", values)
    rows = ({"audio": f"{number}.npy", "label": number} for number in NUMBERS)
    (folder / "files.jsonl").write_text("\n".join(map(json.dumps, rows)))


def write_folder_of_kaldi(folder: Path) -> None:
    write_features(folder / "data", {f"u{n}": one for n, one in zip(NUMBERS, VALUES, strict=True)})
    table(folder / "data", "text", *(f"u{n} {n}" for n in NUMBERS))


@pytest.fixture(scope="module")
def loaders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loaders]:
    folder = tmp_path_factory.mktemp("formats")
    write_records_of_each_kind(folder)
    write_columns_of_each_kind(folder)
    write_folder_of_kaldi(folder)
    write_a_file_for_each_sample(folder)
    streams = (STREAM.format(name, said, length) for name, (said, length, _) in FORMATS.items())
    (folder / "job.toml").write_text(JOB + "".join(streams))
    with running(folder / "job.toml", workers=1) as loaders:
        yield loaders
    assert (folder / ".stoker/formats/quarantine.jsonl").read_text() == ""


@pytest.mark.parametrize("stream", FORMATS)
def test_samples_of_each_format_come_through_whole_and_once(stream: str, loaders: Loaders) -> None:
    _, key, number = FORMATS[stream]
    seen: list[tuple[int, list[float]]] = []
    with trainer_client.connect(loaders.endpoint, stream=stream) as feed:
        for batch in feed:
            for row in np.flatnonzero(batch["weight"]):
                values = batch[key][row, : batch[f"{key}_length"][row]].tolist()
                seen.append((int(batch[number][row]) if number else len(values), values))
    assert sorted(seen) == [(n, [n] * n) for n in NUMBERS]


def test_a_model_is_fit_on_each(loaders: Loaders) -> None:
    import keras  # the other tests of this module need none

    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Lambda(lambda audio: keras.ops.sum(audio, 1, keepdims=True))])
    model.add(keras.layers.Dense(1))
    model.compile(keras.optimizers.Adam(0.05), "mse", jit_compile=False)
    losses = {}
    for stream, (_, key, number) in FORMATS.items():
        with trainer_client.connect(loaders.endpoint, stream=stream) as feed:
            data = feed.dataset(inputs=key, targets=number or f"{key}_length", weights="weight")
            losses[stream] = model.fit(data, verbose=0).history["loss"][0]
    assert losses.keys() == FORMATS.keys()
    assert losses["kaldi"] < losses["tfrecord"]  # the first and the last: it learns the same from each
