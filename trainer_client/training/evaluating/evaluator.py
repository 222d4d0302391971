"""Evaluation of a model on a data set: its loss and metrics, over rows that hold a sample and no others.

Rules: every sample has the same weight in a mean, however the batches are filled, so masked rows are removed before
loss and metrics see them; the weights of a batch say which those are. Each batch is counted by metrics that were reset,
and what it added to their variables is summed in float64, here or where those of several processes are summed. So the
result is the same however batches are shared. A metric whose variables are no sums is counted in the usual way if this
process has all batches, and refused by name if it has not. This module must not know feeds or checkpoints.
"""

from __future__ import annotations

import json
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from shared.errors import SettingsError
from shared.wire.message_parts import MOST_STATE_BYTES
from trainer_client.network.trainer_log import process_log
from trainer_client.training.checkpoints.saved_model import assign_values
from trainer_client.training.evaluating.evaluation_sums import OwnSums

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from trainer_client.training.evaluating.evaluation_sums import EvaluationSums

__all__ = ["Evaluator", "MetricVector", "describe", "refuse_unsummed"]

#: How many first batches are counted twice, to see whether that adds twice as much; later ones are at powers of two.
_CHECKED = 8

#: How much the second adding of a batch may differ from the first, relatively: float32 rounds.
_RELATIVE, _ABSOLUTE = 1e-3, 1e-6


