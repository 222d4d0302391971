"""What XLA compiles of towers: what it cannot do is refused by name, what is kept between steps goes on as without it,
and towers do not wait for each other.
"""

from __future__ import annotations

import numpy as np
import pytest

import tests.support.two_devices  # before TensorFlow is used
from shared.errors import SettingsError
from tests.support.fake_feed import SHAPES
from tests.support.joined_feed import spread_feed

import keras  # isort: skip - after the devices are set
import tensorflow as tf  # isort: skip

from tests.support.strategy_runs import STEPS, trained  # isort: skip
from trainer_client import Until  # isort: skip
from trainer_client.training.strategies.asynchronous import Asynchronous  # isort: skip
from trainer_client.training.strategies.central import Central  # isort: skip
from trainer_client.training.strategies.mirrored import Mirrored  # isort: skip

TOWERS = ("CPU:0", "CPU:1")


class Level(keras.Model):
    """A dense layer over the mean of sound, before which others may do something."""

    def __init__(self):
        super().__init__(name="level")
        self.dense = keras.layers.Dense(1)
        self.others = self.made()

    def made(self):
        return []

    def call(self, inputs, training=False):
        level = tf.reduce_mean(inputs["audio"], 1)
        for one in self.others:
            level = one(level, training=training)
        return self.dense(level)


class Spectral(Level):
    def made(self):
        return [keras.layers.SpectralNormalization(keras.layers.Dense(3, name="normalized"))]


class Synchronized(Level):
    def made(self):
        return [keras.layers.BatchNormalization(synchronized=True)]


class Dropping(Level):
    """Has seeds and batch statistics."""

    def made(self):
        return [keras.layers.Dropout(0.1, seed=3), keras.layers.BatchNormalization()]


class Measuring(Level):
    """Has a metric, and draws numbers without a seed of its own."""

    def made(self):
        self.seen = keras.metrics.Sum(name="rows")
        return []

    def call(self, inputs, training=False):
        self.seen.update_state(tf.ones(tf.shape(inputs["audio"])[0]))
        return super().call(inputs, training) + 0 * keras.random.uniform(())


class Bare(Level):
    def made(self):
        self.factor = tf.Variable(1.0, trainable=False, name="factor")
        return []

    def call(self, inputs, training=False):
        return super().call(inputs, training) * self.factor


def steps(folder, placement, model, *, xla=True, many=2):
    """Of one shape: XLA takes as long for each."""
    feed = spread_feed(2, epochs=STEPS, shapes=SHAPES[:1])
    how = {"model": model, "optimizer": keras.optimizers.SGD, "until": Until(steps=many)}
    return trained(folder, placement, feed, xla=xla, **how)


@pytest.mark.parametrize("placement", [Mirrored, Central])
def test_a_forward_pass_that_changes_what_is_trained_is_refused_by_name(tmp_path, placement):
    with pytest.raises(SettingsError, match=r"--xla: expected a model .* got others: \S*normalized/kernel\."):
        steps(tmp_path, placement(TOWERS), Spectral)


@pytest.mark.parametrize("placement", [Central, Asynchronous])
def test_a_variable_that_is_not_of_keras_is_refused_by_name(tmp_path, placement):
    with pytest.raises(SettingsError, match=r"--xla: expected variables .* got others: factor:0\. .*add_weight"):
        steps(tmp_path, placement(TOWERS), Bare)


@pytest.mark.slow
@pytest.mark.parametrize("placement", [Central, Asynchronous])
def test_what_is_kept_outside_the_models_variables_goes_on_as_without_xla(tmp_path, placement):
    (losses, loop), (plain, other) = (
        steps(tmp_path / str(xla), placement(TOWERS), Measuring, xla=xla) for xla in (True, False)
    )
    seen = loop._model.seen.result().numpy()
    assert seen > 0
    if placement is Central:  # towers that do not wait may meet, with XLA or without it
        assert seen == other._model.seen.result().numpy()
        np.testing.assert_allclose(losses, plain, rtol=1e-5)


def test_models_that_sum_over_replicas_are_refused_whatever_tensorflow_says(tmp_path, monkeypatch):
    """Where all devices are GPUs, replicas could sum without what TensorFlow refuses on CPUs."""
    monkeypatch.setattr(keras.layers.BatchNormalization, "call", lambda _self, inputs, **_: inputs)
    with pytest.raises(SettingsError, match=r"exchange nothing .* got a layer .*: level/batch_normalization\S*\."):
        steps(tmp_path, Mirrored(TOWERS), Synchronized)


def test_that_refusal_is_not_taken_for_a_model_that_needs_to_know_sizes(tmp_path, caplog):
    caplog.set_level("INFO", "stoker")
    with pytest.raises(SettingsError):
        steps(tmp_path, Mirrored(TOWERS), Synchronized)
    assert "fails where sizes are open" not in caplog.text


def calls_and_waits(graph):
    """How many calls there are of what XLA compiles, and which of them wait for others."""
    calls = [one for one in graph.get_operations() if "PartitionedCall" in one.type and one.get_attr("_XlaMustCompile")]
    return len(calls), [one.name for one in calls if before(one) & {other.name for other in calls}]


def before(operation):
    """All that is computed before it."""
    names, left = set(), [operation]
    while left:
        one = left.pop()
        for earlier in [*(tensor.op for tensor in one.inputs), *one.control_inputs]:
            if earlier.name not in names:
                names.add(earlier.name)
                left.append(earlier)
    return names


def test_towers_of_central_compute_at_the_same_time_and_each_has_seeds_of_its_own(tmp_path):
    _, loop = steps(tmp_path, Central(TOWERS), Dropping, many=3)
    assert calls_and_waits(loop._take_step._graph.graph) == (2, [])
    (seed,) = [one for one in loop._model.variables if "seed" in one.path]
    assert seed.numpy().tolist() == [3, 2 * 3], "one for each tower and step"
