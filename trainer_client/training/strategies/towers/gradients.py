"""A check that all towers have gradients of the same variables; else they would wait for each other's.

Rules: a graph has the gradients that it was traced with, so one look at each trace is enough.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from shared.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Towers", "of_values", "times", "times_phrase"]


class Towers:
    """The towers of this process, and which gradients each has, while a step is traced."""

    def __init__(self, model: Any) -> None:
        self._model = model
        #: For each tower, whether each variable has a gradient there.
        self._having: list[list[bool]] = []

    def begin(self) -> None:
        """Forget what was noted, as a step is traced anew."""
        self._having = []

    def note(self, gradients: Sequence[Any]) -> tuple[Any, list[Any]]:
        """Note which gradients a tower has.

        Return that as 1 or 0 for each variable, and all gradients, with zeros for the missing ones.
        """
        having = [gradient is not None for gradient in gradients]
        self._having.append(having)
        whole = [
            tf.zeros_like(variable.value) if gradient is None else gradient
            for gradient, variable in zip(gradients, self._model.trainable_variables, strict=True)
        ]
        return tf.constant(having, tf.float32), whole

    def refuse_different_here(self) -> None:
        """Raise SettingsError if towers of this process have gradients of different variables."""
        odd = [at for at, column in enumerate(zip(*self._having, strict=True)) if len(set(column)) > 1]
        if odd:
            self._refuse(odd)

    def refuse_different(self, replicas: int, counts: Sequence[float]) -> None:
        """Raise SettingsError if some, but not all, of the `replicas` have a gradient of a variable.

        `counts` is how many have one, for each variable.
        """
        odd = [at for at, count in enumerate(counts) if count not in (0, replicas)]
        if odd:
            self._refuse(odd)

    def _refuse(self, odd: Sequence[int]) -> None:
        """Raise SettingsError, which says for each tower here of which odd variables it has a gradient."""
        names = {at: self._model.trainable_variables[at].path for at in odd}
        towers = [
            f"tower {tower} has one for {', '.join(name for at, name in names.items() if having[at]) or 'none'}"
            for tower, having in enumerate(self._having)
        ]
        raise SettingsError(
            expected=f"gradients of the same variables in all towers, or in none: {', '.join(names.values())}",
            got="; ".join(towers), where="--model", remedy="Let the model compute the same on each replica.",
        )  # fmt: skip


def times(gradient: Any, factor: Any) -> Any:
    """Return the gradient multiplied by `factor`; None stays None."""
    if gradient is None or (isinstance(factor, int | float) and factor == 1):
        return gradient
    return of_values(gradient, lambda values: values * tf.cast(factor, values.dtype))


def of_values(gradient: Any, change: Callable[[Any], Any]) -> Any:
    """Return the gradient with its values changed by a function; a sparse one keeps its indices."""
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(change(gradient.values), gradient.indices, gradient.dense_shape)
    return change(gradient)


def times_phrase(factor: float) -> str:
    """Return a phrase on gradients that are multiplied by `factor`; empty for 1."""
    return "" if factor == 1 else f"; gradients times {factor:.0f}"
