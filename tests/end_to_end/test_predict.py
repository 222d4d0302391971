"""`trainer-client predict` as its user meets it: a module, a checkpoint, loaders, and a file with each sample once."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from pyarrow import parquet

from loader_server.commands import status
from tests.support.bad_samples import job_with_texts
from tests.support.loaders import running, wait_until
from tests.support.programs import Program
from trainer_client.training.checkpoints.checkpoint_folder import CheckpointFolder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MODULE = """
import os
import time

import keras
import tensorflow as tf


class Times(keras.layers.Layer):
    def build(self, shape):
        self.factor = self.add_weight(shape=(), name="factor")

    def call(self, tag):
        if "STUCK" in os.environ:
            tf.numpy_function(lambda: time.sleep(100), [], [])
        times = keras.ops.cast(tag, "float32") * self.factor
        return {"times": times, "pair": keras.ops.stack([times, -times], axis=1)}


def model(unused=1):
    return keras.Sequential([Times()])


def prediction_processor(rows):
    for tag, sample, times in zip(rows["tag"], rows["sample"], rows["times"]):
        print(tag, sample, times)


feed_keys = {"inputs": "tag", "targets": "audio_length"}
"""
SAMPLES = 40
#: These say "three", which the transform cannot stand.
BAD = (9, 19, 29, 39)
GOOD = SAMPLES - len(BAD)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("predict")
    job = job_with_texts(folder, {}, transform="raises", samples=SAMPLES, job='heartbeat_timeout = "1 s"')
    with job.open("a") as file:
        file.write('\n[streams.shared]\nlike = "train"\norder = "sorted"\nmode = "queue"\n')
        file.write('\n[streams.named]\nlike = "train"\norder = "sorted"\nmode = "queue"\nstrings = ["path"]\n')
        file.write('\n[streams.taken]\nlike = "train"\nmode = "queue"\nstrings = { sample = "path", name = "path" }\n')
        file.write('\n[streams.unordered]\nlike = "train"\nevaluation = false\nmode = "queue"\n')
    (folder / "times.py").write_text(MODULE)
    (folder / "silent.py").write_text("from times import feed_keys, model")
    write_checkpoint(folder, 3.0)
    return folder


@pytest.fixture(scope="module")
def endpoint(folder: Path) -> Iterator[str]:
    with running(folder / "job.toml", workers=1) as loaders:
        yield loaders.endpoint


def write_checkpoint(folder: Path, factor: float) -> None:
    arrays = {"0": np.array(factor, np.float32), "1": np.ones(9, np.float32)}  # the second is an optimizer's
    record = {"epoch": 1, "step": int(factor), "model_variables": 1}
    CheckpointFolder(folder / "checkpoints", 3).write(arrays, record)


def start(folder: Path, endpoint: str, *arguments: str, **environment: str) -> Program:
    words = ("--model", "times", "--checkpoint", "checkpoints", "--stream", "shared", *arguments)
    return Program(folder, "predict", "--feed", endpoint, *words, **environment)


def expected(factor: float) -> list[dict[str, Any]]:
    return [
        {"sample": at, "tag": f"clips/{at:05d}.wav", "times": factor * at, "pair": [factor * at, -factor * at]}
        for at in range(SAMPLES)
        if at not in BAD
    ]


def leased(endpoint: str) -> int:
    tables = status.ask(endpoint)["streams"]["shared"]["queue"]
    return int(tables["predict"]["leased"]) if "predict" in tables else 0


def lines_of(output: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.read_text().splitlines()]


@pytest.mark.heritage("E12")
def test_trainers_of_which_one_is_killed_write_each_sample_once_and_in_order(folder: Path, endpoint: str) -> None:
    output = folder / "all.jsonl"
    with start(folder, endpoint, "--output", str(output), STUCK="yes") as victim:
        wait_until(lambda: leased(endpoint), "the victim has batches", 100)
        victim.kill()
    others = [start(folder, endpoint, "--output", str(output), "--json") for _ in range(2)]
    told = []
    for code, said, complained in (one.ended() for one in others):
        assert code == 0, complained
        told.append(json.loads(said))
    assert lines_of(output) == expected(3.0)
    assert sum(one.pop("predicted_here") for one in told) == GOOD
    assert told == [{"stream": "shared", "samples": GOOD, "masked": len(BAD)}] * 2


def test_strings_of_the_stream_come_out_beside_the_outputs(folder: Path, endpoint: str) -> None:
    output = folder / "named.jsonl"
    code, _, complained = start(folder, endpoint, "--output", str(output), "--stream", "named").ended()
    assert code == 0, complained
    wanted = [{**row, "path": row["tag"]} for row in expected(3.0)]
    assert [json.dumps(row, sort_keys=True) for row in lines_of(output)] == [
        json.dumps(row, sort_keys=True) for row in wanted
    ]


def test_strings_that_have_the_name_of_another_column_are_refused(folder: Path, endpoint: str) -> None:
    code, _, complained = start(folder, endpoint, "--output", str(folder / "taken.jsonl"), "--stream", "taken").ended()
    assert code == 1
    assert "strings with names other than sample, tag, masked, which outputs come with, got sample" in complained


def test_parquet_has_the_same_rows_and_what_is_done_already_is_not_done_again(folder: Path, endpoint: str) -> None:
    output = folder / "all.parquet"
    code, said, complained = start(folder, endpoint, "--output", output.name).ended()
    assert code == 0, complained
    begin, end = said.splitlines()
    assert begin == "STARTING: predicting shared with checkpoints/00000001.npz, at step 3"
    want = (
        f"FINISHED: {GOOD} samples in all.parquet, {GOOD} of them predicted here, {len(BAD)} others could not be used"
    )
    assert end.startswith(want)
    table = parquet.read_table(output)
    assert table.to_pylist() == expected(3.0)
    assert [str(one) for one in table.schema.types] == ["int64", "string", "float", "list<element: float>"]
    code, said, complained = start(folder, endpoint, "--output", output.name, "--json").ended()
    assert json.loads(said)["predicted_here"] == 0, complained
    write_checkpoint(folder, 5.0)
    code, said, complained = start(folder, endpoint, "--output", output.name).ended()
    assert code == 1
    assert "expected outputs of checkpoint" in complained
    assert "Name another output; or remove all.parquet and all.parquet.parts to begin anew." in complained
    output.unlink()
    assert start(folder, endpoint, "--output", output.name).ended()[0] == 0
    assert parquet.read_table(output).to_pylist() == expected(5.0)


def test_a_checkpoint_that_is_gone_says_what_to_remove(folder: Path, endpoint: str) -> None:
    output = folder / "gone.jsonl"
    parts = folder / "gone.jsonl.parts"
    write_checkpoint(folder, 4.0)
    with start(folder, endpoint, "--output", output.name, STUCK="yes") as victim:
        wait_until(lambda: leased(endpoint), "the victim has batches", 100)
        victim.kill()
    of = json.loads((parts / "prediction.json").read_text())["of"]
    (folder / "checkpoints" / of["checkpoint"]["file"]).unlink()
    code, _, complained = start(folder, endpoint, "--output", output.name).ended()
    assert (code, "expected the checkpoint that this began with" in complained) == (1, True), complained
    assert "Put it back from a copy, or remove gone.jsonl.parts to begin anew." in complained


def test_a_processor_of_the_users_gets_each_sample_and_none_is_a_warning(folder: Path, endpoint: str) -> None:
    write_checkpoint(folder, 2.0)
    code, said, complained = start(folder, endpoint).ended()
    assert code == 0, complained
    _, *lines, end = said.splitlines()
    assert "outputs go nowhere" not in complained
    assert sorted(lines) == sorted(f"{one['tag']} {one['sample']} {one['times']}" for one in expected(2.0))
    assert end.startswith(
        f"FINISHED: {GOOD} samples, {GOOD} of them predicted here, {len(BAD)} others could not be used"
    )
    code, said, complained = start(folder, endpoint, "--model", "silent", "--json").ended()
    assert (code, json.loads(said)["samples"]) == (0, GOOD), complained
    assert "outputs go nowhere: name a file with --output, or write a prediction_processor" in complained


def test_a_stream_that_cannot_be_predicted_on_is_refused(folder: Path, endpoint: str) -> None:
    code, _, complained = start(folder, endpoint, "--stream", "dev").ended()
    assert (code, "queue mode" in complained) == (4, True), complained
    code, _, complained = start(folder, endpoint, "--stream", "unordered").ended()
    assert (code, "expected a stream with evaluation = true" in complained) == (1, True), complained
    code, _, complained = start(folder, endpoint, "--output", "all.csv").ended()
    assert (code, "expected a file that ends in .jsonl or .parquet, got all.csv" in complained) == (2, True)
