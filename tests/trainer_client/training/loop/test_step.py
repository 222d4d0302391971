"""One training step as a graph: what is applied, what is not and leaves nothing behind, and which graph is run."""

from __future__ import annotations

import numpy as np
import pytest

import keras  # isort: skip
import tensorflow as tf  # isort: skip

from trainer_client.training.strategies.single import Single  # isort: skip
from trainer_client.training.loop.step import APPLIED, NOT_FINITE, NOTHING_TO_APPLY, TrainStep  # isort: skip


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
