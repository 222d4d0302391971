"""The strategy of one process on one device."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from shared.errors import SettingsError
from trainer_client.tf.dataset import make
from trainer_client.tf.element_structure import ElementStructure
from trainer_client.tf.pipelines.pipeline import PipelineElements
from trainer_client.training.loop.placement import Placement
from trainer_client.training.loop.step import TracedStep
from trainer_client.training.strategies.towers.compiled import contribution_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager

    from trainer_client.feed import Feed
    from trainer_client.training.loop.step import TrainStep

__all__ = ["Single"]


class Single(Placement):
    """One process on one device; without `compiles_updates`, XLA does not compile what is done with gradients."""

    def __init__(self, *, compiles_updates: bool = True) -> None:
        self._compiles_updates = compiles_updates
        self.ranks, self.judging = dict[str, int](), {"rank": 0}

    def scope(self) -> AbstractContextManager[Any]:
        """Return a context that does nothing: variables need no scope."""
        return nullcontext()

    def refuse_other_world(self, feed: Feed) -> None:
        """Raise SettingsError for a feed in a world of several ranks: each would train a model of its own."""
        session = feed._session
        if session.ranks.world != 1:
            raise SettingsError(
                expected="a world of one rank", got=f"one of {session.ranks.world}", where="--strategy single",
                remedy="Take --strategy multi-worker; or unset TF_CONFIG and JOB_NAME, and connect without world= and "
                "elastic=: each of these processes would train a model of its own, because they exchange no gradients.",
            )  # fmt: skip

    def data(self, feed: Feed, keys: dict[str, Any]) -> Iterable[Any]:
        """Return the feed's batches, read ahead.

        Raise SettingsError for keys that batches lack or that do not fit together, or in queue mode if batches are made
        whole. Errors of a `map` among the keys are passed on.
        """
        return make(feed._session, ElementStructure(**keys), ahead=True)

    def pipeline(self, feed: Feed, function: Callable[[Any], Any]) -> Iterable[Any]:
        """Return the elements that the user's pipeline makes, one for each batch.

        Raise SettingsError if the stream is no pipeline or is in queue mode, or if the function makes no data set of
        it; iterating raises it if the pipeline yields fewer elements, or more. Other errors of the function pass.
        """
        return PipelineElements(feed._session, function)

    def one_of(self, element: Any) -> Any:
        """Return the element, which is that of the only replica."""
        return element

    def any_element(self, elements: Iterable[Any]) -> Any:
        """Return the spec of the elements, for one graph for all shapes."""
        return elements.element_spec  # type: ignore[attr-defined] # of a tf.data.Dataset

    def for_all(self, element: Any) -> Any:
        """Return the element, as there is one replica."""
        return element

    def compiled(self, step: TrainStep, *, xla: bool, any_shape: bool) -> Callable[[Any], Any]:
        """Return the step as a graph; with `xla` it is compiled, without the update if `compiles_updates` is off.

        With `any_shape`, one graph takes all shapes. Tracing it raises SettingsError for a loss that has one value for
        the whole batch, and, without `compiles_updates`, for a model that XLA cannot compile in parts.
        """
        how = {"reduce_retracing": any_shape, "autograph": False}
        if self._compiles_updates:
            return TracedStep(tf.function(step, jit_compile=xla, **how))
        contribute = contribution_of(step, xla=xla)
        return TracedStep(tf.function(lambda element: step.settle(contribute(element)), **how))
