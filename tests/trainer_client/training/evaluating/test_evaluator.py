"""Loss and metrics are means over rows that hold a sample, whatever batches they lie in; what may be added up."""

from __future__ import annotations

import numpy as np
import pytest

from shared.errors import DataError, SettingsError
from tests.support.two_devices import mirrored  # devices are set before TensorFlow starts

import keras  # isort: skip - after the devices are set
import tensorflow as tf  # isort: skip

from trainer_client.training.evaluating import evaluator as module  # isort: skip
from trainer_client.training.losses import RowLoss  # isort: skip
from trainer_client.training.evaluating.evaluation_sums import OwnSums  # isort: skip
from trainer_client.training.evaluating.evaluator import Evaluator, MetricVector, refuse_unsummed  # isort: skip

ROWS = np.random.default_rng(3).normal(size=(11, 2)).astype(np.float32)
TARGETS = ROWS.sum(1, keepdims=True) ** 2
#: Six, three and no valid rows of six, four and two.
BATCHES = [(slice(0, 6), [1] * 6), (slice(6, 10), [1, 0, 1, 1]), (slice(9, 11), [0, 0])]
VALID = [0, 1, 2, 3, 4, 5, 6, 8, 9]
ARRAYS = [np.array([[2.0], [-1.0]], np.float32), np.array([0.5], np.float32)]


def batches():
    for rows, weight in BATCHES:
        bad = np.where(np.array(weight)[:, None] > 0, TARGETS[rows], np.nan)  # a masked row may hold anything
        yield ROWS[rows], bad.astype(np.float32), np.array(weight, np.float32)


def data():
    spec = tuple(tf.TensorSpec(shape, tf.float32) for shape in ((None, 2), (None, 1), (None,)))
    return tf.data.Dataset.from_generator(batches, output_signature=spec)


def want():
    errors = (ROWS[VALID] @ ARRAYS[0] + ARRAYS[1] - TARGETS[VALID])[:, 0]
    return {"loss": float(np.mean(errors**2)), "mean_absolute_error": float(np.mean(np.abs(errors))), "rows": 9.0}


def squared(targets, outputs):
    return tf.reduce_sum((targets - outputs) ** 2, 1)


@pytest.mark.parametrize("loss", ["mse", keras.losses.MeanSquaredError(), RowLoss(squared), squared])
def test_whatever_the_loss_is_made_of_the_mean_is_over_samples(loss):
    model = keras.Sequential([keras.layers.Dense(1)])
    evaluator = Evaluator(model, loss, ["mean_absolute_error"])
    assert evaluator.evaluate(data(), ARRAYS) == pytest.approx(want(), rel=1e-5)
    assert evaluator.evaluate(data(), [0 * one for one in ARRAYS])["loss"] != pytest.approx(want()["loss"])
    assert evaluator.evaluate(data(), ARRAYS) == pytest.approx(want(), rel=1e-5)


def test_without_weights_every_row_counts_and_without_a_loss_there_is_none():
    whole = tf.data.Dataset.from_tensors((ROWS, TARGETS))
    metric = keras.metrics.MeanAbsoluteError(name="error")
    got = Evaluator(keras.Sequential([keras.layers.Dense(1)]), None, [metric]).evaluate(whole, ARRAYS)
    errors = np.abs(ROWS @ ARRAYS[0] + ARRAYS[1] - TARGETS)
    assert got == pytest.approx({"error": float(errors.mean()), "rows": 11.0}, rel=1e-5)


def test_two_inputs_are_not_taken_for_inputs_and_targets():
    class Difference(keras.layers.Layer):
        def call(self, inputs):
            rows, targets = inputs
            return targets - rows[:, :1]

    class MeanOutput(keras.metrics.Mean):
        def update_state(self, targets, outputs):
            assert targets is None
            super().update_state(outputs)

    whole = tf.data.Dataset.from_tensors(((ROWS, TARGETS),))
    evaluator = Evaluator(keras.Sequential([Difference()]), None, [MeanOutput(name="mean")])
    got = evaluator.evaluate(whole, [])
    assert got == pytest.approx({"mean": float((TARGETS - ROWS[:, :1]).mean()), "rows": 11.0}, rel=1e-4)


