"""What callbacks change of an optimizer (its rate is read, all else refused by name), and gradients that are kept."""

from __future__ import annotations

import types
from typing import NamedTuple

import numpy as np
import pytest

from shared.errors import SettingsError
from shared.quick_import import quick_import

with quick_import():
    import keras
    import tensorflow as tf

from trainer_client.training.servers.served_optimizer import (
    CollectedGradients,
    OptimizerSettings,
    merge_rows,
    rows_between,
)


class Unsaved(keras.optimizers.schedules.LearningRateSchedule):
    """A schedule without a configuration."""

    def __call__(self, step):
        return 0.5


def a_model(optimizer):
    return types.SimpleNamespace(optimizer=optimizer)


def decay():
    return keras.optimizers.schedules.ExponentialDecay(0.5, 10, 0.9)


def test_the_rate_is_what_callbacks_set_it_to():
    model = a_model(keras.optimizers.Adam(0.5))
    settings = OptimizerSettings(model)
    model.optimizer.learning_rate = 0.25
    settings.refuse_changes(0)
    assert settings.rate() == 0.25


@pytest.mark.parametrize("schedule", [decay, Unsaved])
def test_a_schedule_has_no_rate_that_could_be_set(schedule):
    settings = OptimizerSettings(a_model(keras.optimizers.Adam(schedule())))
    settings.refuse_changes(0)
    assert settings.rate() is None


def replace_optimizer(model):
    model.optimizer = keras.optimizers.Adam(0.5)


def replace_rate(model):
    model.optimizer.learning_rate = decay()


def weaken(model):
    model.optimizer.beta_1 = 0.5


def clip(model):
    model.optimizer.clipnorm = 1.0


def count(model):
    model.optimizer.iterations.assign(9)


def break_rate(model):
    model.optimizer.learning_rate = float("nan")


@pytest.mark.parametrize(
    ("change", "got"),
    [
        (replace_optimizer, "the optimizer changed from Adam to another Adam"),
        (replace_rate, "learning_rate changed from a number to a ExponentialDecay"),
        (weaken, r"beta_1 changed from 0\.9 to 0\.5"),
        (clip, r"clipnorm changed from None to 1\.0"),
        (count, "iterations changed from 0 to 9"),
        (break_rate, "learning_rate changed from a finite number to nan"),
    ],
)
def test_any_other_change_is_refused_by_its_name(change, got):
    model = a_model(keras.optimizers.Adam(0.5))
    settings = OptimizerSettings(model)
    settings.refuse_changes(0)
    change(model)
    with pytest.raises(SettingsError, match=f"nothing of the optimizer but its learning rate.*{got}"):
        settings.refuse_changes(0)


def test_a_schedule_that_is_changed_or_replaced_is_refused():
    for is_replaced in (True, False):
        schedule = decay()
        model = a_model(keras.optimizers.SGD(schedule))
        settings = OptimizerSettings(model)
        if is_replaced:
            model.optimizer.learning_rate = decay()
        else:
            schedule.decay_rate = 0.1
        with pytest.raises(SettingsError, match="learning_rate changed from"):
            settings.refuse_changes(0)


def test_what_is_plain_is_compared_where_an_optimizer_has_no_configuration():
    model = a_model(keras.optimizers.SGD(Unsaved()))
    settings = OptimizerSettings(model)
    model.optimizer.momentum = 0.5
    with pytest.raises(SettingsError, match=r"momentum changed from 0\.0 to 0\.5"):
        settings.refuse_changes(0)


# --- gradients of rows: merged, and cut to a part ---


def test_a_row_that_is_named_several_times_has_the_sum():
    numbers, values = merge_rows(np.array([7, 2, 7, 0, 7], np.int32), np.arange(10, dtype=np.float32).reshape(5, 2))
    assert (numbers.tolist(), numbers.dtype) == ([0, 2, 7], np.int64)
    assert values.tolist() == [[6, 7], [2, 3], [12, 15]]


def test_no_rows_stay_none():
    numbers, values = merge_rows(np.zeros(0, np.int64), np.zeros((0, 3), np.float32))
    assert (numbers.shape, values.shape) == ((0,), (0, 3))


def test_a_part_has_its_rows_counted_from_its_first():
    rows = merge_rows(np.array([1, 4, 5, 9]), np.array([[1.0], [4.0], [5.0], [9.0]]))
    numbers, values = rows_between(rows, 4, 9)
    assert (numbers.tolist(), values.tolist()) == ([0, 1], [[4.0], [5.0]])


class OfTable(NamedTuple):
    table: str
    ids: object
    values: object


def test_rows_of_tables_are_kept_by_rising_id_and_those_without_a_gradient_are_left_out():
    """Such as those of masked samples, which otherwise would move a lazy optimizer's state."""
    kept = CollectedGradients(keras.optimizers.SGD(1.0, clipvalue=2.0), [], goes_on=False)
    values = tf.constant([[3.0, -1.0], [0.0, 0.0], [0.0, 1.0]])
    nothing = OfTable("others", tf.constant([4], tf.int64), tf.zeros((1, 2)))
    kept.apply_rows([OfTable("words", tf.constant([7, 2**40, -3], tf.int64), values), nothing])
    ((ids, gradients),) = kept.read_rows().values()
    assert ids.tolist() == [-3, 7]
    assert gradients.tolist() == [[0.0, 1.0], [2.0, -1.0]]
