"""Models for `fit` that are as small as they can be, and say what they were trained on."""

from __future__ import annotations

import contextlib
from typing import Any

import keras
import tensorflow as tf

__all__ = ["FORM", "Recorder", "tiny_model"]

#: What the recorder's dataset has to hold.
FORM = {"inputs": {"audio": "audio", "tag": "tag"}, "targets": "weight", "weights": "weight"}


class Recorder(keras.Model):
    """Trains one dense layer under dropout; `seen` lists the first tag of every batch that went through a train step."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []
        self.dense = keras.layers.Dense(1, kernel_initializer="ones")
        self.drop = keras.layers.Dropout(0.5, seed=5)

    def call(self, inputs: Any, training: bool = False) -> Any:
        return self.dense(self.drop(tf.reduce_mean(inputs["audio"], 1), training=training))

    def train_step(self, data: Any) -> Any:
        tf.numpy_function(lambda tags: self.seen.append(int(tags[0])), [data[0]["tag"]], [], stateful=True)
        return super().train_step(data)


def tiny_model(strategy: Any = None, steps_per_execution: int = 1) -> Recorder:
    """A compiled recorder, with an optimizer that has state."""
    with strategy.scope() if strategy is not None else contextlib.nullcontext():
        model = Recorder()
        model.compile(keras.optimizers.Adam(0.1), "mse", steps_per_execution=steps_per_execution)
    return model
