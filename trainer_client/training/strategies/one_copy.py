"""The common part of strategies whose towers, in one process, share one copy of the variables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from trainer_client.training.strategies.choosing.variable_devices import LeastLoaded
from trainer_client.training.strategies.towers.feeding import Rounds
from trainer_client.training.strategies.towers.pipeline_rounds import PipelineRounds
from trainer_client.training.strategies.worlds import refuse_cluster, refuse_other_world, refuse_queue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from contextlib import AbstractContextManager

    from trainer_client.feed import Feed

__all__ = ["OneCopy"]


class OneCopy:
    """Towers on these devices, whose variables lie in `places`; `taken` is a phrase on how these were chosen."""

    writes = True
    agrees_to_stop = False

    def __init__(self, name: str, devices: tuple[str, ...], places: Sequence[str], taken: str) -> None:
        refuse_cluster(name)
        self._name = name
        self.ranks = {"rank": 0, "replicas": len(devices), "world": len(devices)}
        self.judging = {"rank": 0}
        self.choice = (
            f"{name}: {len(devices)} towers on {', '.join(devices)}; variables on {', '.join(places)} ({taken})"
        )
        self._devices = devices
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
        with tf.device(self._places.place(_bytes_of(value))):
            return create(**how)

    def refuse_other_world(self, feed: Feed) -> None:
        """Raise SettingsError for a stream in queue mode, or a feed with other ranks than our towers."""
        refuse_queue(feed, self._name)
        refuse_other_world(feed, self._name, replicas=len(self._devices), world=len(self._devices))

    def data(self, feed: Feed, keys: dict[str, Any]) -> Iterable[Any]:
        """Return the feed's batches in rounds: one batch for each tower."""
        return Rounds(feed, keys, self._devices, tuple)

    def pipeline(self, feed: Feed, function: Callable[[Any], Any]) -> Iterable[Any]:
        """Return the elements of a user's pipeline in rounds: one for each tower."""
        return PipelineRounds(feed, function, self._devices, tuple)

    def one_of(self, element: Any) -> Any:
        """Return the first tower's part of a step's element."""
        return element[0]

    def any_element(self, elements: Iterable[Any]) -> Any:
        """Return the spec of a step's element, for one graph for all shapes."""
        return self.for_all(elements.element_spec)  # type: ignore[attr-defined] # of rounds

    def for_all(self, element: Any) -> Any:
        """Return a step's element in which each tower has this element."""
        return (element,) * len(self._devices)

    def prepare_optimizer(self, model: Any) -> None:
        """Note that the model is built, so that the optimizer's variables are put beside the model's."""
        self._is_model_built = model.built

    def heeds(self, *, asked: bool) -> bool:
        """Return `asked`: there is no other process."""
        return asked

    def refuse_unequal(self, model: Any) -> None:
        """Do nothing: there is one copy of the variables."""


def _bytes_of(value: Any) -> int:
    return int(np.prod(value.shape.as_list(), dtype=np.int64)) * int(value.dtype.size)
