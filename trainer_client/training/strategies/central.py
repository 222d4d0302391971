"""Towers in one process that share one copy of the variables, and the strategy that updates it once a step."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import tensorflow as tf

from trainer_client.training.loop.step import Contribution, TracedStep
from trainer_client.training.strategies.options import LeastLoaded, VariablesOn, places_of_variables
from trainer_client.training.strategies.towers.alike import Towers, times, times_phrase
from trainer_client.training.strategies.towers.compiled import contribution_of
from trainer_client.training.strategies.towers.feeding import InRounds, refuse_cluster

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from contextlib import AbstractContextManager

    from trainer_client.training.loop.step import TrainStep

__all__ = ["Central", "SharedCopy"]


class SharedCopy(InRounds):
    """Towers on these devices, whose variables lie in `places`; `taken` is a phrase on how these were chosen.

    Raise SettingsError if the environment names several processes, or a role that is malformed.
    """

    def __init__(self, name: str, devices: tuple[str, ...], places: Sequence[str], taken: str) -> None:
        refuse_cluster(name)
        super().__init__(name, devices)
        towers = f"{len(devices)} towers on {', '.join(devices)}"
        self.choice = f"{name}: {towers}; variables on {', '.join(places)} ({taken})"
        #: Whether new variables are the optimizer's, which go beside the model's.
        self._is_model_built = False
        self._places = LeastLoaded(places)

    def scope(self) -> AbstractContextManager[Any]:
        """Return a scope that puts each new variable of the model in the place with the fewest bytes so far.

        Once the model is built, a variable goes beside the variable that it belongs to.
        """
        return cast("AbstractContextManager[Any]", tf.variable_creator_scope(self._create))

    def _create(self, create: Callable[..., Any], **how: Any) -> Any:
        """Create a variable in its place; once the model is built, beside the variable that it belongs to.

        Errors of `create` and of an initial value pass through.
        """
        if self._is_model_built:
            return create(**how)  # such as an optimizer's slot
        # Compute the initial value first: its size decides where the variable goes.
        value = how["initial_value"]
        how["initial_value"] = value = tf.convert_to_tensor(value() if callable(value) else value, how.get("dtype"))
        nbytes = int(np.prod(value.shape.as_list(), dtype=np.int64)) * int(value.dtype.size)
        with tf.device(self._places.place(nbytes)):
            return create(**how)

    def one_of(self, element: Any) -> Any:
        """Return the first tower's part of a step's element."""
        return element[0]

    def any_element(self, elements: Iterable[Any]) -> Any:
        """Return the spec of a step's element, for one graph for all shapes."""
        return self.for_all(elements.element_spec)  # type: ignore[attr-defined] # of rounds

    def _together(self, elements: Sequence[Any]) -> Any:
        return tuple(elements)

    def prepare_optimizer(self, model: Any) -> None:
        """Note whether the model is built: the optimizer's variables are put beside the model's from then on."""
        self._is_model_built = model.built


class Central(SharedCopy):
    """Towers on these devices, such as GPU:0 and GPU:1, whose gradients are applied together.

    A tower's loss is the mean over its own rows, so towers are weighted by the weight of their rows. With `sums`,
    gradients are those of the mean over all rows, times the number of towers. Raise SettingsError if the environment
    names several processes, or a malformed role.
    """

    def __init__(self, devices: tuple[str, ...], variables: VariablesOn = "auto", *, sums: bool = False) -> None:
        super().__init__("central", devices, *places_of_variables(variables, devices))
        self._times = float(len(devices)) if sums else 1.0
        self.choice += times_phrase(self._times)

    def compiled(self, step: TrainStep, *, xla: bool, any_shape: bool) -> Callable[[Any], Any]:
        """Return the step of all towers as a graph; with `xla`, each tower's contribution is compiled.

        Tracing it raises SettingsError if towers have gradients of different variables, or for a loss or model that a
        tower cannot compute. With `any_shape`, one graph takes all shapes.
        """
        train = partial(self._train, step, contribution_of(step, xla=xla))
        return TracedStep(tf.function(train, reduce_retracing=any_shape, autograph=False))

    def _train(self, step: TrainStep, contribute: Callable[[Any], Contribution], elements: Sequence[Any]) -> Any:
        """Compute each tower's contribution on its device, then apply all of them together.

        Return loss, valid rows and outcome. Raise SettingsError if towers have gradients of different variables; errors
        of `contribute` are passed on.
        """
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
        """Return the towers' contributions as one: loss and gradients by weight, statistics by rows.

        With `sums`, gradients are multiplied by the number of towers; one that the first tower lacks is None.
        """
        losses, rows_of_each, weights, gradients, statistics, _ = zip(*parts, strict=True)
        weight, rows = tf.add_n(weights), tf.add_n(rows_of_each)
        # A tower's loss is the mean over its own rows, so a plain mean over towers would favour rows in small batches.
        shares = [tf.math.divide_no_nan(own, weight) for own in weights]
        factors = [share * self._times for share in shares]
        row_shares = [tf.math.divide_no_nan(own, rows) for own in rows_of_each]
        summed = [_sum_of(of_variable, factors) for of_variable in zip(*gradients, strict=True)]
        means = [_mean_of(of_variable, row_shares) for of_variable in zip(*statistics, strict=True)]
        return Contribution(_sum_of(losses, shares), rows, weight, summed, means)


def _sum_of(gradients: Sequence[Any], shares: Sequence[Any]) -> Any:
    """Return the weighted sum of a loss or gradient over the towers; None if the first tower has none.

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
    return tf.add_n(
        [
            tf.math.multiply_no_nan(value, tf.cast(share, value.dtype))
            for value, share in zip(values, shares, strict=True)
        ]
    )
