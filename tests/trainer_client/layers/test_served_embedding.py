"""The layer of a table that is on servers: what it allocates, asks for, masks, saves and refuses."""

from __future__ import annotations

import numpy as np
import pytest

from shared.errors import SettingsError
from shared.quick_import import quick_import

with quick_import():
    import keras
    import tensorflow as tf

from trainer_client.layers import ServedEmbedding
from trainer_client.layers.initial_rows import initial_rows
from trainer_client.layers.served_embedding import collecting_lookups, tables_in
from trainer_client.training.loop.step import TrainStep

IDS = np.array([[3, 2**40, 3], [-7, 0, 3]], np.int64)
INITIALIZERS = ("uniform", "normal", "ones", keras.initializers.RandomNormal(1.0, 0.5), keras.initializers.Constant(2))


class Noting:
    """A source of rows, which notes what it is asked for."""

    def __init__(self):
        self.asked = []

    def rows(self, form, ids, *, training):
        self.asked.append((form.name, ids.tolist(), training))
        return np.stack([np.full(form.dim, number, np.float32) for number in ids])


def noted(layer):
    layer.source = Noting()
    return layer.source.asked


def test_each_id_of_a_batch_is_asked_for_once_and_nothing_is_allocated():
    layer = ServedEmbedding("words", 2)
    asked = noted(layer)
    rows = layer(IDS)
    np.testing.assert_array_equal(rows, np.repeat(IDS[..., None], 2, 2).astype(np.float32))
    assert asked == [("words", [3, 2**40, -7, 0], False)]
    assert layer.weights == []


@pytest.mark.parametrize("initializer", INITIALIZERS, ids=str)
def test_a_table_that_is_held_makes_the_rows_that_it_lacks_as_servers_would(initializer):
    layer = ServedEmbedding("words", 5, initializer, seed=4)
    made = layer(IDS).numpy()
    np.testing.assert_array_equal(made, initial_rows(layer.form, IDS.ravel()).reshape(2, 3, 5))
    layer.hold(np.array([-7, 9], np.int64), np.array([[8.0] * 5, [9.0] * 5], np.float32))
    held = tf.function(layer)(tf.constant(IDS)).numpy()
    assert (held[1, 0] == 8).all()
    np.testing.assert_allclose(np.delete(held.reshape(6, 5), 3, 0), np.delete(made.reshape(6, 5), 3, 0), rtol=1e-6)
    layer = ServedEmbedding("words", 5, initializer, seed=4)
    layer.hold(np.zeros(0, np.int64), np.zeros((0, 5), np.float32))
    np.testing.assert_allclose(layer(IDS), made, rtol=1e-6)


@pytest.mark.parametrize("initializer", INITIALIZERS, ids=str)
def test_a_layer_is_made_anew_from_its_configuration(initializer):
    layer = ServedEmbedding(
        "words", 3, initializer, rows=2**41 // 2, seed=2**63, mask_zero=True, dtype="mixed_bfloat16"
    )
    made = keras.layers.deserialize(keras.layers.serialize(layer))
    assert made.form == layer.form
    assert made.get_config() == layer.get_config()
    assert made(IDS).dtype == tf.bfloat16


def test_zero_is_padding_only_if_it_is_asked_for():
    np.testing.assert_array_equal(ServedEmbedding("words", 2, mask_zero=True).compute_mask(IDS), IDS != 0)
    assert ServedEmbedding("words", 2).compute_mask(IDS) is None


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"dim": 0}, "dim from 1"),
        ({"rows": 0}, "rows from 1"),
        ({"rows": 2.5}, "rows from 1"),
        ({"seed": -1}, "seed from 0"),
        ({"initializer": "glorot_uniform"}, "an initializer whose rows depend on their ids alone"),
        ({"initializer": keras.initializers.Constant([1.0, 2.0])}, "an initializer"),
    ],
)
def test_what_no_table_can_be_is_refused(how, words):
    with pytest.raises(SettingsError, match=words):
        ServedEmbedding(**{"name": "words", "dim": 2, **how})


# --- steps ---


class Shared(keras.Model):
    """A table that is looked up twice, once within another layer."""

    def __init__(self):
        super().__init__()
        self.table = ServedEmbedding("words", 2)
        self.inner = keras.Sequential([self.table, keras.layers.GlobalAveragePooling1D()])

    def call(self, ids):
        return (self.inner(ids) + 2 * self.table(ids)[:, 0])[:, :1]


def test_gradients_of_one_table_are_one_though_it_is_looked_up_more_than_once():
    model = Shared()
    asked = noted(model.table)
    assert tables_in(model) == [model.table]
    step = TrainStep(model, lambda _targets, outputs: outputs[:, 0], keras.optimizers.SGD(1.0))
    step.takes_rows = True
    part = step.contribute((tf.constant(IDS), tf.zeros(2), tf.ones(2)))
    ((table, ids, values),) = part.of_tables
    assert (table, sorted(ids.numpy().tolist())) == ("words", [-7, 0, 3, 2**40])
    # A row of the batch has a third of each of its ids, and twice the first one; the loss is the mean of two rows.
    thirds = {3: 3 / 3 + 2, 2**40: 1 / 3, -7: 1 / 3 + 2, 0: 1 / 3}
    np.testing.assert_allclose(values[:, 0], [thirds[number] / 2 for number in ids.numpy().tolist()], rtol=1e-6)
    assert not values[:, 1].numpy().any()
    assert [training for _, _, training in asked] == [True, True]


def test_rows_that_the_loss_does_not_depend_on_have_no_gradient():
    table = ServedEmbedding("words", 2)
    inputs = keras.Input((3,), dtype="int64")
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.ops.stop_gradient(table(inputs))[:, 0]))
    step = TrainStep(model, "mse", keras.optimizers.SGD(1.0))
    step.takes_rows = True
    (gradients,) = step.contribute((tf.constant(IDS), tf.zeros((2, 1)), tf.ones(2))).of_tables
    assert not gradients.values.numpy().any()


def test_lookups_are_those_of_the_innermost_block_that_collects():
    table = ServedEmbedding("words", 2)
    with tf.GradientTape() as outer, collecting_lookups(outer, is_on=True) as collected:
        table(IDS, training=True)
        with tf.GradientTape() as inner, collecting_lookups(inner, is_on=True) as others:
            table(IDS[:1], training=True)
        with collecting_lookups(outer, is_on=False), pytest.raises(RuntimeError, match="another way to train words"):
            table(IDS, training=True)
        table(IDS)
    assert [len(lookup.ids) for lookup in collected] == [4]
    assert [len(lookup.ids) for lookup in others] == [2]