class Telling(keras.layers.Dense):
    """Notes each shape that it is traced for."""

    def __init__(self):
        super().__init__(1)
        self.traced = []

    def call(self, inputs):
        if not isinstance(inputs, tf.__internal__.EagerTensor):
            self.traced.append(inputs.shape.as_list())
        return super().call(inputs)


def test_the_model_is_traced_once_for_all_shapes():
    layer = Telling()
    evaluator = Evaluator(keras.Sequential([layer]), "mse", ["mean_absolute_error"])
    for _ in range(2):
        assert evaluator.evaluate(data(), ARRAYS) == pytest.approx(want(), rel=1e-5)
    assert layer.traced == [[None, 2]]


def test_a_model_that_needs_a_size_is_traced_for_each():
    class Sized(keras.layers.Dense):
        def call(self, inputs):
            return super().call(inputs) * (inputs.shape[0] / inputs.shape[0])

    evaluator = Evaluator(keras.Sequential([Sized(1)]), "mse", ["mean_absolute_error"])
    whole = tf.data.Dataset.from_generator(lambda: [next(batches())], output_signature=data().element_spec)
    assert evaluator.evaluate(whole, ARRAYS)["rows"] == 6


def test_another_models_checkpoint_is_refused():
    evaluator = Evaluator(keras.Sequential([keras.layers.Dense(2)]), None, [])
    with pytest.raises(
        DataError,
        match=r"expected the model\'s 2 variables, of which number \d is .*kernel with shape \(.*\), got 2 values",
    ):
        evaluator.evaluate(data(), ARRAYS)


class Largest(keras.metrics.Metric):
    """A metric whose variable is no sum, and does not say so."""

    def __init__(self):
        super().__init__(name="largest")
        self.value = self.add_weight(shape=(), initializer="zeros", name="value")

    def update_state(self, targets, outputs):
        self.value.assign(keras.ops.maximum(self.value, keras.ops.max(targets)))

    def result(self):
        return self.value


class SharedSums(OwnSums):
    """Sums of two processes that each read the same data; the first time that it is asked, some are left."""

    is_shared = True

    def __init__(self):
        super().__init__()
        self.begun, self.asked = [], 0

    def begin(self, layout, nbytes):
        super().begin(layout, nbytes)
        self.begun.append((layout, nbytes))

    def whole(self):
        self.asked += 1
        return None if self.asked == 1 else super().whole()


def test_a_metric_that_is_no_sum_is_counted_as_usual_where_one_process_has_all():
    """Its first batches leave it as it was."""
    targets = np.array([[-1.0], [-2.0], [5.0], [3.0]], np.float32)
    data = tf.data.Dataset.from_tensor_slices((ROWS[:4], targets)).batch(1)
    evaluator = Evaluator(keras.Sequential([keras.layers.Dense(1)]), "mse", [Largest(), "mean_absolute_error"])
    for _ in range(2):
        found = evaluator.evaluate(data, ARRAYS)
        errors = np.abs(ROWS[:4] @ ARRAYS[0] + ARRAYS[1] - targets)
        assert found["largest"] == 5
        assert found["mean_absolute_error"] == pytest.approx(float(errors.mean()), rel=1e-6)


def test_a_metric_that_is_no_sum_is_refused_by_name_where_several_share():
    evaluator = Evaluator(keras.Sequential([keras.layers.Dense(1)]), "mse", [Largest()])
    with pytest.raises(SettingsError, match=r"got others: largest \(Largest\)"):
        evaluator.evaluate(data(), ARRAYS, SharedSums())


