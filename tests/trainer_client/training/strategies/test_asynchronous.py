"""Towers that apply their gradients as they come: none waits, and each batch is applied once, by what it counts."""

from __future__ import annotations

import threading
from functools import cache, partial

import numpy as np
import pytest

import tests.support.two_devices  # before TensorFlow is used
from shared.errors import DataError, SettingsError
from tests.support.fake_feed import SHAPES
from tests.support.joined_feed import spread_feed
from tests.support.lending import Lending

import keras  # isort: skip - after the devices are set
import tensorflow as tf  # isort: skip

from tests.support.strategy_runs import STEPS, saved, trained  # isort: skip
from trainer_client import Until  # isort: skip
from trainer_client.training.strategies.asynchronous import Asynchronous  # isort: skip

TOWERS = ("CPU:0", "CPU:1")
#: The levels of the batches of each round.
LEVELS = ((1, 2), (4, 8), (16, 32))


class Line(keras.Model):
    """One slope, of which the gradient of the outputs' mean is the mean of the rows' levels."""

    def __init__(self):
        super().__init__()
        self.slope = self.add_weight(shape=(), initializer="zeros", name="slope")

    def call(self, inputs):
        return tf.reduce_mean(inputs["audio"], (1, 2))[:, None] * self.slope


def outputs_mean(_, outputs):
    return outputs[:, 0]


def to_three(_, outputs):
    return tf.square(outputs[:, 0] - 3)


