"""One training step as a graph: what is applied, what is not and leaves nothing behind, and which graph is run."""

from __future__ import annotations

import numpy as np
import pytest

import tests.support.two_devices  # before TensorFlow is used
from tests.support.joined_feed import spread_feed

import keras  # isort: skip - after the devices are set
import tensorflow as tf  # isort: skip

from tests.support.strategy_runs import STEPS, trained  # isort: skip
from trainer_client import Until  # isort: skip
from trainer_client.training.strategies.asynchronous import Asynchronous  # isort: skip
from trainer_client.training.strategies.central import Central  # isort: skip
from trainer_client.training.strategies.mirrored import Mirrored  # isort: skip
from trainer_client.training.strategies.single import Single  # isort: skip
from trainer_client.training.loop.step import (  # isort: skip
    APPLIED,
    NOT_FINITE,
    NOTHING_TO_APPLY,
    TracedStep,
    TrainStep,
)


def step_of(model, loss="mse", *, scales):
    """A step of a model as a graph, and its optimizer."""
    optimizer = keras.optimizers.SGD(0.01)
    optimizer = keras.optimizers.LossScaleOptimizer(optimizer) if scales else optimizer
    optimizer.build(model.trainable_variables)
    step = TrainStep(model, loss, optimizer)
    return Single().compiled(step, xla=False, any_shape=False), optimizer


def same(left, right):
    for one, other in zip(left, right, strict=True):
        np.testing.assert_array_equal(one, other)


def test_once_it_is_traced_for_all_shapes_no_graph_is_looked_for_but_for_what_does_not_fit():
    model = keras.Sequential([keras.layers.Input((None, 2)), keras.layers.Dense(1)])
    step, _ = step_of(model, scales=False)
    row = tf.TensorSpec((None,))
    step.get_concrete_function((tf.TensorSpec((None, None, 2)), tf.TensorSpec((None, None, 1)), row))
    fits = (tf.ones((3, 5, 2)), tf.ones((3, 5, 1)), tf.ones(3))
    function, step._function = step._function, None
    assert step(fits)[2] == APPLIED
    step._function = function
    assert step((*fits[:2], tf.ones(3, tf.float64)))[2] == APPLIED
    assert function.experimental_get_tracing_count() == 2


@pytest.mark.parametrize("run_eagerly", [False, True])
def test_a_user_may_have_tensorflow_run_the_step_in_python(run_eagerly):
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    tf.config.run_functions_eagerly(run_eagerly)
    try:
        optimizer = keras.optimizers.SGD(0.01)
        optimizer.build(model.trainable_variables)
        taken = TrainStep(model, "mse", optimizer)
        step = Single().compiled(taken, xla=False, any_shape=False)
        step.get_concrete_function((tf.TensorSpec((None, 2)), tf.TensorSpec((None, 1))))
        for _ in range(3):
            step((tf.ones((3, 2)), tf.ones((3, 1))))
    finally:
        tf.config.run_functions_eagerly(False)
    assert taken.traces == (4 if run_eagerly else 1)


@pytest.mark.parametrize("spoilt", ["not finite", "empty"])
@pytest.mark.parametrize("scales", [False, True])
def test_a_step_that_is_not_applied_changes_no_batch_statistics(spoilt, scales):
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.BatchNormalization(), keras.layers.Dense(1)])
    step, _ = step_of(model, scales=scales)
    good, level = tf.constant([[1.0, 2.0], [3.0, 5.0]]), np.nan if spoilt == "not finite" else 9.0
    bad, targets, rows = tf.fill((2, 2), level), tf.ones((2, 1)), tf.ones(2)
    statistics = model.layers[0].non_trainable_variables
    step((good, targets, rows))
    before = [value.numpy().copy() for value in statistics]
    assert before[0].any(), "a step that is applied moves them"
    became = step((bad, targets, rows if spoilt == "not finite" else tf.zeros(2)))[2]
    assert became == (NOT_FINITE if spoilt == "not finite" else NOTHING_TO_APPLY)
    same([value.numpy() for value in statistics], before)


def test_a_loss_that_is_not_finite_is_not_applied_where_its_gradients_are():
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    step, optimizer = step_of(model, lambda targets, outputs: tf.reduce_sum(outputs, 1) + np.inf, scales=True)
    before = [value.numpy().copy() for value in model.variables]
    scale = float(optimizer.dynamic_scale)
    assert step((tf.ones((2, 2)), tf.ones((2, 1)), tf.ones(2)))[2] == NOT_FINITE
    same([value.numpy() for value in model.variables], before)
    assert float(optimizer.dynamic_scale) == scale


