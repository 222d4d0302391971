"""A stand-in for the optimizer in a step whose gradients servers apply: it keeps them until they are pushed.

Rules: gradients are clipped here, by the norm of all of them if the optimizer does that, because each server has only a
share. If several steps are taken between pulls, the trainer's own copy goes on by its own gradients. Of a table, a
batch has gradients of few rows: they are kept as rows, each once, rising by number. It must not know servers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["CollectedGradients", "merge_rows", "rows_between"]

#: Numbers of rows, and their values.
Rows = tuple["NDArray[np.int64]", "NDArray[np.generic]"]


class CollectedGradients:
    """The gradients of one model's last step; with `goes_on`, its own copy is updated as well."""

    def __init__(self, optimizer: Any, variables: Sequence[Any], *, goes_on: bool) -> None:
        self._optimizer = optimizer
        self._places = {id(variable): at for at, variable in enumerate(variables)}
        self._goes_on = goes_on
        #: Buffers of the last gradients, by variable: whole ones here, row numbers and values below.
        self._dense: dict[int, Any] = {}
        self._rows: dict[int, tuple[Any, Any]] = {}

    def scale_loss(self, loss: Any) -> Any:
        """Return the loss as it is."""
        return loss

    def apply(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        """Clip the gradients and keep them; with `goes_on`, apply them to the trainer's own copy as well."""
        known = [
            (gradient, variable)
            for gradient, variable in zip(gradients, variables, strict=True)
            if gradient is not None
        ]
        clipped = self._optimizer._clip_gradients([gradient for gradient, _ in known])  # noqa: SLF001 - nothing public clips
        for gradient, (_, variable) in zip(clipped, known, strict=True):
            self._keep(self._places[id(variable)], gradient, variable)
        # As they came: the optimizer clips them itself.
        if self._goes_on:
            self._optimizer.apply([gradient for gradient, _ in known], [variable for _, variable in known])

    def _keep(self, at: int, gradient: Any, variable: Any) -> None:
        """Put a gradient into its buffer, which is made when the variable first has one."""
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
        """Return the last step's gradients by variable: an array, or row numbers and values, each row once."""
        rows = {at: merge_rows(numbers.numpy(), values.numpy()) for at, (numbers, values) in self._rows.items()}
        return {**{at: buffer.numpy() for at, buffer in self._dense.items()}, **rows}


def _buffer(dtype: Any, shape: tuple[int | None, ...]) -> Any:
    # Rows are as many as the batch names, so their first dimension is open; it begins at 0.
    begin = tf.zeros([0 if size is None else size for size in shape], dtype)
    return tf.Variable(begin, trainable=False, shape=shape, validate_shape=None not in shape)


def merge_rows(numbers: NDArray[np.integer], values: NDArray[np.generic]) -> Rows:
    """Return rising row numbers and their values, each row once, with the values of repeated rows summed."""
    if not len(numbers):
        return numbers.astype(np.int64), values
    order = np.argsort(numbers, kind="stable")
    ordered = numbers[order].astype(np.int64)
    # Where each run of equal numbers begins; `reduceat` sums from one beginning to the next.
    first = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    return ordered[first], np.add.reduceat(values[order], first, axis=0)


def rows_between(rows: Rows, start: int, stop: int) -> Rows:
    """Return the rows from `start` to `stop`, numbered from `start`."""
    numbers, values = rows
    begin, end = np.searchsorted(numbers, (start, stop))
    return numbers[begin:end] - start, values[begin:end]
