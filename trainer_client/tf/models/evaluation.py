"""Evaluates a model on a data set: its loss and metrics, over rows that hold a sample and no others.

Rules: every sample has the same weight in a mean, however the batches are filled, so masked rows are left out before
loss and metrics see them; the weights of a batch say which those are. It must not know feeds or checkpoints.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

from trainer_client.tf.models.variables import assign_values

__all__ = ["Evaluator"]


class Evaluator:
    """One model, whose variables come from a checkpoint before each evaluation."""

    def __init__(self, model: Any, loss: Any, metrics: Sequence[Any]) -> None:  # noqa: ANN401 - Keras has no types
        self._model = model
        self._loss = keras.losses.get(loss)
        self._metrics = [_metric(one) for one in metrics]
        self._total = keras.metrics.Mean(name="loss")
        self._rows = keras.metrics.Sum(name="rows")
        self._step = tf.function(self._judge, reduce_retracing=True)
        self._is_traced = False

    def evaluate(self, data: tf.data.Dataset, arrays: Sequence[NDArray[Any]] | None = None) -> dict[str, float]:
        """Loss, metrics and the number of rows, for the model with these values in its variables, or as it is.

        Elements are as for `fit`.
        """
        for one in self._all():
            one.reset_state()
        assigned = arrays is None
        for batch in data:
            inputs, targets, weight = keras.utils.unpack_x_y_sample_weight(batch)
            if not assigned and arrays is not None:
                self._assign(inputs, arrays)
                assigned = True
            if not self._is_traced:
                self._trace_for_any_shape(data)
            self._step(inputs, targets, weight)
        return {one.name: float(one.result()) for one in self._all()}

    def _all(self) -> list[Any]:
        return [*([self._total] if self._loss is not None else []), *self._metrics, self._rows]

    def _assign(self, inputs: Any, arrays: Sequence[NDArray[Any]]) -> None:  # noqa: ANN401 - tensors
        if not self._model.built:
            self._model(inputs)
        assign_values(self._model.variables, arrays)

    def _trace_for_any_shape(self, data: Any) -> None:  # noqa: ANN401 - whatever yields elements
        """One graph for all shapes: the first ones of a stream would each have one of their own."""
        spec = getattr(data, "element_spec", None)
        if spec is None or not self._model.built:
            return
        self._is_traced = True
        with contextlib.suppress(Exception):  # whatever a model raises that needs a size: it is traced for each shape
            self._step.get_concrete_function(*keras.utils.unpack_x_y_sample_weight(spec))

    def _judge(self, inputs: Any, targets: Any, weight: Any) -> None:  # noqa: ANN401 - tensors
        outputs = self._model(inputs, training=False)
        if weight is not None:
            targets, outputs = _rows_of(targets, weight), _rows_of(outputs, weight)
        rows = tf.shape(tf.nest.flatten(outputs)[0])[0]
        self._rows.update_state(rows)
        if rows > 0:
            if self._loss is not None:
                self._total.update_state(tf.reduce_mean(self._loss(targets, outputs)), sample_weight=rows)
            for one in self._metrics:
                one.update_state(targets, outputs)


def _rows_of(values: Any, weight: Any) -> Any:  # noqa: ANN401 - tensors
    """The rows of each tensor that hold a sample."""
    return tf.nest.map_structure(lambda one: tf.boolean_mask(one, weight != 0), values)


def _metric(said: Any) -> Any:  # noqa: ANN401 - a metric, its name or a function
    found = keras.metrics.get(said)
    return found if isinstance(found, keras.metrics.Metric) else keras.metrics.MeanMetricWrapper(found, found.__name__)
