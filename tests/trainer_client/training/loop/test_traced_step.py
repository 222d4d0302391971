"""A step that was traced for all shapes is one graph, which each strategy calls directly; others are looked for."""

from __future__ import annotations

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
from trainer_client.training.loop.traced_step import TracedStep  # isort: skip

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