class Evaluator:
    """An evaluator of one model, whose variables may come from a checkpoint before each evaluation.

    Raise ValueError for the name of a loss or metric that Keras does not know.
    """

    def __init__(self, model: Any, loss: Any, metrics: Sequence[Any]) -> None:
        self._model = model
        self._loss = keras.losses.get(loss)
        self._metrics = [_metric(metric) for metric in metrics]
        self._total = keras.metrics.Mean(name="loss")
        self._rows = keras.metrics.Sum(name="rows")
        #: Metrics whose variables are no sums over batches.
        self._unsummed: list[Any] = []
        #: The metrics' variables; None until the first batch, when metrics make them.
        self._states: MetricVector | None = None
        #: Values to assign to the model's variables before its first batch.
        self._arrays: Sequence[NDArray[Any]] | None = None
        #: How many batches were counted, in all evaluations.
        self.batches = 0
        self._begin_step()

    def _begin_step(self) -> None:
        self._step = tf.function(self._judge, reduce_retracing=True)
        self._is_traced = False

    def evaluate(
        self,
        data: Any,
        arrays: Sequence[NDArray[Any]] | None = None,
        sums: EvaluationSums | None = None,
    ) -> dict[str, float]:
        """Return loss, metrics and the number of rows, for the model with these values in its variables, or as it is.

        Elements are as for `fit`. With `sums` of several processes, each has a part of the batches, and all get the
        same values, those of all. Raise DataError if the values do not fit the model, and SettingsError for metrics
        that several processes cannot sum, or that are too large for it. Errors of the model, of the metrics, of the
        data and of the sums are passed on. If no process has a batch the values are those of new metrics.
        """
        sums = sums or OwnSums()
        self._arrays = arrays
        for metric in self._all():
            metric.reset_state()
        # A process that gets no batch adds to shared sums as well, so it has to know the metrics' variables.
        if sums.is_shared and hasattr(data, "example"):
            self._prepare(*keras.utils.unpack_x_y_sample_weight(data.example()))
        whole = self._sum(data, sums)
        while whole is None:  # other processes have given batches back
            whole = self._sum(data, sums, goes_on=True)
        return self._results(whole)

    def _sum(self, data: Any, sums: EvaluationSums, *, goes_on: bool = False) -> NDArray[np.float64] | None:
        """Read data to its end; return the sums over all batches, or None if others have left some.

        Without any batch, and with nothing begun, it is a single 0. Errors of `evaluate` are raised here.
        """
        has_begun = goes_on or self._begin(sums)
        for batch in data:
            parts = keras.utils.unpack_x_y_sample_weight(batch)
            self._prepare(*parts)
            has_begun = has_begun or self._begin(sums)
            if not self._is_traced:
                self._trace_for_any_shape(data)
            sums.add(self._added_by(parts, sums))
        return sums.whole() if has_begun else np.zeros(())

    def _begin(self, sums: EvaluationSums) -> bool:
        """Begin the sums, if metrics have their variables by now; return whether they have.

        Metrics whose variables are declared as no sums are counted in the usual way if this process has all batches. If
        several processes share the evaluation, raise SettingsError for such metrics, and for variables that are too
        large.
        """
        states = self._states
        if states is None:
            return False
        self._note_unsummed(states.not_declared(getattr(self._rows.variables[0], "aggregation", "sum")), sums)
        if sums.is_shared:
            states.refuse_too_large()
            refuse_unsummed(self._unsummed, where=_SEVERAL)
        sums.begin(f"{describe(self._loss)} {states.layout()}", states.nbytes)
        return True

    def _results(self, whole: NDArray[np.float64]) -> dict[str, float]:
        states = self._states
        if states is None:  # there was no batch at all
            return self._values()
        whole = states.base + whole
        for metric in self._all():
            if metric not in self._unsummed:
                states.load(metric, whole)
        return self._values() | {"rows": float(whole[states.place(self._rows)][0])}

    def _values(self) -> dict[str, float]:
        return {name: value for metric in self._all() for name, value in _named(metric.name, metric.result())}

    def _all(self) -> list[Any]:
        return [*([self._total] if self._loss is not None else []), *self._metrics, self._rows]

    # --- before the first batch ---

    def _prepare(self, inputs: Any, targets: Any, weight: Any) -> None:
        """Assign the model's values, and have metrics make the variables that depend on outputs; both once only.

        Raise DataError if the values are of another number or have other shapes than the model's variables; errors of
        the model and of metrics are passed on.
        """
        if self._arrays is not None:
            if not self._model.built:
                self._model(inputs)
            assign_values(self._model.variables, self._arrays)
            self._arrays = None
        if self._states is None:
            outputs = self._model(inputs, training=False)
            if weight is not None and np.any(weight):
                targets, outputs = _rows_of(targets, weight), _rows_of(outputs, weight)
            for metric in self._metrics:
                metric.update_state(targets, outputs)
                metric.reset_state()
            self._states = MetricVector(self._all())

    def _trace_for_any_shape(self, data: Any) -> None:
        """Trace one graph for all shapes; if the model needs sizes, each shape has a graph of its own.

        An error of tracing is logged. Do nothing if the data has no spec, or the model is not built.
        """
        spec = getattr(data, "element_spec", None)
        if spec is None or not self._model.built:
            return
        self._is_traced = True
        try:
            self._step.get_concrete_function(*keras.utils.unpack_x_y_sample_weight(spec), tf.TensorSpec((), tf.bool))
        except Exception as error:  # a model may raise anything if it needs a size
            process_log().info(
                "an evaluation is traced for each shape: it fails where sizes are open", error=str(error)
            )

    # --- a batch ---

    def _added_by(self, parts: tuple[Any, Any, Any], sums: EvaluationSums) -> Any:
        """Return what a batch adds to the variables.

        The first batches, and ever fewer later ones, are counted twice: a metric to which that does not add the same
        twice is counted in the usual way from then on, or, if several processes share the evaluation, refused with
        SettingsError. Errors of the model and of metrics are passed on.
        """
        states = self._states
        assert states is not None
        self.batches += 1
        # The second term is true for powers of two: ever more seldom, because a checked batch is counted twice.
        is_checked = self.batches <= _CHECKED or self.batches & (self.batches - 1) == 0
        once, twice = self._step(*parts, tf.constant(is_checked))
        if is_checked:
            odd = states.not_additive(once.numpy(), twice.numpy())
            odd = [metric for metric in odd if metric not in self._unsummed]
            if odd:
                refuse_unsummed(odd if sums.is_shared else [], where=_SEVERAL)
                self._note_unsummed(odd, sums, sofar=sums.whole())
                # The step has changed: it no longer resets these metrics, and counts this batch in them.
                once, _ = self._step(*parts, tf.constant(False))  # noqa: FBT003 - a tensor
        return once - states.base

    def _note_unsummed(
        self, metrics: Sequence[Any], sums: EvaluationSums, *, sofar: NDArray[np.float64] | None = None
    ) -> None:
        """Count these metrics in the usual way from now on, starting from their sums so far.

        If several processes share the evaluation they are only noted. Metrics that are noted already are passed over.
        """
        new = [metric for metric in metrics if metric not in self._unsummed]
        if not new:
            return
        self._unsummed += new
        self._begin_step()
        for metric in new if not sums.is_shared else ():
            metric.reset_state()
            if sofar is not None:
                assert self._states is not None
                self._states.load(metric, self._states.base + sofar)

    def _judge(self, inputs: Any, targets: Any, weight: Any, is_checked: Any) -> tuple[Any, Any]:
        """Count a batch with metrics that were reset, and, if it is checked, count it once more.

        Return the metrics' variables after each, the same ones if it is not checked. Metrics that are no sums are never
        reset, and counted once.
        """
        assert self._states is not None
        outputs = self._model(inputs, training=False)
        if weight is not None:
            targets, outputs = _rows_of(targets, weight), _rows_of(outputs, weight)
        rows = tf.shape(tf.nest.flatten(outputs)[0])[0]
        summed = [metric for metric in self._metrics if metric not in self._unsummed]
        for metric in (self._total, self._rows, *summed):
            metric.reset_state()
        self._count(summed, targets, outputs, rows)
        if rows > 0:
            # Never reset, and counted once only: they have the batches of this whole evaluation in them.
            for metric in self._unsummed:
                metric.update_state(targets, outputs)
        once = self._states.read()
        if is_checked:
            self._count(summed, targets, outputs, rows)
        return once, self._states.read()

    def _count(self, metrics: Sequence[Any], targets: Any, outputs: Any, rows: Any) -> None:
        self._rows.update_state(rows)
        if rows > 0:
            if self._loss is not None:
                self._total.update_state(tf.reduce_mean(self._loss(targets, outputs)), sample_weight=rows)
            for metric in metrics:
                metric.update_state(targets, outputs)


