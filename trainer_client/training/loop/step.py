"""One training step as a graph: a batch's loss over its valid rows, gradients, and the optimizer's update.

Rules: rows count by their weights, so a row without a sample changes nothing, and a batch without any changes no
variable. Gradients that are not finite are never applied. A step that is not applied leaves no batch statistics behind.
It must not know feeds, epochs or files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import keras
import tensorflow as tf

from shared.errors import SettingsError
from trainer_client.layers.served_embedding import collecting_lookups, refuse_tables
from trainer_client.training.losses import RowLoss, masked_mean, valid_rows
from trainer_client.training.losses.replica_means import share_of_all

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = [
    "APPLIED", "NOTHING_TO_APPLY", "NOT_FINITE", "Contribution", "RowGradients", "TracedStep", "TrainStep",
    "refuse_own_train_step", "statistics_of",
]  # fmt: skip

#: Outcomes of a step.
APPLIED, NOTHING_TO_APPLY, NOT_FINITE = 0.0, 1.0, 2.0


class RowGradients(NamedTuple):
    """The gradients of rows of one served table."""

    table: str
    ids: Any
    values: Any


class Contribution(NamedTuple):
    """The results of one replica's part of a step, or those of all replicas together."""

    loss: Any
    rows: Any
    #: The sum of the rows' weights.
    weight: Any
    #: For each trainable variable, its gradient; None if it has none.
    gradients: list[Any]
    #: New values of the variables that the forward pass changes by itself.
    statistics: list[Any]
    #: The gradients of rows that served tables looked up: table, ids, each once, and a gradient for each.
    of_tables: Sequence[RowGradients] = ()


class TrainStep:
    """A training step: called with an element, it returns loss, valid rows and outcome in one tensor."""

    def __init__(self, model: Any, loss: Any, optimizer: Any) -> None:
        self.model = model
        self.optimizer = optimizer
        #: Whether gradients of rows of served tables are collected, which the optimizer then has to take.
        self.takes_rows = False
        #: How often TensorFlow traced it: once for each shape.
        self.traces = 0
        self._loss_of = _by_rows(keras.losses.get(loss))
        #: Whether the loss is scaled before gradients are computed, as float16 needs.
        self._scales = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)

    def inputs(self, element: Any) -> Any:
        """Return the inputs of the model in an element, which may have targets and weights behind them."""
        return keras.utils.unpack_x_y_sample_weight(element)[0]

    def variables_read(self) -> list[Any]:
        """Return the variables that `contribute` reads: the model's, and the scale of a loss that is scaled."""
        return [*self.model.variables, *([self.optimizer.dynamic_scale] if self._scales else [])]

    def __call__(self, element: Any) -> Any:
        """Train on the element, where there is no other replica; return loss, valid rows and outcome.

        Errors of `contribute` and of the optimizer pass through.
        """
        return self.settle(self.contribute(element))

    def settle(self, part: Contribution) -> Any:
        """Apply the contribution of all replicas if `may_apply` allows it; return loss, valid rows and outcome.

        Errors of the optimizer pass through.
        """
        became = self.became(part)
        # Asked in each step, which takes 2 to 3 % of one of 5 ms. Other forms of the condition, and of the sums that
        # it looks at, made no difference above noise.
        tf.cond(self.may_apply(part, became), lambda: self.apply(part, became), lambda: None)
        return tf.stack([part.loss, part.rows, became])

    def contribute(self, element: Any) -> Contribution:
        """Return one replica's contribution to a step; no variable is changed except seeds.

        Without weights every row counts. Raise SettingsError if the loss has one value for the whole batch, or for a
        model with served tables, unless gradients of their rows are collected. Errors of model and loss pass through.
        """
        self.traces += 1  # Python runs while TensorFlow traces, and only then
        inputs, targets, weight = keras.utils.unpack_x_y_sample_weight(element)
        if not self.takes_rows:
            refuse_tables(self.model)
        # The forward pass assigns its statistics at once. They are put back below, because only a step that is applied
        # may keep them, and that is not known yet.
        statistics = statistics_of(self.model)
        before = [tf.identity(variable.value) for variable in statistics]
        with tf.GradientTape() as tape, collecting_lookups(tape, is_on=self.takes_rows) as lookups:
            variables = [variable.value for variable in self.model.trainable_variables]
            # A tape watches variables by itself, but within a scope of Keras their values are tensors.
            tape.watch(variables)
            outputs = tf.nest.map_structure(_in_float32, self.model(inputs, training=True))
            # Read at once: while replicas sum, another one calls the model, which then has that one's losses.
            added = self.model.losses
            weight = tf.ones(tf.shape(tf.nest.flatten(outputs)[0])[:1]) if weight is None else weight
            loss = self._loss_of(targets, outputs, weight)
            weight_of_rows = tf.reduce_sum(tf.cast(weight, tf.float32))
            scaled = self.optimizer.scale_loss(tf.add_n([loss, *_shares(added, weight_of_rows)]))
        gradients, of_rows = tape.gradient(scaled, [variables, [lookup.rows for lookup in lookups]])
        after = [tf.identity(variable.value) for variable in statistics]
        for variable, value in zip(statistics, before, strict=True):
            variable.assign(value)
        rows = tf.math.count_nonzero(weight, dtype=tf.float32)
        found = [_row_gradients(lookup, gradient) for lookup, gradient in zip(lookups, of_rows, strict=True)]
        return Contribution(tf.cast(loss, tf.float32), rows, weight_of_rows, gradients, after, _merged(found))

    def became(self, part: Contribution) -> Any:
        """Return the outcome of a step with this contribution of all replicas.

        It is NOTHING_TO_APPLY without valid rows, else NOT_FINITE if the loss or a gradient is not finite, else
        APPLIED.
        """
        outcome = tf.where(
            _are_finite([part.loss, *part.gradients, *(rows.values for rows in part.of_tables)]), APPLIED, NOT_FINITE
        )
        return tf.where(part.rows > 0, outcome, NOTHING_TO_APPLY)

    def may_apply(self, part: Contribution, became: Any) -> Any:
        """Return whether to call `apply`: if the outcome is APPLIED.

        An optimizer that scales the loss is called even if gradients overflow, as long as there are valid rows and the
        loss is finite: it does not apply those, and scales less from then on.
        """
        return (part.rows > 0) & tf.math.is_finite(part.loss) if self._scales else became == APPLIED

    def apply(self, part: Contribution, became: Any) -> None:
        """Apply gradients, of tables' rows too; keep statistics if the outcome is APPLIED. Optimizer errors pass."""
        self.optimizer.apply(part.gradients, self.model.trainable_variables)
        if self.takes_rows:
            self.optimizer.apply_rows(part.of_tables)
        # An optimizer that scales the loss is called for gradients that overflow, too: they leave no statistics behind.
        for variable, after in zip(statistics_of(self.model), part.statistics, strict=True):
            variable.assign(tf.where(became == APPLIED, after, variable.value))


