"""Models for `fit` that are as small as they can be, and say what they were trained on.

TensorFlow takes ten times as long to trace one as to train it for an epoch. So a module's tests are lent the same ones
again, as they were before the first step; but those are built already, which a new one is not.
"""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

from shared.quick_import import quick_import

with quick_import():
    import keras
    import tensorflow as tf

    from trainer_client.training.checkpoints.feed_checkpoint import FeedCheckpoint

__all__ = ["FORM", "Recorder", "StopAfter", "Stopped", "forget", "take_back", "tiny_model"]

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


def tiny_model(
    strategy: Any = None, steps_per_execution: int = 1, *, units: int = 1, record: bool = True, new: bool = False
) -> Recorder:
    """A compiled recorder, with an optimizer that has state; perhaps one that an earlier test has used."""
    key = (strategy, steps_per_execution, units, record)
    if not new and _SHELVED.get(key):
        model = _SHELVED[key].pop()
        _reset(model)
    else:
        with strategy.scope() if strategy is not None else contextlib.nullcontext():
            model = Recorder(units, record=record)
            model.compile(keras.optimizers.Adam(_RATE), "mse", steps_per_execution=steps_per_execution)
    if not new:
        _LENT.append((key, model))
    return model


_RATE = 0.1
_LENT: list[tuple[Any, Recorder]] = []
#: By the arguments that they were made with.
_SHELVED: dict[Any, list[Recorder]] = {}


def take_back() -> None:
    """A test has ended, or needs none of its models any more."""
    for key, model in _LENT:
        _SHELVED.setdefault(key, []).append(model)
    _LENT.clear()


def forget() -> None:
    """A module has ended: the next one's features may be wider."""
    _SHELVED.clear()


def _reset(model: Recorder) -> None:
    model.seen = []
    model.stop_training = False
    vars(model).pop("evaluate", None)  # a `fit` that an error ended leaves it, and the train function, wrapped
    if isinstance(left := getattr(model.train_function, "__self__", None), FeedCheckpoint):
        model.train_function = left._train_function
    if not model.built:
        return
    model.dense.set_weights([np.ones_like(model.dense.kernel), np.zeros_like(model.dense.bias)])
    model.drop.seed_generator.state.assign(keras.random.SeedGenerator(5).state)
    for variable in model.optimizer.variables:
        variable.assign(_RATE if variable is model.optimizer._learning_rate else np.zeros(variable.shape))