def feed_of(levels=LEVELS, empty=(), shapes=SHAPES):
    """Of each round two batches, all rows of which have the level; those of empty levels have no rows."""
    feed = spread_feed(2, epochs=(len(levels),), shapes=shapes)
    fill = feed.session.fill

    def leveled(arrays, epoch, number):
        fill(arrays, epoch, number)
        level = levels[number // 2][number % 2]
        arrays["weight"][...] = level not in empty
        arrays["audio"][...] = level

    feed.session.fill = leveled
    return feed


@cache
def lent(*, sums):
    """For runs of lines, by plain SGD."""
    return Lending(Asynchronous(TOWERS, sums=sums))


def slope_of(folder, feed, *, sums=False, model=Line, steps=3, xla=False, **settings):
    """What plain SGD, by a rate of 1, made of zero; the losses."""
    sgd, until = partial(keras.optimizers.SGD, 1.0), Until(steps=steps)
    placement = lent(sums=sums) if model is Line and not xla else Asynchronous(TOWERS, sums=sums)
    how = {"model": model, "loss": outputs_mean, "optimizer": sgd, "until": until}
    losses, loop = trained(folder, placement, feed, xla=xla, **how, **settings)
    assert loop._session.accounts.counts.retraces == 0
    return float(loop._model.slope.numpy()), losses


@pytest.mark.heritage("T8")
def test_each_towers_gradients_are_divided_by_the_towers_or_not(tmp_path):
    assert slope_of(tmp_path / "scaled", feed_of())[0] == -sum(map(sum, LEVELS)) / 2
    assert slope_of(tmp_path / "as-they-are", feed_of(), sums=True)[0] == -sum(map(sum, LEVELS))


@pytest.mark.heritage("T13")
def test_variables_of_many_towers_on_gpus_lie_on_the_cpu_where_each_updates_when_it_likes():
    gpus = [f"GPU:{at}" for at in range(4)]
    many, few = Asynchronous(tuple(gpus)), Asynchronous(tuple(gpus[:2]), sums=True)
    assert many.choice == (
        "async: 4 towers on GPU:0, GPU:1, GPU:2, GPU:3; variables on CPU:0 "
        "(cpu, because 4 towers update when they like); "
        "gradients times 1/4"
    )
    assert few.choice == "async: 2 towers on GPU:0, GPU:1; variables on GPU:0, GPU:1 (balanced)"


def test_each_batch_is_applied_once_by_a_run_that_stops_and_goes_on_and_empty_ones_never_are(tmp_path):
    for steps in (1, 3):
        found, _ = slope_of(tmp_path, feed_of(empty=(2, 16, 32)), sums=True, steps=steps)
    assert found == -(1 + 4 + 8)
    record = saved(tmp_path)[1]
    assert (record["step"], record["epoch"]) == (3, 1)


class Waiting(Line):
    """The second tower computes until the first one's gradients were applied."""

    def __init__(self):
        super().__init__()
        self.applied = threading.Event()

    def call(self, inputs):
        second = tf.reduce_mean(inputs["audio"]) == LEVELS[0][1]
        with tf.control_dependencies([tf.cond(second, self._wait, lambda: True)]):
            return super().call(inputs)

    def _wait(self):
        return tf.py_function(lambda: self.applied.wait(60), [], tf.bool)


def test_a_tower_applies_its_gradients_while_another_still_computes(tmp_path):
    model = Waiting()
    wait = model.applied.wait
    waited = []
    model.applied.wait = lambda timeout_s: waited.append(wait(timeout_s)) or waited[-1]

    class Telling(keras.optimizers.SGD):
        def apply(self, gradients, variables):
            super().apply(gradients, variables)
            tf.py_function(model.applied.set, [], [])

    trained(
        tmp_path, Asynchronous(TOWERS), feed_of(), model=lambda: model, loss=outputs_mean, optimizer=Telling,
        until=Until(steps=1),
    )  # fmt: skip
    assert waited == [True]


class Late(Line):
    """Computes no finite outputs for the level 8 in the first two tries; has to know its inputs' sizes, too."""

    def __init__(self):
        super().__init__()
        self.tries = 0

    def call(self, inputs):
        factor = tf.py_function(self._factor, [tf.reduce_mean(inputs["audio"])], tf.float32)
        assert inputs["audio"].shape[1]
        return super().call(inputs) * tf.reshape(factor, ())

    def _factor(self, level):
        self.tries += int(level == 8)
        return np.nan if level == 8 and self.tries <= 2 else 1.0


def test_a_tower_whose_gradients_are_not_finite_is_tried_again_alone(tmp_path):
    assert slope_of(tmp_path, feed_of(), sums=True, model=Late, retries=2)[0] == -sum(map(sum, LEVELS))


def test_gradients_that_stay_infinite_end_training_and_what_is_saved_knows_nothing_of_their_round(tmp_path):
    with pytest.raises(DataError, match="batch 2 of epoch 0 of fake, step 1: expected finite"):
        slope_of(tmp_path, feed_of(((1, 2), (4, np.nan))), sums=True, retries=1, save_every_steps=1, steps=2)
    arrays, record = saved(tmp_path)
    assert (record["step"], float(arrays[0])) == (1, -3)
    assert slope_of(tmp_path, feed_of(((1, 2), (4, 8))), sums=True, steps=2)[0] == -15


def test_towers_that_xla_compiles_do_the_same(tmp_path):
    assert slope_of(tmp_path / "line", feed_of(shapes=SHAPES[:1]), sums=True, xla=True)[0] == -sum(map(sum, LEVELS))
    losses, loop = trained(
        tmp_path / "words", Asynchronous(TOWERS), spread_feed(2, epochs=STEPS), loss=to_three, until=Until(steps=20),
        xla=True,
    )  # fmt: skip
    assert np.mean(losses[-5:]) < np.mean(losses[:5])
    assert loop._step.traces == 2, "once for all shapes, on each device"


def test_losses_of_a_model_with_sparse_gradients_fall_and_nothing_is_traced_in_training(tmp_path):
    losses, loop = trained(
        tmp_path, Asynchronous(TOWERS), spread_feed(2, epochs=STEPS), loss=to_three, until=Until(steps=40)
    )
    assert np.mean(losses[-10:]) < 0.5 * np.mean(losses[:10])
    assert loop._step.traces == 2, "once for all shapes, on each device"
    assert loop._session.accounts.counts.retraces == 0
    assert int(loop._model.optimizer.iterations.numpy()) >= 60, "each tower's own update"


class Averaging(Line):
    def __init__(self):
        super().__init__()
        self.normal = keras.layers.BatchNormalization()

    def call(self, inputs, training=False):
        return self.normal(super().call(inputs), training=training)


def test_what_other_towers_would_spoil_is_refused(tmp_path):
    with pytest.raises(SettingsError, match=r"only gradients change variables, got .*normal.*/moving_mean"):
        slope_of(tmp_path, feed_of(), model=Averaging)
    scales = partial(keras.optimizers.LossScaleOptimizer, keras.optimizers.SGD())
    with pytest.raises(SettingsError, match="does not scale the loss, got LossScaleOptimizer"):
        trained(tmp_path, Asynchronous(TOWERS), feed_of(), optimizer=scales)
