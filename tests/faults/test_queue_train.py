"""`trainer-client train` in queue mode, killed between checkpoints: each batch counts once in the committed model."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.support.loaders import ask, running, write_job
from tests.support.programs import Program
from trainer_client.training.checkpoints.checkpoint_folder import CheckpointFolder

if TYPE_CHECKING:
    from pathlib import Path

SAMPLES = 60
EPOCHS = 3

#: The model is how often it was trained on each sample, beside a layer that has gradients.
_MODULE = f"""
import time

import keras
import tensorflow as tf


class Counting(keras.Model):
    def __init__(self):
        super().__init__()
        self.counts = self.add_weight(shape=({SAMPLES},), dtype="int32", trainable=False, initializer="zeros")
        self.dense = keras.layers.Dense(1)

    def call(self, inputs, training=False):
        if training:
            tags = tf.cast(tf.boolean_mask(inputs["tag"], inputs["weight"] != 0), tf.int32)
            self.counts.assign(self.counts + tf.math.bincount(tags, minlength={SAMPLES}))
        return self.dense(tf.cast(inputs["weight"], tf.float32)[:, None])


def model():
    return Counting()


loss = "mse"


def optimizer():
    return keras.optimizers.SGD(0.01)


class Slow(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.1)


def slow():
    return [Slow()]


feed_keys = {{"inputs": {{"tag": "tag", "weight": "weight"}}, "targets": "weight", "weights": "weight"}}
"""


def _start(folder: Path, endpoint: str, module: str) -> Program:
    arguments = ("--feed", endpoint, "--model", module, "--checkpoint", str(folder / "model"), "--epochs", str(EPOCHS))
    return Program(folder, "train", *arguments, "--save-every", "3", "steps", "--log-every", "1")


@pytest.mark.slow
@pytest.mark.fault(12)
@pytest.mark.fault(17)
@pytest.mark.timeout(400)
def test_killed_between_checkpoints_each_sample_counts_once_in_the_committed_model(tmp_path: Path) -> None:
    job = write_job(tmp_path, samples=SAMPLES, budget="2 s", job='heartbeat_timeout = "2 s"', stream='mode = "queue"')
    (tmp_path / "counting.py").write_text(_MODULE)
    (tmp_path / "slow_counting.py").write_text("from counting import *\n\ncallbacks = slow\n")
    with running(job, workers=1) as loaders:
        for step in (2, 8):
            with _start(tmp_path, loaders.endpoint, "slow_counting") as trainer:
                trainer.wait_for_text(f", step {step}: ")
                if step == 8:
                    loaders.coordinator().kill()
                trainer.kill()
        with _start(tmp_path, loaders.endpoint, "slow_counting") as trainer:
            trainer.wait_for_text(", step 12: ")
            trainer.send_signal(signal.SIGTERM)
            code, said, complained = trainer.ended(200)
            assert code == 143, (said, complained)
        with _start(tmp_path, loaders.endpoint, "counting") as trainer:
            code, said, complained = trainer.ended(200)
            assert code == 0, (said, complained)
        shown = ask(loaders.endpoint)["streams"]["train"]
    found = CheckpointFolder(tmp_path / "model", 3).read_last()
    assert found is not None
    arrays, record = found
    counts = next(array for array in arrays.values() if array.shape == (SAMPLES,))
    np.testing.assert_array_equal(counts, np.full(SAMPLES, EPOCHS))
    assert (record["epoch"], record["step"]) == (EPOCHS, EPOCHS * shown["batches"])
    table = shown["queue"]["train"]
    assert (table["epoch"], table["dead"]) == (EPOCHS, 0)
    assert f"FINISHED: {EPOCHS} epochs, " in said
