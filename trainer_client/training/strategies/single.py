"""The strategy of one process on one device."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from shared.errors import SettingsError
from trainer_client.tf.dataset import make
from trainer_client.tf.element_structure import ElementStructure
from trainer_client.tf.pipelines.one_for_each import OneForEach
from trainer_client.training.loop.traced_step import TracedStep
from trainer_client.training.strategies.towers.compiled import contribution_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager

    from trainer_client.feed import Feed
    from trainer_client.training.loop.step import TrainStep

__all__ = ["Single"]


class Single:
    """One process, one device. Unless it `compiles_updates`, XLA leaves alone what is done with gradients."""

    writes = True
    agrees_to_stop = False

    def __init__(self, *, compiles_updates: bool = True) -> None:
        self._compiles_updates = compiles_updates
        self.said, self.ranks, self.judging = "", dict[str, int](), {"rank": 0}

    def scope(self) -> AbstractContextManager[Any]:
        """As `Placement` has it."""
        return nullcontext()

    def refuse_other_world(self, feed: Feed) -> None:
        """As `Placement` has it."""
        session = feed._session
        if session.world != 1:
            raise SettingsError(
                expected="a world of one rank", got=f"one of {session.world}", where="--strategy single",
                remedy="Take --strategy multi-worker; or unset TF_CONFIG and JOB_NAME, and connect without world= and "
                "elastic=: each of these processes would train a model of its own, because they exchange no gradients.",
            )  # fmt: skip

    def data(self, feed: Feed, keys: dict[str, Any]) -> Iterable[Any]:
        """As `Placement` has it."""
        return make(feed._session, ElementStructure(**keys), ahead=True)

    def pipeline(self, feed: Feed, function: Callable[[Any], Any]) -> Iterable[Any]:
        """As `Placement` has it."""
        return OneForEach(feed._session, function)

    def one_of(self, element: Any) -> Any:
        """As `Placement` has it."""
        return element

    def any_element(self, elements: Iterable[Any]) -> Any:
        """As `Placement` has it."""
        return elements.element_spec  # type: ignore[attr-defined] # of a tf.data.Dataset

    def for_all(self, element: Any) -> Any:
        """As `Placement` has it."""
        return element

    def prepare_optimizer(self, model: Any) -> None:
        """As `Placement` has it."""

    def heeds(self, *, asked: bool) -> bool:
        """As `Placement` has it."""
        return asked

    def refuse_unequal(self, model: Any) -> None:
        """As `Placement` has it: there is nothing that could differ."""

    def compiled(self, step: TrainStep, *, xla: bool, any_shape: bool) -> Callable[[Any], Any]:
        """As `Placement` has it."""
        how = {"reduce_retracing": any_shape, "autograph": False}
        if self._compiles_updates:
            return TracedStep(tf.function(step, jit_compile=xla, **how))
        contribute = contribution_of(step, xla=xla)
        return TracedStep(tf.function(lambda element: step.settle(contribute(element)), **how))
