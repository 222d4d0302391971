"""The common part of strategies whose towers, in one process, share one copy of the variables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from trainer_client.training.strategies.options import LeastLoaded
from trainer_client.training.strategies.towers.feeding import InRounds, refuse_cluster

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from contextlib import AbstractContextManager

__all__ = ["SharedCopy"]


class SharedCopy(InRounds):
    """Towers on these devices, whose variables lie in `places`; `taken` is a phrase on how these were chosen."""

    def __init__(self, name: str, devices: tuple[str, ...], places: Sequence[str], taken: str) -> None:
        refuse_cluster(name)
        super().__init__(name, devices)
        towers = f"{len(devices)} towers on {', '.join(devices)}"
        self.choice = f"{name}: {towers}; variables on {', '.join(places)} ({taken})"
        #: Whether new variables are the optimizer's, which go beside the model's.
        self._is_model_built = False
        self._places = LeastLoaded(places)

    def scope(self) -> AbstractContextManager[Any]:
        """Return a scope that puts each new variable in the place with the fewest bytes so far."""
        scope: AbstractContextManager[Any] = tf.variable_creator_scope(self._create)
        return scope

    def _create(self, create: Callable[..., Any], **how: Any) -> Any:
        """Create a variable in its place; once the model is built, beside the variable that it belongs to."""
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
        """Note that the model is built, so that the optimizer's variables are put beside the model's."""
        self._is_model_built = model.built

    def refuse_unequal(self, model: Any) -> None:
        """Do nothing: there is one copy of the variables."""
