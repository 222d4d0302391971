"""`--strategy parameter-server` as its users meet it: servers and workers in processes of their own, killed or not."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from loader_server.commands import status
from tests.support.loaders import running, wait_until, write_job
from tests.support.served_cluster import ServedCluster
from trainer_client.training.checkpoints.checkpoint_folder import CheckpointFolder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MODULE = '''
import json
import math
import os
import pathlib
import time

import keras
import tensorflow as tf

from trainer_client import EarlyStop, NoProgress


def paced(level):
    task = json.loads(os.environ["TF_CONFIG"])["task"]
    pathlib.Path(f"{task['type']}-{task['index']}-computes").touch()
    time.sleep(float(os.environ.get("STEP_S", "0")))
    return level


class MeanLevel(keras.layers.Layer):
    def call(self, audio):
        level = keras.ops.mean(audio, axis=1)
        return tf.ensure_shape(tf.numpy_function(paced, [level], tf.float32), level.shape)


class Words(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.table = keras.layers.Embedding(20_000, 4, name="words")

    def build(self, shape):
        self.table.build(None)

    def call(self, tag):
        return self.table(tag % 20_000)


def model():
    audio, tag = keras.Input((None, 40)), keras.Input((), dtype="int64")
    both = keras.layers.Concatenate()([MeanLevel()(audio), Words()(keras.ops.maximum(tag, 0))])
    far_off = {"kernel_initializer": "ones"}  # so that the loss falls by far more than batches differ
    outputs = keras.layers.Dense(1, **far_off)(keras.layers.Dense(8, **far_off)(both))
    return keras.Model({"audio": audio, "tag": tag}, outputs)


loss = "mse"


def optimizer():
    return keras.optimizers.Adagrad(0.1)


class Held(keras.callbacks.Callback):
    """Once, after this batch of an epoch: until somebody writes something into the file."""

    def on_train_batch_end(self, batch, logs=None):
        assert math.isfinite(logs["loss"])
        held = pathlib.Path("held")
        if batch == int(os.environ.get("HELD_AT", "-1")) and not held.exists():
            held.touch()
            while not held.read_text():
                time.sleep(0.05)


def callbacks():
    return [Held(), EarlyStop(NoProgress(50), monitor="loss")]


feed_keys = {"inputs": {"audio": "audio", "tag": "tag"}, "targets": "weight", "weights": "weight"}
'''
SAMPLES = 48


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("servers")
    streams = "".join(f'\n[streams.queue{at}]\nlike = "train"\nmode = "queue"\nevaluation = false\n' for at in range(3))
    write_job(folder, samples=SAMPLES, longest_s=0.5, budget="1 s")
    with (folder / "job.toml").open("a") as job:
        job.write(streams)
    (folder / "shared_model.py").write_text(MODULE)
    return folder


@pytest.fixture(scope="module")
def endpoint(folder: Path) -> Iterator[str]:
    with running(folder / "job.toml", workers=1) as loaders:
        yield loaders.endpoint


def cluster(
    folder: Path, endpoint: str, stream: str, *arguments: str, servers: int, environment: dict[str, str] | None = None
) -> ServedCluster:
    return ServedCluster(
        folder, "--model", "shared_model", "--feed", endpoint, "--stream", stream, "--checkpoint", str(folder / stream),
        *arguments, servers=servers, workers=2, environment=environment or {},
    )  # fmt: skip


def saved(folder: Path) -> tuple[list[Any], dict[str, Any]]:
    found = CheckpointFolder(folder, 3).read_last()
    assert found is not None
    return [found[0][str(at)] for at in range(len(found[0]))], found[1]


def table(endpoint: str, stream: str) -> dict[str, Any]:
    found = status.ask(endpoint)["streams"][stream]
    return {"batches": found["batches"], **found["queue"]["train"]}


def losses(lines: list[str]) -> list[float]:
    return [float(line.rpartition("loss ")[2].split(",")[0]) for line in lines if "is over" in line and "loss" in line]


def wait_for_another(checkpoints: CheckpointFolder) -> None:
    """The run goes on, and is committed."""
    before = checkpoints.newest()
    wait_until(lambda: checkpoints.newest() > before, "another checkpoint", 200)


def finished(lines: list[str], what: str) -> int:
    """What a worker says at its end: steps of all workers, or samples of its own."""
    (last,) = (line for line in lines if line.startswith("FINISHED: "))
    return int(last.split(f" {what}")[0].rpartition(" ")[2])


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.heritage("E14")
@pytest.mark.heritage("E16")
def test_workers_train_on_one_server_and_the_next_run_goes_on_where_the_last_ended(folder: Path, endpoint: str) -> None:
    paced = {"STEP_S": "0.1"}  # so that no worker is through before the other has begun
    options = ("--pull-every", "2", "--server-memory", "2")
    with cluster(folder, endpoint, "queue0", *options, servers=1, environment=paced) as processes:
        for kind in ("ps", "worker"):
            processes.start(kind, 0, "--epochs", "1")
        first = processes.ended()
        assert first["worker 0"][0] == "STARTING: training queue0 from epoch 0, step 0, until 1 epochs"
        assert first["worker 0"][-1].endswith(": 1 epochs are reached")
        there = saved(folder / "queue0")[1]
        assert there["step"] == table(endpoint, "queue0")["batches"]
        assert [epoch for epoch, _ in there["early_stop"]["evaluated"]] == [0]
        processes.running.clear()
        more = ("--epochs", "3", "--staleness", "1", "--export", str(folder / "exported.keras"))
        processes.start("ps", 0, *more)
        processes.start("worker", 1, *more)
        wait_until((folder / "worker-1-computes").exists, "it has warmed up, and waits for the chief", 200)
        processes.start("worker", 0, *more)
        said = processes.ended()
    assert said["ps 0"][0].startswith("SERVING: share 1 of 1 at tcp://127.0.0.1:")
    assert said["worker 0"][0] == f"STARTING: training queue0 from epoch 1, step {there['step']}, until 3 epochs"
    found = losses([*first["worker 0"], *said["worker 0"]])
    assert found[-1] < found[0]
    record, queue = saved(folder / "queue0")[1], table(endpoint, "queue0")
    assert record["step"] == 3 * queue["batches"]
    assert (queue["epoch"], queue["failed"], queue["dead"]) == (3, 0, 0)
    assert queue["returned"] > 0, "every second step of a worker came too late"
    assert record["early_stop"]["evaluated"][0] == there["early_stop"]["evaluated"][0]
    assert len(record["early_stop"]["evaluated"]) == len(found)
    before = there["run"]["samples"]
    taken = [finished(said["worker 0"], "samples") - before, finished(said["worker 1"], "samples")]
    assert sum(taken) == 2 * before, "two epochs more"
    assert min(taken) > 0
    assert finished(said["worker 0"], "steps") == record["step"]
    told = [line for line in said["worker 0"] if " is over" in line]
    parts = [
        re.fullmatch(r"epoch . is over, step \d+ \((\d+) samples of (1 of )?2 processes\): loss .*", line)
        for line in told
    ]
    assert 0 < sum(int(part[1]) for part in parts if part) <= 2 * before, told
    assert all(parts), told
    assert (folder / "exported.keras").stat().st_size > 1000


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.heritage("E20")
def test_a_worker_a_server_and_the_chief_are_killed_and_no_batch_is_lost_or_repeated(
    folder: Path, endpoint: str
) -> None:
    """The model has each batch once: as many steps as batches, whoever took them, also after all went back. The table
    is larger than what one server is given.
    """
    arguments = ("--epochs", "6", "--save-every", "5", "steps", "--staleness", "20", "--server-memory", "0.5")
    with cluster(folder, endpoint, "queue1", *arguments, servers=2, environment={"STEP_S": "0.15"}) as processes:
        processes.start_all()
        checkpoints = CheckpointFolder(folder / "queue1", 3)
        wait_until(lambda: checkpoints.newest() >= "00000003.npz", "something is trained and committed", 200)
        processes.kill("worker 1")  # and others do its work
        wait_for_another(checkpoints)
        processes.kill("ps 1")
        processes.start("ps", 1)
        wait_for_another(checkpoints)
        before = processes.running["worker 0"].output().splitlines()
        processes.kill("worker 0")
        processes.start("worker", 0)
        said = processes.ended()
    assert said["worker 0"][-1].endswith(": 6 epochs are reached")
    found = losses([*before, *said["worker 0"]])
    assert found[-1] < found[0]
    record, queue = saved(folder / "queue1")[1], table(endpoint, "queue1")
    assert (record["step"], queue["epoch"], queue["dead"]) == (6 * queue["batches"], 6, 0)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_whose_server_is_lost_after_the_last_step_goes_back_and_ends_with_a_checkpoint(
    folder: Path, endpoint: str
) -> None:
    """Nothing was committed but the beginning, and all steps are applied: they are taken again."""
    with cluster(folder, endpoint, "queue2", "--steps", "5", servers=2, environment={"HELD_AT": "4"}) as processes:
        for kind, index in (("ps", 0), ("ps", 1), ("worker", 0)):
            processes.start(kind, index)
        wait_until((folder / "held").exists, "the last step is applied", 200)
        processes.kill("ps 1")
        processes.start("ps", 1).wait_for_text("SERVING: ")
        (folder / "held").write_text("go on")
        said = processes.ended()
    assert said["worker 0"][-1].endswith(": 5 steps are reached")
    assert (saved(folder / "queue2")[1]["step"], table(endpoint, "queue2")["dead"]) == (5, 0)