_SEVERAL = "an evaluation by several processes"


def _named(name: str, result: Any) -> Iterator[tuple[str, float]]:
    """Yield each number of a metric's result, with its name.

    A result with names has those; several numbers, such as one for each class, are numbered: `name_0`. NumPy's errors
    for a result that is no number pass through.
    """
    if isinstance(result, dict):
        for key, value in result.items():
            yield from _named(str(key), value)
        return
    numbers = np.asarray(result, np.float64)
    if numbers.size == 1:
        yield name, float(numbers.reshape(()))
        return
    for place, number in enumerate(numbers.reshape(-1)):
        yield f"{name}_{place}", float(number)


def _rows_of(values: Any, weight: Any) -> Any:
    """Return each tensor with only the rows that hold a sample."""
    return tf.nest.map_structure(lambda tensor: tf.boolean_mask(tensor, weight != 0), values)


def _metric(metric: Any) -> Any:
    known = keras.metrics.get(metric)
    return known if isinstance(known, keras.metrics.Metric) else keras.metrics.MeanMetricWrapper(known, known.__name__)


class MetricVector:
    """The variables of these metrics as one vector; the metrics are built and as `reset_state` leaves them.

    Everything is float64, so that sums of many batches are exact enough. Metrics whose variables are no sums over
    batches are found by what they declare, and by trying: a batch that is counted twice has to add the same twice.
    """

    def __init__(self, metrics: Sequence[Any]) -> None:
        self._metrics = list(metrics)
        self._variables = [metric.variables for metric in metrics]
        sizes = [sum(int(np.prod(variable.shape)) for variable in variables) for variables in self._variables]
        ends = np.cumsum([0, *sizes])
        self._places = [slice(int(start), int(stop)) for start, stop in pairwise(ends)]
        self.size = int(ends[-1])
        #: What the variables hold before anything was counted.
        self.base: NDArray[np.float64] = self.read().numpy()

    @property
    def nbytes(self) -> int:
        """Size of the vector in bytes."""
        return 8 * self.size

    def layout(self) -> str:
        """Return a description of the metrics: their names, settings and the shapes of their variables."""
        shapes = [[variable.shape for variable in variables] for variables in self._variables]
        return " ".join(f"{describe(metric)}{shape}" for metric, shape in zip(self._metrics, shapes, strict=True))

    def read(self) -> Any:
        """Return what all variables hold now, as one vector of float64."""
        flat = [
            tf.reshape(tf.cast(variable.value, tf.float64), [-1])
            for variables in self._variables
            for variable in variables
        ]
        return tf.concat(flat, 0)

    def place(self, metric: Any) -> slice:
        """Return the slice of the vector in which a metric's variables lie."""
        return self._places[self._metrics.index(metric)]

    def load(self, metric: Any, vector: NDArray[np.float64]) -> None:
        """Give a metric's variables their part of the vector, cast to their dtypes."""
        at = self.place(metric).start
        for variable in self._variables[self._metrics.index(metric)]:
            count = int(np.prod(variable.shape))
            variable.assign(tf.cast(vector[at : at + count].reshape(variable.shape), variable.dtype))
            at += count

    # --- what may be added up ---

    def not_declared(self, summed: str) -> list[Any]:
        """Return the metrics with a variable that is not declared as `summed`, as those of sums are."""
        return [
            metric
            for metric, variables in zip(self._metrics, self._variables, strict=True)
            if any(getattr(variable, "aggregation", summed) != summed for variable in variables)
        ]

    def not_additive(self, once: NDArray[np.float64], twice: NDArray[np.float64]) -> list[Any]:
        """Return the metrics to which a batch added something else when it was counted a second time.

        Small differences, as float32 rounds, do not count, nor do numbers that are not finite.
        """
        with np.errstate(invalid="ignore"):  # infinite losses
            first, second = once - self.base, twice - once
        # Sums that are not finite cannot be compared, so nothing is held against them.
        alike = np.isclose(second, first, _RELATIVE, _ABSOLUTE, equal_nan=True) | ~np.isfinite(once)
        return [metric for metric, place in zip(self._metrics, self._places, strict=True) if not np.all(alike[place])]

    def refuse_too_large(self) -> None:
        """Raise SettingsError if the vector takes more than MOST_STATE_BYTES, the most of several processes."""
        if self.nbytes > MOST_STATE_BYTES:
            largest = max(self._metrics, key=lambda metric: self.place(metric).stop - self.place(metric).start)
            place = self.place(largest)
            raise SettingsError(
                expected=f"metrics whose variables take at most {MOST_STATE_BYTES} bytes as float64",
                got=f"{self.nbytes}, of which {8 * (place.stop - place.start)} are of {largest.name}",
                where="an evaluation by several processes", remedy="Leave it out, or let one process evaluate.",
            )  # fmt: skip


