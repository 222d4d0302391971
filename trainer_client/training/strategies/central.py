"""Towers in one process that share one copy of the variables, which is updated once a step."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from trainer_client.training.loop.step import Contribution, TracedStep
from trainer_client.training.strategies.options import VariablesOn, places_of_variables
from trainer_client.training.strategies.shared_copy import SharedCopy
from trainer_client.training.strategies.towers.compiled import contribution_of
from trainer_client.training.strategies.towers.gradients import Towers, times, times_phrase

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trainer_client.training.loop.step import TrainStep

__all__ = ["Central"]


class Central(SharedCopy):
    """Towers on these devices, such as GPU:0 and GPU:1, whose gradients are applied together.

    A tower's loss is the mean over its own rows, so towers are weighted by the weight of their rows. With `sums`,
    gradients are those of the mean over all rows, times the number of towers.
    """

    def __init__(self, devices: tuple[str, ...], variables: VariablesOn = "auto", *, sums: bool = False) -> None:
        super().__init__("central", devices, *places_of_variables(variables, devices))
        self._times = float(len(devices)) if sums else 1.0
        self.choice += times_phrase(self._times)

    def compiled(self, step: TrainStep, *, xla: bool, any_shape: bool) -> Callable[[Any], Any]:
        """Return the step of all towers as a graph."""
        train = partial(self._train, step, contribution_of(step, xla=xla))
        return TracedStep(tf.function(train, reduce_retracing=any_shape, autograph=False))

    def _train(self, step: TrainStep, contribute: Callable[[Any], Contribution], elements: Sequence[Any]) -> Any:
        """Compute each tower's contribution on its device, then apply all of them together."""
        parts: list[Contribution] = []
        towers = Towers(step.model)
        for device, element in zip(self._devices, elements, strict=True):
            with tf.device(device):
                parts.append(contribute(element))
                towers.note(parts[-1].gradients)
        towers.refuse_different_here()
        # One update for all: the optimizer takes one step, on whichever devices the variables are.
        return step.settle(self._summed(parts))

    def _summed(self, parts: Sequence[Contribution]) -> Contribution:
        """Return the towers' contributions as one: loss and gradients by weight, statistics by rows."""
        weight, rows = tf.add_n([part.weight for part in parts]), tf.add_n([part.rows for part in parts])
        # A tower's loss is the mean over its own rows, so a plain mean over towers would favour rows in small batches.
        shares = [tf.math.divide_no_nan(part.weight, weight) for part in parts]
        loss = tf.add_n([part.loss * share for part, share in zip(parts, shares, strict=True)])
        gradients = [
            _sum_of(of_variable, [share * self._times for share in shares])
            for of_variable in zip(*(part.gradients for part in parts), strict=True)
        ]
        by_rows = [tf.math.divide_no_nan(part.rows, rows) for part in parts]
        statistics = [_mean_of(values, by_rows) for values in zip(*(part.statistics for part in parts), strict=True)]
        return Contribution(loss, rows, weight, gradients, statistics)


def _sum_of(gradients: Sequence[Any], shares: Sequence[Any]) -> Any:
    """Return the weighted sum of one gradient over the towers; None if it has no values.

    Sparse gradients are scaled and put one behind the other.
    """
    if gradients[0] is None:
        return None
    scaled = [times(gradient, share) for gradient, share in zip(gradients, shares, strict=True)]
    if all(isinstance(gradient, tf.IndexedSlices) for gradient in scaled):
        indices = tf.concat([gradient.indices for gradient in scaled], 0)
        return tf.IndexedSlices(tf.concat([gradient.values for gradient in scaled], 0), indices, scaled[0].dense_shape)
    return tf.add_n(scaled)


def _mean_of(values: Sequence[Any], shares: Sequence[Any]) -> Any:
    # A tower without rows may have statistics that are not finite. They count for nothing, but NaN times 0 is NaN.
    pairs = zip(values, shares, strict=True)
    return tf.add_n([tf.math.multiply_no_nan(value, tf.cast(share, value.dtype)) for value, share in pairs])
