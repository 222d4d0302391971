"""Masked rows change neither a loss nor its gradient."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.two_devices import mirrored

import keras  # isort: skip - after the devices are set
import tensorflow as tf  # isort: skip

from trainer_client.training import losses  # isort: skip
from trainer_client.training.losses import CTC, RowLoss, blank_after, ctc_per_row, masked_mean, valid_rows  # isort: skip
from trainer_client.tf.private_api import untune_devices, untuned  # isort: skip

FRAMES, CLASSES, LABELS = 12, 5, 4


def test_the_public_names():
    assert sorted(losses.__all__) == ["CTC", "RowLoss", "blank_after", "ctc_per_row", "masked_mean", "valid_rows"]


def squares(y_true, y_pred):
    return tf.reduce_mean(tf.square(y_true - y_pred), axis=-1)


def batch(seed, rows):
    random = np.random.default_rng(seed)
    labels = random.integers(1, CLASSES, (rows, LABELS)).astype(np.int32)
    lengths = random.integers(1, LABELS + 1, rows).astype(np.int32)
    labels[np.arange(LABELS) >= lengths[:, None]] = 0
    frames = random.integers(2 * LABELS + 1, FRAMES + 1, rows).astype(np.int32)
    logits = random.normal(size=(rows, FRAMES, CLASSES)).astype(np.float32)
    return labels, lengths, logits, frames


def with_masked_rows(arrays, masked):
    """The same rows, and masked ones behind them that hold whatever is worst."""
    more = [np.concatenate([a, np.zeros((masked, *a.shape[1:]), a.dtype)]) for a in arrays]
    more[2][-masked:] = np.nan
    return more, np.r_[np.ones(len(arrays[0])), np.zeros(masked)].astype(np.float32)


def gradient_of(loss, logits):
    logits = tf.constant(logits)
    with tf.GradientTape() as tape:
        tape.watch(logits)
        value = loss(logits)
    return float(value), tape.gradient(value, logits).numpy()


def test_a_mean_divides_by_weights():
    assert float(masked_mean(tf.constant([1.0, 3.0, 100.0]), tf.constant([1.0, 1.0, 0.0]))) == 2.0
    assert float(masked_mean(tf.constant([1.0, 4.0]), tf.constant([0.5, 0.25]))) == 2.0


def test_a_mean_of_no_valid_rows_is_nought():
    assert float(masked_mean(tf.constant([np.nan, np.inf]), tf.constant([0.0, 0.0]))) == 0.0


def test_valid_rows_stops_what_is_not_finite_in_both_directions():
    values = tf.constant([[4.0], [0.0]])
    with tf.GradientTape() as tape:
        tape.watch(values)
        roots = tf.sqrt(valid_rows(values, tf.constant([1.0, 0.0])) + tf.constant([[0.0], [1.0]]))
        loss = masked_mean(roots[:, 0], tf.constant([1.0, 0.0]))
    np.testing.assert_allclose(tape.gradient(loss, values), [[0.25], [0.0]])


@pytest.mark.parametrize("valid", [3, 0])
@pytest.mark.parametrize("masked", [1, 4])
def test_ctc_with_masked_rows_is_ctc_without(valid, masked):
    plain = batch(1, valid or 3)
    labels, lengths, logits, frames = plain
    weight = np.full(len(labels), float(bool(valid)), np.float32)
    (more_labels, more_lengths, more_logits, more_frames), more_weight = with_masked_rows(plain, masked)
    more_weight *= bool(valid)

    def alone(x):
        return masked_mean(ctc_per_row(labels, x, lengths, frames, weight), weight)

    def padded(x):
        return masked_mean(ctc_per_row(more_labels, x, more_lengths, more_frames, more_weight), more_weight)

    want, want_gradient = gradient_of(alone, logits)
    got, gradient = gradient_of(padded, more_logits)
    assert got == pytest.approx(want, rel=1e-6)
    np.testing.assert_allclose(gradient[: len(labels)], want_gradient, atol=1e-7)
    np.testing.assert_array_equal(gradient[len(labels) :], 0)
    assert (want == 0) == (valid == 0)


def test_the_compiled_ctc_is_the_same_as_with_lengths():
    plain = batch(2, 5)
    (labels, lengths, logits, frames), weight = with_masked_rows(plain, 2)
    want, want_gradient = gradient_of(
        lambda x: masked_mean(ctc_per_row(labels, x, lengths, frames, weight), weight), logits
    )
    got, gradient = gradient_of(lambda x: CTC()(labels, blank_after(x, frames), weight), logits)
    assert got == pytest.approx(want, rel=1e-5)
    np.testing.assert_allclose(gradient, want_gradient, atol=1e-6)


def test_ctc_that_is_traced_for_several_shapes_makes_tensorflow_complain_of_none(capfd):
    step = tf.function(lambda labels, logits: tf.gradients(CTC()(labels, logits), logits))
    for rows, frames, labels in ((5, 12, 4), (3, 7, 2)):
        step(tf.ones((rows, labels), tf.int32), tf.zeros((rows, frames, 5)))
    assert step.experimental_get_tracing_count() == 2
    assert "not compatible" not in capfd.readouterr().err


def test_compiled_losses_train_as_if_masked_rows_were_not_there():
    random = np.random.default_rng(3)
    x, y = random.normal(size=(4, 3)).astype(np.float32), random.normal(size=(4, 1)).astype(np.float32)
    padded_x, padded_y = np.r_[x, np.ones((4, 3), np.float32)], np.r_[y, np.full((4, 1), 9, np.float32)]
    weights = []
    for inputs, targets, weight in ((x, y, np.ones(4)), (padded_x, padded_y, np.repeat([1.0, 0.0], 4))):
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, kernel_initializer="ones")])
        model.compile("sgd", RowLoss(squares))
        model.train_on_batch(inputs, targets, sample_weight=weight)
        weights.append(model.get_weights())
    for want, got in zip(*weights, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)


def test_replicas_with_fewer_rows_weigh_as_much_as_their_rows():
    strategy = mirrored()
    x = tf.constant([[1.0], [2.0], [3.0], [0.0]])
    weight = tf.constant([1.0, 1.0, 1.0, 0.0])
    with strategy.scope():
        variable = tf.Variable(1.0)

    def step(index):
        rows, own = x[index * 2 : index * 2 + 2], weight[index * 2 : index * 2 + 2]
        with tf.GradientTape() as tape:
            loss = masked_mean(variable * rows[:, 0] ** 2, own)
        gradient = tf.distribute.get_replica_context().all_reduce(
            tf.distribute.ReduceOp.SUM, tape.gradient(loss, variable)
        )
        return loss, gradient

    ids = strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant(context.replica_id_in_sync_group)
    )
    losses, gradients = tf.function(lambda: strategy.run(step, args=(ids,)))()
    assert float(strategy.reduce("SUM", losses, axis=None)) == pytest.approx(14 / 3)
    assert float(strategy.experimental_local_results(gradients)[0]) == pytest.approx(14 / 3)


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_fit_under_two_replicas_reports_and_follows_the_mean_over_all_rows():
    x = np.array([[1.0], [2.0], [3.0], [4.0]], np.float32)
    y = np.zeros((4, 1), np.float32)
    weight = np.array([1.0, 1.0, 1.0, 0.0], np.float32)
    results = []
    for strategy in (tf.distribute.get_strategy(), mirrored()):
        with strategy.scope():
            model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="ones")])
            model.compile("sgd", RowLoss(squares))
        data = untuned(tf.data.Dataset.from_tensors((x, y, weight)))
        if strategy.num_replicas_in_sync == 2:
            parts = untuned(tf.data.Dataset.from_tensor_slices((x, y, weight)).batch(2))
            data = strategy.distribute_datasets_from_function(lambda _context, parts=parts: parts)
        with untune_devices():
            loss = model.fit(data, verbose=0, shuffle=False).history["loss"][0]
        results.append([loss, *(float(w.ravel()[0]) for w in model.get_weights())])
    np.testing.assert_allclose(results[1], results[0], rtol=1e-5)
