"""Towers in one process that share one copy of the variables, which is updated once a step."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from trainer_client.training.loop.step import Contribution
from trainer_client.training.loop.traced_step import TracedStep
from trainer_client.training.strategies.choosing.variable_devices import VariablesOn, places_of_variables
from trainer_client.training.strategies.one_copy import OneCopy
from trainer_client.training.strategies.towers.compiled import contribution_of
from trainer_client.training.strategies.towers.gradients import Towers, times_phrase

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trainer_client.training.loop.step import TrainStep

__all__ = ["Central"]


class Central(OneCopy):
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

    def _train(
        self,
        step: TrainStep,
        contribute: Callable[[Any], Contribution],
        elements: Sequence[Any],
    ) -> Any:
        """Compute each tower's contribution on its device, then apply all of them together."""
        made, towers = [], Towers(step.model)
        for device, element in zip(self._devices, elements, strict=True):
            with tf.device(device):
                made.append(contribute(element))
                towers.note(made[-1].gradients)
        towers.refuse_different_here()
        # One update for all: the optimizer takes one step, on whichever devices the variables are.
        return step.settle(self._together(made))

    def _together(self, made: Sequence[Contribution]) -> Contribution:
        """Return the towers' contributions as one: loss and gradients by weight, statistics by rows."""
        weight, rows = tf.add_n([tower.weight for tower in made]), tf.add_n([tower.rows for tower in made])
        parts = [tf.math.divide_no_nan(tower.weight, weight) for tower in made]
        loss = tf.add_n([tower.loss * part for tower, part in zip(made, parts, strict=True)])
        gradients = [
            _sum_of(values, [part * self._times for part in parts])
            for values in zip(*(tower.gradients for tower in made), strict=True)
        ]
        of_rows = [tf.math.divide_no_nan(tower.rows, rows) for tower in made]
        statistics = [_mean_of(values, of_rows) for values in zip(*(tower.statistics for tower in made), strict=True)]
        return Contribution(loss, rows, weight, gradients, statistics)


def _sum_of(gradients: Sequence[Any], parts: Sequence[Any]) -> Any:
    """Return the weighted sum of one gradient over the towers; None if it has no values.

    Sparse gradients are scaled and put one behind the other.
    """
    if gradients[0] is None:
        return None
    if all(isinstance(gradient, tf.IndexedSlices) for gradient in gradients):
        scaled = [
            gradient.values * tf.cast(part, gradient.dtype) for gradient, part in zip(gradients, parts, strict=True)
        ]
        indices = tf.concat([gradient.indices for gradient in gradients], 0)
        return tf.IndexedSlices(tf.concat(scaled, 0), indices, gradients[0].dense_shape)
    return tf.add_n([gradient * tf.cast(part, gradient.dtype) for gradient, part in zip(gradients, parts, strict=True)])


def _mean_of(values: Sequence[Any], parts: Sequence[Any]) -> Any:
    # A tower without rows may have statistics that are not finite. They count for nothing, but NaN times 0 is NaN.
    pairs = zip(values, parts, strict=True)
    return tf.add_n([tf.math.multiply_no_nan(value, tf.cast(part, value.dtype)) for value, part in pairs])
