"""The variables of metrics as one vector, and which of them may be added up."""

from __future__ import annotations

import numpy as np
import pytest

from shared.errors import SettingsError
from tests.support.two_devices import mirrored  # devices are set before TensorFlow starts

import keras  # isort: skip - after the devices are set

from trainer_client.training.evaluating import metric_vector as module  # isort: skip
from trainer_client.training.evaluating.metric_vector import MetricVector, refuse_unsummed  # isort: skip


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