class TracedStep:
    """A `tf.function` whose graph, once it is traced for all shapes, is called directly.

    A call with anything that was not traced for is traced then, as by a `tf.function`.
    """

    def __init__(self, function: Any) -> None:
        self._function = function
        #: The graph for all shapes; None: not traced. TensorFlow takes 0.1 ms of each call to look for a graph that
        #: fits, and twice that with several replicas: a step took 0.13 to 0.15 ms of the loop instead of 0.21 to 0.26,
        #: and 0.13 instead of 0.25 to 0.28 under `central`.
        self._graph: Any = None

    def get_concrete_function(self, *specs: Any) -> Any:
        """Trace the function for these specs and return the graph, which later calls use.

        If the user has functions run eagerly, calls do not use it. Errors of tracing are passed on.
        """
        graph = self._function.get_concrete_function(*specs)
        # A graph that is kept would be called even though the user has functions run eagerly.
        if not tf.config.functions_run_eagerly():
            self._graph = graph
        return graph

    def __call__(self, *elements: Any) -> Any:
        """Take the step, by the graph if there is one and the elements fit it, else by the function.

        Errors of the step, and of tracing, are passed on.
        """
        if self._graph is not None:
            try:
                return self._graph(*elements)
            except TypeError:  # the elements do not fit the specs, so nothing has run
                pass
        return self._function(*elements)


def _row_gradients(lookup: Any, gradient: Any) -> RowGradients:
    # None: the loss does not depend on these rows. Slices: rows that a sample names twice have two gradients there.
    if gradient is None:
        values = tf.zeros_like(lookup.rows)
    elif isinstance(gradient, tf.IndexedSlices):
        values = tf.math.unsorted_segment_sum(gradient.values, gradient.indices, tf.shape(lookup.rows)[0])
    else:
        values = gradient
    return RowGradients(lookup.table, lookup.ids, values)


def _merged(found: list[RowGradients]) -> list[RowGradients]:
    """Return the gradients of each table in one, if a model looks up rows of it more than once in a step."""
    by_table: dict[str, list[RowGradients]] = {}
    for gradients in found:
        by_table.setdefault(gradients.table, []).append(gradients)
    return [parts[0] if len(parts) == 1 else _sum_of(parts) for parts in by_table.values()]


