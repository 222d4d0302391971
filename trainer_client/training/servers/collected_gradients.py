"""What stands in for the optimizer in a step whose gradients servers apply: it keeps them until they are pushed.

Rules: gradients are clipped here, by the norm of all of them where the optimizer says so, because each server has a
share only. Between pulls, if several steps are taken, a trainer's own copy goes on by its own gradients. It must not
know servers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from trainer_client.training.servers.merged_rows import merge_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["CollectedGradients"]


class CollectedGradients:
    """Of one model; `goes_on` says whether its own copy is updated as well."""

    def __init__(self, optimizer: Any, variables: Sequence[Any], *, goes_on: bool) -> None:
        self._optimizer = optimizer
        self._places = {id(one): at for at, one in enumerate(variables)}
        self._goes_on = goes_on
        self._dense: dict[int, Any] = {}
        self._rows: dict[int, tuple[Any, Any]] = {}

    def scale_loss(self, loss: Any) -> Any:
        """As it is."""
        return loss

    def apply(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        """Keep them."""
        known = [(one, variable) for one, variable in zip(gradients, variables, strict=True) if one is not None]
        clipped = self._optimizer._clip_gradients([one for one, _ in known])  # noqa: SLF001 - nothing public clips
        for one, (_, variable) in zip(clipped, known, strict=True):
            self._keep(self._places[id(variable)], one, variable)
        if self._goes_on:
            self._optimizer.apply([one for one, _ in known], [variable for _, variable in known])

    def _keep(self, at: int, gradient: Any, variable: Any) -> None:
        with tf.init_scope():
            if isinstance(gradient, tf.IndexedSlices):
                if at not in self._rows:
                    self._rows[at] = _buffer(tf.int64, (None,)), _buffer(variable.dtype, (None, *variable.shape[1:]))
            elif at not in self._dense:
                self._dense[at] = _buffer(variable.dtype, tuple(variable.shape))
        if isinstance(gradient, tf.IndexedSlices):
            numbers, values = self._rows[at]
            numbers.assign(tf.cast(gradient.indices, tf.int64))
            values.assign(gradient.values)
            return
        self._dense[at].assign(gradient)

    def read(self) -> dict[int, Any]:
        """The last step's, by variable: an array, or numbers of rows and their values, each row once."""
        rows = {at: merge_rows(numbers.numpy(), values.numpy()) for at, (numbers, values) in self._rows.items()}
        return {**{at: one.numpy() for at, one in self._dense.items()}, **rows}


def _buffer(dtype: Any, shape: tuple[int | None, ...]) -> Any:
    begin = tf.zeros([0 if size is None else size for size in shape], dtype)
    return tf.Variable(begin, trainable=False, shape=shape, validate_shape=None not in shape)
