"""An optimizer whose steps servers take: its variables, gradients kept for it, and the changes that callbacks may make.

Rules: gradients are clipped here, by the norm of all of them if the optimizer does that, because each server has only a
share. If several steps are taken between pulls, the trainer's own copy goes on by its own gradients. Of a table, a
batch has gradients of few rows: they are kept as rows, each once, rising by number. Servers have optimizers of their
own, of which only the learning rate follows the chief's. A change of anything else would have no effect, so it is
refused, by its name. Configurations are compared, so a setting that an optimizer leaves out of its own is not noticed.
The order of variables does not depend on which others are trained. It must not know servers.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from shared.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["CollectedGradients", "OptimizerSettings", "OptimizerVariables", "merge_rows", "rows_between"]

#: Numbers of rows, and their values.
Rows = tuple["NDArray[np.int64]", "NDArray[np.generic]"]

_RATE = "learning_rate"


class OptimizerVariables:
    """The variables of an optimizer, which is built here for these model variables.

    Raise SettingsError if it is built already.
    """

    def __init__(self, optimizer: Any, variables: Sequence[Any]) -> None:
        if optimizer.built:
            raise SettingsError(
                expected="an optimizer that is not built", got="one that is", where="--model, optimizer",
                remedy="Return a new one, and leave build() to the training loop.",
            )  # fmt: skip
        #: The state of each variable, in the order in which the optimizer made it.
        self.of_each: list[list[Any]] = [[] for _ in variables]
        # Every optimizer makes a variable's state by this method, so watching its calls tells which belongs to which:
        # nothing public does.
        places = {id(variable): at for at, variable in enumerate(variables)}
        make = optimizer.add_variable_from_reference

        def watched(reference_variable: Any, *arguments: Any, **named: Any) -> Any:
            made = make(reference_variable, *arguments, **named)
            if id(reference_variable) in places:
                self.of_each[places[id(reference_variable)]].append(made)
            return made

        optimizer.add_variable_from_reference = watched
        optimizer.build(list(variables))
        optimizer.add_variable_from_reference = make
        theirs = {id(variable) for state in self.of_each for variable in state}
        #: State that belongs to no variable, such as the count of steps.
        self.common = [variable for variable in optimizer.variables if id(variable) not in theirs]

    def copies(self) -> int:
        """Return how many values there are at most for each number of a variable, its own included."""
        return 1 + max((len(state) for state in self.of_each), default=0)

    def can_be_cut(self, at: int, shape: tuple[int, ...]) -> bool:
        """Return whether all state of this variable has its shape, so that rows can be updated apart."""
        return all(tuple(variable.shape) == shape for variable in self.of_each[at])


class OptimizerSettings:
    """The settings of a model's optimizer as they are now, which `refuse_changes` compares with later ones."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._optimizer = model.optimizer
        #: Where the learning rate comes from: a variable, a schedule, or a function.
        self._source = self._optimizer._learning_rate  # noqa: SLF001 - `learning_rate` is its value
        #: Whether the rate is a plain number, which callbacks may set.
        self._is_settable = isinstance(self._source, keras.Variable)
        self._config = self._read_config()

    def rate(self) -> float | None:
        """Return the learning rate; None if it is a schedule's or a function's, which servers follow by themselves."""
        return float(self._source.numpy()) if self._is_settable else None

    def steps(self) -> int:
        """Return how many steps the optimizer has counted."""
        return int(self._optimizer._iterations.numpy())  # noqa: SLF001 - `iterations` is a quotient while gradients accumulate

    def refuse_changes(self, steps: int) -> None:
        """Raise SettingsError if anything but the learning rate has changed; `steps` is the expected count.

        Raise it also if the learning rate was set to a number that is not finite. Errors of the optimizer's own
        `get_config` pass through.
        """
        if self._model.optimizer is not self._optimizer:
            raise _changed(
                "the optimizer", type(self._optimizer).__name__, f"another {type(self._model.optimizer).__name__}"
            )
        source = self._optimizer._learning_rate  # noqa: SLF001 - as above
        if source is not self._source:
            raise _changed(_RATE, _kind(self._source), _kind(source))
        if self.steps() != steps:
            raise _changed("iterations", steps, self.steps())
        config = self._read_config()
        for name in sorted(self._config.keys() | config.keys()):
            before, now = self._config.get(name), config.get(name)
            if repr(before) != repr(now):
                raise _changed(name, before, now)
        rate = self.rate()
        if rate is not None and not math.isfinite(rate):
            raise _changed(_RATE, "a finite number", rate)

    def _read_config(self) -> dict[str, Any]:
        try:
            config: dict[str, Any] = self._optimizer.get_config()
        except NotImplementedError:  # of a schedule that cannot be saved: what is plain is compared
            plain = int | float | str | bool | None
            config = {name: value for name, value in vars(self._optimizer).items() if isinstance(value, plain)}
        if self._is_settable:
            config.pop(_RATE, None)
        return config


def _kind(source: Any) -> str:
    return "a number" if isinstance(source, keras.Variable) else f"a {type(source).__name__}"


def _changed(name: str, before: object, now: object) -> SettingsError:
    was, got = (str(value)[:100] for value in (before, now))
    return SettingsError(
        expected="callbacks that change nothing of the optimizer but its learning rate, to another number",
        got=f"{name} changed from {was} to {got}", where="--strategy parameter-server",
        remedy="Servers have optimizers of their own: give it the module's `optimizer` from the beginning.",
    )  # fmt: skip