def refuse_unsummed(metrics: Sequence[Any], *, where: str) -> None:
    """Raise SettingsError that names these metrics, if there are any."""
    if metrics:
        names = ", ".join(f"{metric.name} ({type(metric).__name__})" for metric in metrics)
        raise SettingsError(
            expected="metrics whose variables are sums over batches, as those of several processes are added up",
            got=f"others: {names}", where=where,
            remedy="Let their variables be sums, counts for example, from which result() computes the metric; leave "
            'them out; or let one process evaluate (mode = "lockstep").',
        )  # fmt: skip


def describe(thing: Any) -> str:
    """Return a name for a metric or loss that is the same in each process: `class:name` and its settings as JSON.

    Of an object without a configuration, or whose `get_config` fails, these are `null`.
    """
    name = getattr(thing, "name", None) or getattr(thing, "__name__", None) or type(thing).__name__
    config: Any = None
    if isinstance(thing, keras.metrics.Metric | keras.losses.Loss):
        try:
            config = thing.get_config()
        except Exception as error:  # a class of the user's may raise anything, or have none: its name has to do
            process_log().info("a metric or loss has no configuration: its name stands for it", name=name, error=error)
    settings = json.dumps(config, sort_keys=True, default=lambda other: type(other).__name__)
    return f"{type(thing).__name__}:{name}{settings}"
