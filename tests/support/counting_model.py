"""A user's module whose model counts how often it was trained on each sample, whatever the strategy and its steps.

Each valid row's gradient has the sign that adds one to the sample's count, so a history can be read from a checkpoint.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.support.programs import Program
from tests.support.reserved_host import reserved_host
from trainer_client.training.checkpoints.checkpoint_folder import CheckpointFolder

if TYPE_CHECKING:
    from contextlib import ExitStack
    from pathlib import Path

    from numpy.typing import NDArray

__all__ = ["MODULE", "counted", "start_workers"]

MODULE = """
import json
import os
import time

import keras
import numpy as np
import tensorflow as tf


class Counts(keras.Model):
    def __init__(self, samples):
        super().__init__()
        self.samples = samples
        self.seen = self.add_weight(shape=(samples, 1), initializer="zeros", name="seen")

    def call(self, tag):
        return tf.matmul(tf.one_hot(tag, self.samples), self.seen)


class Sign(keras.optimizers.SGD):
    def update_step(self, gradient, variable, learning_rate):
        self.assign_sub(variable, tf.sign(gradient))


def model(samples):
    return Counts(samples)


def loss(targets, outputs):
    return -outputs[:, 0]


def optimizer():
    return Sign()


class Tell(keras.callbacks.Callback):
    def __init__(self, pause_s):
        super().__init__()
        self.pause_s = pause_s

    def on_train_batch_end(self, batch, logs=None):
        time.sleep(self.pause_s)

    def on_train_end(self, logs=None):
        index = json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {}).get("index", 0)
        np.save(f"seen-{index}.npy", self.model.seen.numpy())


def callbacks(pause_s=0.0):
    return [Tell(pause_s)]


feed_keys = {"inputs": "tag", "targets": "weight", "weights": "weight"}
"""


def start_workers(
    stack: ExitStack, folder: Path, count: int, *words: str, module: str = "trainer_client"
) -> list[Program]:
    """A program in so many processes of one cluster, whose places TF_CONFIG says."""
    hosts = [stack.enter_context(reserved_host()) for _ in range(count)]
    places = [{"cluster": {"worker": hosts}, "task": {"type": "worker", "index": at}} for at in range(count)]
    return [
        stack.enter_context(Program(folder, *words, module=module, TF_CONFIG=json.dumps(place))) for place in places
    ]


def counted(checkpoints: Path) -> tuple[NDArray[Any], dict[str, Any]]:
    """How often each sample was trained on, as the newest checkpoint has it, and what else that says."""
    found = CheckpointFolder(checkpoints, 3).read_last()
    assert found is not None
    arrays, record = found
    return np.round(arrays["0"][:, 0], 3), record
