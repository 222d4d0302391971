"""What the chief's callbacks set holds on the parameter servers, and nobody trains before the chief has said where."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
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
import os
import pathlib
import time

import keras
import numpy as np
import tensorflow as tf


def paced(level):
    task = json.loads(os.environ["TF_CONFIG"])["task"]
    pathlib.Path(f"{task['type']}-{task['index']}-computes").touch()
    time.sleep(float(os.environ.get("STEP_S", "0")))
    return level


class MeanLevel(keras.layers.Layer):
    def call(self, audio):
        level = keras.ops.mean(audio, axis=1)
        return tf.ensure_shape(tf.numpy_function(paced, [level], tf.float32), level.shape)


def model():
    audio = keras.Input((None, 40))
    hidden = keras.layers.Dense(8, kernel_initializer="ones")(MeanLevel()(audio))
    return keras.Model(audio, keras.layers.Dense(1, kernel_initializer="ones")(hidden))


loss = "mse"


def optimizer():
    return keras.optimizers.Adagrad(0.1)


class Held(keras.callbacks.Callback):
    """Notes what the servers have as an epoch ends; as the third begins, waits until it may go on."""

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 2 and os.environ.get("HELD"):
            pathlib.Path("held").touch()
            while not pathlib.Path("go-on").exists():
                time.sleep(0.05)

    def on_epoch_end(self, epoch, logs=None):
        np.savez(f"epoch-{epoch}.npz", *[one.numpy() for one in self.model.trainable_variables])


def callbacks():
    if not os.environ.get("HELD"):
        return []
    return [keras.callbacks.LearningRateScheduler(lambda epoch: 0.1 if epoch == 0 else 0.0), Held()]


feed_keys = {"inputs": "audio", "targets": "weight", "weights": "weight"}
'''
SAMPLES = 48
WEIGHTS = 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served")
    write_job(folder, samples=SAMPLES, longest_s=0.5, budget="1 s")
    with (folder / "job.toml").open("a") as job:
        for stream in ("rate", "rewind"):
            job.write(f'\n[streams.{stream}]\nlike = "train"\nmode = "queue"\nevaluation = false\n')
    (folder / "served_model.py").write_text(MODULE)
    return folder


@pytest.fixture(scope="module")
def endpoint(folder: Path) -> Iterator[str]:
    with running(folder / "job.toml", workers=1) as loaders:
        yield loaders.endpoint


def cluster(
    folder: Path, endpoint: str, stream: str, checkpoints: str, *arguments: str, servers: int, **environment: str
) -> ServedCluster:
    return ServedCluster(
        folder, "--model", "served_model", "--feed", endpoint, "--stream", stream, "--checkpoint", checkpoints,
        *arguments, servers=servers, workers=2, environment=environment,
    )  # fmt: skip


def queue(endpoint: str, stream: str) -> dict[str, Any]:
    found: dict[str, Any] = status.ask(endpoint)["streams"][stream]["queue"]["train"]
    return found


def weights(folder: Path) -> list[Any]:
    found = CheckpointFolder(folder, 3).read_last()
    assert found is not None
    return [found[0][str(at)] for at in range(len(found[0]))]


def samples_of(lines: list[str]) -> int:
    """What a worker says that it trained on itself."""
    (last,) = (line for line in lines if line.startswith("FINISHED: "))
    return int(last.split(" samples")[0].rpartition(" ")[2])


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.heritage("E22")
def test_once_the_chief_has_set_a_rate_of_zero_no_push_of_any_worker_changes_a_variable(
    folder: Path, endpoint: str
) -> None:
    """Also after all of it was started again, without that callback and on another number of servers."""
    with cluster(folder, endpoint, "rate", "rated", "--epochs", "4", servers=2, HELD="1") as processes:
        for kind, index in (("ps", 0), ("ps", 1), ("worker", 0)):
            processes.start(kind, index)
        wait_until((folder / "held").exists, "the chief has set the rate, and waits", 200)
        processes.start("worker", 1)
        wait_until(lambda: queue(endpoint, "rate")["done"] >= 2, "another worker has pushed", 200)
        (folder / "go-on").touch()
        processes.ended()
    trained = list(np.load(folder / "epoch-1.npz").values())
    assert any((array != 1).any() for array in trained[::2]), "the first epoch has changed the kernels"
    final = weights(folder / "rated")
    for before, after in zip(trained, final[:WEIGHTS], strict=True):
        np.testing.assert_array_equal(before, after)
    with cluster(folder, endpoint, "rate", "rated", "--epochs", "5", servers=1) as processes:
        for kind, index in (("ps", 0), ("worker", 0)):
            processes.start(kind, index)
        processes.ended()
    again = weights(folder / "rated")
    assert int(again[WEIGHTS]) > int(final[WEIGHTS]), "the optimizer has counted more steps"
    for before, after in zip(trained, again[:WEIGHTS], strict=True):
        np.testing.assert_array_equal(before, after)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("more", [0, 1], ids=["no more epochs", "one more epoch"])
def test_a_worker_that_comes_before_the_chief_waits_until_that_has_taken_the_queue_back(
    folder: Path, endpoint: str, more: int
) -> None:
    """The queue is where an earlier run has left it; this run has no checkpoint, so it goes back to its beginning."""
    paced = {"STEP_S": "0.1"}  # so that no worker is through before the other has begun
    if not more:
        with cluster(folder, endpoint, "rewind", "before", "--epochs", "2", servers=1) as processes:
            for kind in ("ps", "worker"):
                processes.start(kind, 0)
            processes.ended()
    epochs = queue(endpoint, "rewind")["epoch"] + more
    (folder / "worker-1-computes").unlink(missing_ok=True)
    arguments = ("--epochs", str(epochs))
    with cluster(folder, endpoint, "rewind", f"anew-{more}", *arguments, servers=1, **paced) as processes:
        processes.start("ps", 0)
        early = processes.start("worker", 1)
        wait_until((folder / "worker-1-computes").exists, "it has warmed up, and waits for the chief", 200)
        processes.start("worker", 0)
        said = processes.ended()
    shown = status.ask(endpoint)["streams"]["rewind"]
    assert sum(samples_of(said[f"worker {at}"]) for at in range(2)) == epochs * SAMPLES
    assert samples_of(said["worker 1"]) > 0, early
    assert shown["results"]["rows"] <= SAMPLES, "nobody books several epochs as one"