# --- gradients until they are pushed ---


class CollectedGradients:
    """The gradients of one model's last step; with `goes_on`, its own copy is updated as well."""

    def __init__(self, optimizer: Any, variables: Sequence[Any], *, goes_on: bool) -> None:
        self._optimizer = optimizer
        self._places = {id(variable): at for at, variable in enumerate(variables)}
        self._goes_on = goes_on
        #: Buffers of the last gradients, by variable: whole ones here, row numbers and values below.
        self._dense: dict[int, Any] = {}
        self._rows: dict[int, tuple[Any, Any]] = {}
        #: The same of served tables, by name.
        self._of_tables: dict[str, tuple[Any, Any]] = {}

    def scale_loss(self, loss: Any) -> Any:
        """Return the loss unchanged: servers refuse models whose loss is scaled."""
        return loss

    def apply(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        """Clip the gradients and keep them; with `goes_on`, apply them to the trainer's own copy as well.

        Variables whose gradient is None are left out.
        """
        known = [at for at, gradient in enumerate(gradients) if gradient is not None]
        gradients, variables = [gradients[at] for at in known], [variables[at] for at in known]
        clipped = self._optimizer._clip_gradients(gradients)  # noqa: SLF001 - nothing public clips
        for gradient, variable in zip(clipped, variables, strict=True):
            self._keep(self._places[id(variable)], gradient, variable)
        # As they came: the optimizer clips them itself.
        if self._goes_on:
            self._optimizer.apply(gradients, variables)

    def apply_rows(self, rows: Sequence[Any]) -> None:
        """Clip the gradients of served tables' rows, each table by itself, and keep them.

        Each has a table, ids, each once, and values. The trainer has no copy of a table to go on with.
        """
        for table, ids, values in rows:
            (clipped,) = self._optimizer._clip_gradients([values])  # noqa: SLF001 - nothing public clips
            with tf.init_scope():
                if table not in self._of_tables:
                    self._of_tables[table] = _buffer(tf.int64, (None,)), _buffer(tf.float32, (None, values.shape[1]))
            for buffer, value in zip(self._of_tables[table], (ids, clipped), strict=True):
                buffer.assign(value)

    def read_rows(self) -> dict[str, Rows]:
        """Return the last step's gradients by served table: ids, rising, and values.

        A row whose gradient is zero throughout, as that of masked samples, is left out, and a table without others.
        """
        found = {}
        for table, (ids, values) in self._of_tables.items():
            merged = merge_rows(ids.numpy(), values.numpy())
            is_there = merged[1].any(axis=1)
            if is_there.any():
                found[table] = merged[0][is_there], merged[1][is_there]
        return found

    def _keep(self, at: int, gradient: Any, variable: Any) -> None:
        """Put a gradient into its buffer, which is made when the variable first has one.

        A gradient of rows is kept as numbers and values, any other as it is; each call replaces what was there.
        """
        is_rows = isinstance(gradient, tf.IndexedSlices)
        # Buffers outlive the graph that is being traced, so they are made outside it, once for each variable.
        with tf.init_scope():
            if is_rows and at not in self._rows:
                self._rows[at] = _buffer(tf.int64, (None,)), _buffer(variable.dtype, (None, *variable.shape[1:]))
            elif not is_rows and at not in self._dense:
                self._dense[at] = _buffer(variable.dtype, tuple(variable.shape))
        if is_rows:
            numbers, values = self._rows[at]
            numbers.assign(tf.cast(gradient.indices, tf.int64))
            values.assign(gradient.values)
        else:
            self._dense[at].assign(gradient)

    def read(self) -> dict[int, Any]:
        """Return the last step's gradients by variable: an array, or row numbers and values, each row once.

        Variables that never had a gradient are left out.
        """
        rows = {at: merge_rows(numbers.numpy(), values.numpy()) for at, (numbers, values) in self._rows.items()}
        return {**{at: buffer.numpy() for at, buffer in self._dense.items()}, **rows}


def _buffer(dtype: Any, shape: tuple[int | None, ...]) -> Any:
    # Rows are as many as the batch names, so their first dimension is open; it begins at 0.
    begin = tf.zeros([0 if size is None else size for size in shape], dtype)
    return tf.Variable(begin, trainable=False, shape=shape, validate_shape=None not in shape)


def merge_rows(numbers: NDArray[np.integer], values: NDArray[np.generic]) -> Rows:
    """Return rising row numbers and their values, each row once, with the values of repeated rows summed."""
    # Summed here, because optimizers are not linear: Keras's Adam, given a row twice, squares its parts one by one.
    if not len(numbers):
        return numbers.astype(np.int64), values
    order = np.argsort(numbers, kind="stable")
    ordered = numbers[order].astype(np.int64)
    # Where each run of equal numbers begins; `reduceat` sums from one beginning to the next.
    first = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    return ordered[first], np.add.reduceat(values[order], first, axis=0)


def rows_between(rows: Rows, start: int, stop: int) -> Rows:
    """Return those of rising rows from `start` up to, but not including, `stop`, numbered from `start`; maybe none."""
    numbers, values = rows
    begin, end = np.searchsorted(numbers, (start, stop))
    return numbers[begin:end] - start, values[begin:end]