def _sum_of(parts: list[RowGradients]) -> RowGradients:
    ids, places = tf.unique(tf.concat([part.ids for part in parts], 0))
    values = tf.concat([part.values for part in parts], 0)
    return RowGradients(parts[0].table, ids, tf.math.unsorted_segment_sum(values, places, tf.shape(ids)[0]))


def statistics_of(model: Any) -> list[Any]:
    """Return the variables that a model's forward pass itself changes, such as means over batches.

    Those that were frozen, which may be large, are left out, and so are seeds, which are no floats and do go on.
    """
    layers = model._flatten_layers()  # noqa: SLF001 - no public list tells what was frozen from what never trains
    frozen = {id(variable) for layer in layers for variable in layer._trainable_variables}  # noqa: SLF001 - as above
    return [
        variable
        for variable in model.non_trainable_variables
        if tf.as_dtype(variable.dtype).is_floating and id(variable) not in frozen
    ]


def refuse_own_train_step(model: Any) -> None:
    """Raise SettingsError for a model with a `train_step` of its own, which would silently not be taken."""
    if type(model).train_step is not keras.Model.train_step:
        raise SettingsError(
            expected="a model that is called with inputs and gives outputs",
            got=f"{type(model).__name__} with a train_step of its own", where="--model",
            remedy="Leave train_step out; or train it by model.fit with FeedCheckpoint, which calls it.",
        )  # fmt: skip


def _in_float32(output: Any) -> Any:
    return tf.cast(output, tf.float32) if output.dtype.is_floating else output


def _shares(losses: list[Any], weight: Any) -> list[Any]:
    """Return this replica's shares of the losses that the model adds, by the weight of its rows; empty without any.

    Unless means are over the rows of several replicas, they are the losses as they are.
    """
    share = share_of_all(weight) if losses else 1.0
    return [loss * tf.cast(share, loss.dtype) for loss in losses]


def _are_finite(values: list[Any]) -> Any:
    """Return whether all values are finite, gradients among them; None, a missing gradient, is passed over."""
    dense = [value.values if isinstance(value, tf.IndexedSlices) else value for value in values if value is not None]
    # If any value is not finite, their sum is not, and summing takes half the time of looking at each. The sum may also
    # be too large though all values are finite, so then each is looked at.
    total = tf.add_n([tf.cast(tf.reduce_sum(value), tf.float32) for value in dense])
    each = lambda: tf.reduce_all([tf.reduce_all(tf.math.is_finite(value)) for value in dense])  # noqa: E731 - a branch
    return tf.cond(tf.math.is_finite(total), lambda: True, each)


def _by_rows(loss: Any) -> Callable[[Any, Any, Any], Any]:
    """Return a function that computes the weighted mean of the loss over rows: of several replicas, its share of it.

    What a row without a sample computes is replaced before it can be infinite. The function raises SettingsError for a
    loss, other than a RowLoss, that has one value for the whole batch; errors of the loss pass through.
    """
    if isinstance(loss, RowLoss):
        return lambda targets, outputs, weight: loss(targets, outputs, sample_weight=weight)
    per_row = loss.call if isinstance(loss, keras.losses.Loss) else loss

    def mean(targets: Any, outputs: Any, weight: Any) -> Any:
        mask = getattr(outputs, "_keras_mask", None)
        values = per_row(targets, tf.nest.map_structure(lambda output: valid_rows(output, weight), outputs))
        return masked_mean(_row_means(values, mask), weight)

    return mean


def _row_means(values: Any, mask: Any) -> Any:
    """Return the mean loss within each row, over what Keras's mask lets through; 0 for a row where that is nothing.

    Without a mask it is over the whole row. Raise SettingsError for a loss that has one value for the whole batch.
    """
    if values.shape.rank == 0:
        raise SettingsError(
            expected="a loss with a value for each row, as rows without a sample have to count for nothing",
            got="one value for the whole batch", where="--model, loss",
            remedy='Return one value a row, or name a loss of Keras, such as loss = "mse".',
        )  # fmt: skip
    within = list(range(1, values.shape.rank))
    if mask is None or not within:
        return tf.reduce_mean(values, within)
    # Keras's own mask, such as that of padding in a row: only what it lets through counts.
    counts = tf.cast(mask, values.dtype)
    return tf.math.divide_no_nan(tf.reduce_sum(values * counts, within), tf.reduce_sum(counts, within))
