"""Tables that servers hold, as users train them: each sample counts once whatever is killed; no worker holds one."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from shared.errors import RefusedError
from tests.support.forked import ROOT
from tests.support.loaders import running, wait_until, write_job
from tests.support.programs import Program
from tests.support.served_cluster import ServedCluster
from trainer_client.training.checkpoints.checkpoint_folder import CheckpointFolder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: A loss that falls by one for each time that a sample is trained on: its row says how often that was.
MODULE = '''
import os
import time

import keras
import tensorflow as tf

from trainer_client.layers import ServedEmbedding


def paced(rows):
    time.sleep(float(os.environ.get("STEP_S", "0")))
    return rows


class Counts(keras.layers.Layer):
    """The rows of samples, by as much as the mean over a batch will make of them."""

    def __init__(self):
        super().__init__()
        self.counts = ServedEmbedding("counts", 1, "zeros")

    def call(self, inputs, training=None):
        tag, weight = inputs
        rows = tf.reshape(self.counts(tag, training=training), [-1, 1])
        rows = tf.ensure_shape(tf.numpy_function(paced, [rows], tf.float32), [None, 1]) * 0 + rows
        return rows * tf.reduce_sum(weight)

    def compute_output_shape(self, shapes):
        return (None, 1)


def model():
    audio, tag, weight = keras.Input((None, 40)), keras.Input((), dtype="int64"), keras.Input(())
    level = keras.layers.Dense(1)(keras.ops.mean(audio, axis=1))
    return keras.Model({"audio": audio, "tag": tag, "weight": weight}, Counts()([tag, weight]) + 0.0 * level)


def loss(targets, outputs):
    return outputs[:, 0]


def optimizer():
    return keras.optimizers.SGD(1.0)


feed_keys = {"inputs": {"audio": "audio", "tag": "tag", "weight": "weight"}, "targets": "weight", "weights": "weight"}
'''
SAMPLES, EPOCHS = 48, 6


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tables")
    write_job(folder, samples=SAMPLES, longest_s=0.5, budget="1 s")
    with (folder / "job.toml").open("a") as job:
        job.write('\n[streams.queue]\nlike = "train"\nmode = "queue"\nevaluation = false\n')
        job.write('\n[streams.small]\nlike = "train"\nmode = "queue"\nevaluation = false\n')
        job.write('\n[streams.asked]\nlike = "train"\norder = "sorted"\nmode = "queue"\nevaluation = true\n')
    (folder / "counting_model.py").write_text(MODULE)
    return folder


@pytest.fixture(scope="module")
def endpoint(folder: Path) -> Iterator[str]:
    with running(folder / "job.toml", workers=1) as loaders:
        yield loaders.endpoint


def counts_in(folder: Path) -> tuple[list[float], dict[str, Any]]:
    """How often each sample is in the table of the newest checkpoint, and its record."""
    found = CheckpointFolder(folder, 3).read_last()
    assert found is not None
    arrays, record = found
    rows = [arrays[name][:, 0] for name in arrays if name.startswith("tables/0/") and name.endswith("/1")]
    return (-np.concatenate(rows)).tolist(), record


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.heritage("E20")
@pytest.mark.heritage("E21")
def test_each_sample_is_in_the_table_once_an_epoch_whatever_is_killed(folder: Path, endpoint: str) -> None:
    """A worker, a server and the chief are killed; the next run has another number of servers, and goes on."""
    checkpoints = CheckpointFolder(folder / "queue", 3)
    arguments = (
        "--model", "counting_model", "--feed", endpoint, "--stream", "queue", "--checkpoint", str(folder / "queue"),
        "--save-every", "5", "steps", "--staleness", "20",
    )  # fmt: skip
    with ServedCluster(
        folder, *arguments, "--epochs", str(EPOCHS), servers=2, workers=2, environment={"STEP_S": "0.15"}
    ) as processes:
        processes.start_all()
        wait_until(lambda: checkpoints.newest() >= "00000003.npz", "something is trained and committed", 200)
        for killed in ("worker 1", "ps 1", "worker 0"):
            before = checkpoints.newest()
            processes.kill(killed)
            if killed != "worker 1":
                kind, index = killed.split()
                processes.start(kind, int(index))
            wait_until(lambda before=before: checkpoints.newest() > before, "another checkpoint", 200)
        processes.ended()
    counts, record = counts_in(folder / "queue")
    assert counts == [float(EPOCHS)] * SAMPLES
    exported = ("--epochs", str(EPOCHS + 1), "--export", str(folder / "exported.keras"))
    with ServedCluster(folder, *arguments, *exported, servers=3, workers=1, environment={}) as processes:
        processes.start_all()
        processes.ended()
    counts, later = counts_in(folder / "queue")
    assert counts == [EPOCHS + 1.0] * SAMPLES
    assert later["step"] > record["step"]
    _is_read_by_evaluate_and_predict(folder, endpoint)


def _is_read_by_evaluate_and_predict(folder: Path, endpoint: str) -> None:
    common = ("--model", "counting_model", "--feed", endpoint, "--checkpoint", str(folder / "queue"))
    with Program(folder, "evaluate", *common, "--stream", "dev", "--json") as evaluated:
        code, lines, complained = evaluated.ended()
    assert code == 0, complained
    # Each sample has its row, times the number of samples in its batch, which the mean over the batch does not undo.
    assert json.loads(lines.splitlines()[-1])["values"]["loss"] < -EPOCHS, lines
    with Program(
        folder, "predict", *common, "--stream", "asked", "--output", str(folder / "outputs.jsonl")
    ) as predicted:
        code, lines, complained = predicted.ended()
    assert code == 0, complained
    outputs = [json.loads(line) for line in (folder / "outputs.jsonl").read_text().splitlines()]
    assert len(outputs) == SAMPLES
    assert all(output["output"][0] % (EPOCHS + 1) == 0 and output["output"][0] < 0 for output in outputs), outputs[:3]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.heritage("E20")
def test_a_table_that_outgrows_its_servers_ends_the_run_by_name(folder: Path, endpoint: str) -> None:
    arguments = (
        "--model", "counting_model", "--feed", endpoint, "--stream", "small", "--checkpoint", str(folder / "small"),
        "--epochs", "1", "--server-memory", "0.0005",
    )  # fmt: skip
    with ServedCluster(folder, *arguments, servers=1, workers=1, environment={}) as processes:
        processes.start_all()
        code, _, complained = processes.running["worker 0"].ended()
    assert code == RefusedError.exit_code
    assert "expected rows that fit into --server-memory, 0.0 MiB" in complained
    assert "Add parameter servers" in complained


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.heritage("E21")
def test_a_worker_trains_saves_and_restores_a_table_larger_than_the_memory_that_it_is_given() -> None:
    """Of half a gigabyte, with an eighth of that for all that the worker allocates once it begins."""
    words = ("-m", "tests.benchmarks.parameter_servers", "bounded", "2000000", "64", "64")
    done = subprocess.run(
        [sys.executable, *words], cwd=ROOT, capture_output=True, text=True, timeout=280, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["table_mib"] > 500
    assert found["grown_mib"] < 64
    assert found["rows_restored"] == 2_000_000