def test_gradients_that_are_finite_are_applied_though_their_sum_is_not():
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1, kernel_initializer="zeros")])
    step, _ = step_of(model, lambda targets, outputs: tf.reduce_sum(outputs, 1), scales=False)
    assert step((tf.fill((1, 2), 3e38), tf.ones((1, 1)), tf.ones(1)))[2] == APPLIED
    np.testing.assert_allclose(model.variables[0].numpy(), -3e36)


def test_gradients_that_are_not_finite_lower_the_scale_of_the_loss():
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    step, optimizer = step_of(model, scales=True)
    before = [value.numpy().copy() for value in model.variables]
    optimizer.dynamic_scale.assign(1e38)
    assert step((tf.fill((2, 2), 1e6), tf.ones((2, 1)), tf.ones(2)))[2] == NOT_FINITE
    same([value.numpy() for value in model.variables], before)
    assert float(optimizer.dynamic_scale) == pytest.approx(5e37)


# --- a step that was traced for all shapes is one graph, called directly; others are looked for ---

TOWERS = ("CPU:0", "CPU:1")


class Searching:
    """A `tf.function` that counts how often it had to look for a graph."""

    def __init__(self, function):
        self.function, self.searches, self.traces = tf.function(self.traced), 0, 0
        self.computed = function
        self.get_concrete_function = self.function.get_concrete_function

    def traced(self, *values):
        self.traces += 1
        return self.computed(*values)

    def __call__(self, *values):
        self.searches += 1
        return self.function(*values)


@pytest.fixture
def doubling():
    return Searching(lambda pair, more: (2 * pair[0], pair[1] + more))


def came(values):
    return [one.numpy().tolist() for one in values]


def open_pair():
    return (tf.TensorSpec((None,), tf.float32), tf.TensorSpec((), tf.float32))


def test_what_was_traced_is_called_without_looking(doubling):
    step = TracedStep(doubling)
    step.get_concrete_function(open_pair(), tf.TensorSpec((), tf.float32))
    for size in (1, 3):
        assert came(step((tf.ones(size), tf.constant(1.0)), tf.constant(4.0))) == [[2.0] * size, 5.0]
    assert (doubling.searches, doubling.traces) == (0, 1)


def test_what_does_not_fit_is_traced_and_the_rest_is_still_called_directly(doubling):
    step = TracedStep(doubling)
    step.get_concrete_function(open_pair(), tf.TensorSpec((), tf.float32))
    assert came(step((tf.ones((1, 2)), tf.constant(1.0)), tf.constant(4.0))) == [[[2.0, 2.0]], 5.0]
    assert (doubling.searches, doubling.traces) == (1, 2)
    step((tf.ones(2), tf.constant(1.0)), tf.constant(4.0))
    assert (doubling.searches, doubling.traces) == (1, 2)


def test_one_that_was_not_traced_is_a_function_as_any(doubling):
    step = TracedStep(doubling)
    assert came(step((tf.ones(2), tf.constant(1.0)), tf.constant(4.0))) == [[2.0, 2.0], 5.0]
    assert doubling.searches == 1


def test_where_functions_run_eagerly_this_one_does_too(doubling):
    tf.config.run_functions_eagerly(True)
    try:
        step = TracedStep(doubling)
        step.get_concrete_function(open_pair(), tf.TensorSpec((), tf.float32))
        step((tf.ones(2), tf.constant(1.0)), tf.constant(4.0))
    finally:
        tf.config.run_functions_eagerly(False)
    assert (doubling.searches, doubling.traces) == (1, 2)


@pytest.mark.parametrize(
    ("placement", "graphs", "calls"),
    [
        (Single, 1, 1),
        (lambda: Mirrored(TOWERS), 1, 1),
        (lambda: Central(TOWERS), 1, 1),
        (lambda: Asynchronous(TOWERS), 3, 4),
    ],
    ids=["single", "mirrored", "central", "async"],
)
def test_all_steps_of_a_strategy_fit_what_was_traced(tmp_path, monkeypatch, placement, graphs, calls):
    """Of a round, all of it in one call; or what each tower computes, and how it is settled, by one graph for all."""
    called = []

    def call(step, *elements):
        called.append(step)
        return step._graph(*elements)

    monkeypatch.setattr(TracedStep, "__call__", call)
    made = placement()
    feed = spread_feed(made.ranks.get("replicas", 1), epochs=STEPS)
    trained(tmp_path, made, feed, optimizer=keras.optimizers.SGD, until=Until(steps=2))
    assert len(set(called)) == graphs
    assert len(called) == calls * (2 + len(feed.session.shapes))
