"""What one tower computes of a step, compiled by XLA.

Rules: XLA holds what one device computes, and nothing that crosses to others. So variables, which may lie elsewhere, go
in as values, and what the forward pass itself changes, seeds for example, comes out and is assigned here. A loss is the
mean over the tower's own rows, and is weighed by them here if replicas sum. Shapes are compiled one by one as they
come, whatever the graph around them was traced for.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from shared.errors import SettingsError
from trainer_client.strategies.towers.gradients import times
from trainer_client.tf.replica_means import means_of_own_rows, several_replicas

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trainer_client.training.step import Contribution, TrainStep

__all__ = ["contributing"]


def contributing(step: TrainStep, *, xla: bool) -> Callable[[Any], Contribution]:
    """`step.contribute`, to be called while a graph is traced, on the tower's device."""
    return _Compiled(step) if xla else step.contribute


class _Compiled:
    def __init__(self, step: TrainStep) -> None:
        self._step = step

    def __call__(self, element: Any) -> Contribution:  # noqa: ANN401 - tensors
        known = self._step.variables_read()
        changed: list[Any] = []

        def compute(element: Any, values: Any) -> Any:  # noqa: ANN401 - tensors
            given = list(zip(known, values, strict=True))
            with _Noting(given, collect_losses=True) as scope, means_of_own_rows():
                part = self._step.contribute(element)
            changed[:] = scope.changed.values()
            return part, [scope.get_current_value(one) for one in changed]

        function = tf.function(compute, jit_compile=True, autograph=False)
        with _refusing_exchanges():
            part, values = function(element, [tf.identity(one.value) for one in known])
        for variable, value in zip(changed, values, strict=True):
            variable.assign(value)
        return _share_of(part)


@contextmanager
def _refusing_exchanges() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        if "merge_call" not in str(error):
            raise
        raise SettingsError(
            expected="replicas that exchange nothing while they compute, under --xla",
            got=f"a model that sums over replicas: {str(error).splitlines()[0]}", where="--xla",
            remedy="Leave --xla out, or what is synchronized: BatchNormalization(synchronized=True), for example.",
        ) from error  # fmt: skip


def _share_of(part: Contribution) -> Contribution:
    """One replica's share of what the means of all are; its own where nobody sums."""
    replica = several_replicas()
    if replica is None:
        return part
    share = tf.math.divide_no_nan(part.weight, replica.all_reduce(tf.distribute.ReduceOp.SUM, part.weight))
    gradients = [times(one, share) for one in part.gradients]
    return part._replace(loss=part.loss * share, gradients=gradients)


class _Noting(keras.StatelessScope):  # type: ignore[misc] # Keras has no types
    """Notes which variables are changed."""

    def __init__(self, *how: Any, **more: Any) -> None:  # noqa: ANN401 - of Keras'
        super().__init__(*how, **more)
        self.changed: dict[int, Any] = {}

    def add_update(self, update: Any) -> None:  # noqa: ANN401 - a variable and its value
        """As Keras calls it."""
        self.changed[id(update[0])] = update[0]
        super().add_update(update)
