"""Where training takes place: what the loop asks of a strategy.

Rules: the loop knows nothing else of strategies, so another one is another class in the room `strategies`. A step's
outcome is the same on all replicas, for all of them have to take the same decisions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager

    from trainer_client.feed import Feed
    from trainer_client.training.loop.step import TrainStep

__all__ = ["Placement"]


class Placement(Protocol):
    """One strategy."""

    #: What was taken, to be told; nothing where there was nothing to choose.
    said: str
    #: This process's place among all replicas, as `connect` takes it; empty: as the environment says.
    ranks: dict[str, int]

    #: Its place among those that judge by evaluation streams, as `connect` takes it too.
    judging: dict[str, int]

    def scope(self) -> AbstractContextManager[Any]:
        """Where the model's and the optimizer's variables are made."""

    def refuse_other_world(self, feed: Feed) -> None:
        """Refuse a feed whose ranks are not this strategy's replicas."""

    def data(self, feed: Feed, keys: dict[str, Any]) -> Iterable[Any]:
        """A pass from the cursor to the end of its epoch, each time that it is iterated; an element is one step's."""

    def pipeline(self, feed: Feed, function: Callable[[Any], Any]) -> Iterable[Any]:
        """The same of a feed whose batches a user's function makes, which have any shapes."""

    def one_of(self, element: Any) -> Any:
        """What one replica has of a step's element."""

    def any_element(self, elements: Iterable[Any]) -> Any:
        """What all elements have in common, for one graph for all shapes; None: each shape has a graph of its own."""

    def for_all(self, element: Any) -> Any:
        """One step's element, in which each replica has this one."""

    def compiled(self, step: TrainStep, *, xla: bool, any_shape: bool) -> Callable[[Any], Any]:
        """The step as a graph; with `any_shape`, one for all shapes, of which there may be any number."""

    def prepare_optimizer(self, model: Any) -> None:
        """The model is built, and its optimizer is next: refuse trained variables of which replicas have no copies that
        could be kept equal.
        """

    def refuse_unequal(self, model: Any) -> None:
        """Refuse variables, the optimizer's too, that are not the same on all replicas; all processes call it at the
        same step.
        """

    def heeds(self, *, asked: bool) -> bool:
        """Whether to stop now, this process having been asked to or not: all processes of a run do after the same
        step.
        """

    @property
    def agrees_to_stop(self) -> bool:
        """Whether steps go on until all processes know that one of them is asked to stop."""

    @property
    def writes(self) -> bool:
        """Whether this process writes checkpoints, summaries and the model: one of all does."""