def test_what_others_have_left_is_read_and_the_sums_are_everybodys():
    sums = SharedSums()
    metrics = [keras.metrics.RootMeanSquaredError(name="rmse")]
    found = Evaluator(keras.Sequential([keras.layers.Dense(1)]), "mse", metrics).evaluate(data(), ARRAYS, sums)
    assert found == pytest.approx({"loss": want()["loss"], "rmse": want()["loss"] ** 0.5, "rows": 18.0}, rel=1e-6)
    ((layout, nbytes),) = sums.begun
    assert nbytes == 8 * 5
    assert "rmse" in layout


def test_a_result_for_each_class_has_a_name_for_each():
    outputs = keras.Sequential([keras.layers.Dense(3, activation="softmax")])
    labels = np.eye(3, dtype=np.float32)[np.arange(11) % 3]
    found = Evaluator(outputs, None, [keras.metrics.F1Score(name="f1")]).evaluate(
        tf.data.Dataset.from_tensors((ROWS, labels))
    )
    assert set(found) == {"f1_0", "f1_1", "f1_2", "rows"}


class Declared(keras.metrics.Metric):
    """A metric that says that its variable is no sum."""

    def __init__(self):
        super().__init__(name="declared")
        self.value = self.add_variable((), "zeros", aggregation="mean", name="value")


def metrics():
    return [keras.metrics.Mean(name="mean"), keras.metrics.AUC(num_thresholds=3, name="auc")]


def test_all_variables_lie_in_one_vector_and_come_back():
    mean, auc = metrics()
    states = MetricVector([mean, auc])
    assert (states.size, states.nbytes) == (14, 112)
    mean.update_state([1.0, 3.0])
    auc.update_state([0, 1], [0.2, 0.9])
    whole = states.read().numpy()
    assert list(whole[states.place(mean)]) == [4, 2]
    want = float(auc.result())
    for metric in (mean, auc):
        metric.reset_state()
        states.load(metric, 2 * whole)
    assert (float(mean.result()), float(auc.result())) == (2.0, want)


def test_the_layout_tells_metrics_apart():
    layouts = [
        MetricVector([metric]).layout()
        for metric in (
            keras.metrics.AUC(name="auc"),
            keras.metrics.AUC(num_thresholds=3, name="auc"),
            keras.metrics.Precision(thresholds=0.5, name="auc"),
            keras.metrics.Precision(thresholds=0.4, name="auc"),
        )
    ]
    assert len(set(layouts)) == 4
    assert MetricVector([keras.metrics.AUC(name="auc")]).layout() == layouts[0]


def test_what_is_declared_to_be_no_sum_is_found_and_refused_by_name():
    declared = Declared()
    assert MetricVector([*metrics(), declared]).not_declared("sum") == [declared]
    with pytest.raises(SettingsError, match=r"got others: declared \(Declared\)"):
        refuse_unsummed([declared], where="here")
    refuse_unsummed([], where="here")


def test_a_batch_counted_twice_has_to_add_the_same_twice():
    mean, auc = metrics()
    states = MetricVector([mean, auc])
    once = states.base.copy()
    once[states.place(mean)] = [4, 2]
    assert states.not_additive(once, 2 * once) == []
    assert states.not_additive(once, once) == [mean]
    assert states.not_additive(once, 2 * once * (1 + 1e-5)) == [], "float32 rounds"
    once[states.place(auc)] = np.nan
    assert states.not_additive(once, 2 * once) == []


def test_more_than_an_evaluation_may_take_is_refused_with_the_largest(monkeypatch):
    monkeypatch.setattr(module, "MOST_STATE_BYTES", 100)
    mean, auc = metrics()
    MetricVector([mean]).refuse_too_large()
    with pytest.raises(SettingsError, match="at most 100 bytes as float64, got 112, of which 96 are of auc"):
        MetricVector([mean, auc]).refuse_too_large()
