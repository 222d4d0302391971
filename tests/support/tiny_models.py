"""Models for `fit` that are as small as they can be, and say what they were trained on."""

from __future__ import annotations

import contextlib
from typing import Any

from shared.quick_import import quick_import

with quick_import():
    import keras
    import tensorflow as tf

__all__ = ["FORM", "Recorder", "StopAfter", "Stopped", "tiny_model"]

#: What the recorder's dataset has to hold.
FORM = {"inputs": {"audio": "audio", "tag": "tag"}, "targets": "weight", "weights": "weight"}


class Recorder(keras.Model):
    """Trains one dense layer under dropout; `seen` lists the first tag of every batch trained on."""

    def __init__(self, units: int, *, record: bool) -> None:
        super().__init__()
        self.seen: list[int] = []
        self.record = record
        self.dense = keras.layers.Dense(units, kernel_initializer="ones")
        self.drop = keras.layers.Dropout(0.5, seed=5)

    def call(self, inputs: Any, training: bool = False) -> Any:
        return self.dense(self.drop(tf.reduce_mean(inputs["audio"], 1), training=training))

    def train_step(self, data: Any) -> Any:
        if self.record:
            tf.numpy_function(lambda tags: self.seen.append(int(tags[0])), [data[0]["tag"]], [], stateful=True)
        return super().train_step(data)


class Stopped(Exception):
    """As if the process had ended there."""


class StopAfter(keras.callbacks.Callback):
    """Ends `fit` after so many steps."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.left = steps

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.left -= 1
        if self.left == 0:
            raise Stopped


def tiny_model(strategy: Any = None, steps_per_execution: int = 1, *, units: int = 1, record: bool = True) -> Recorder:
    """A compiled recorder, with an optimizer that has state."""
    with strategy.scope() if strategy is not None else contextlib.nullcontext():
        model = Recorder(units, record=record)
        model.compile(keras.optimizers.Adam(0.1), "mse", steps_per_execution=steps_per_execution)
    return model
