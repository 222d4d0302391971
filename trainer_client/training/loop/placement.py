"""The interface between the training loop and a strategy, with what holds for a process that trains alone.

Rules: the loop knows nothing else of strategies, so another one is another class in the room `strategies`. A step's
outcome is the same on all replicas, for all of them have to take the same decisions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from contextlib import AbstractContextManager

    from trainer_client.feed import Feed
    from trainer_client.training.loop.step import TrainStep

__all__ = ["Placement"]


class Placement(ABC):
    """A strategy, as the training loop sees it."""

    #: Whether this process writes checkpoints, summaries and the model: one of all does.
    writes = True
    #: Whether steps go on until all processes know that one of them is asked to stop.
    agrees_to_stop = False
    #: A phrase on what was chosen, to be printed; empty if there was nothing to choose.
    choice = ""
    #: This process's place among all replicas, as `connect` takes it; empty: as the environment says.
    ranks: dict[str, int]

    #: Its place among the processes that evaluate on validation streams, as `connect` takes it too.
    judging: dict[str, int]

    @abstractmethod
    def scope(self) -> AbstractContextManager[Any]:
        """Return the scope in which the model's and the optimizer's variables are made."""

    @abstractmethod
    def refuse_other_world(self, feed: Feed) -> None:
        """Raise SettingsError for a feed whose ranks are not this strategy's replicas, or of an unfit mode."""

    @abstractmethod
    def data(self, feed: Feed, keys: dict[str, Any]) -> Iterable[Any]:
        """Return the elements of steps: each iteration goes from the cursor to the end of its epoch.

        Raise SettingsError for keys that batches lack or that do not fit together, or in queue mode if batches are made
        whole; errors of a `map` among the keys are passed on.
        """

    @abstractmethod
    def pipeline(self, feed: Feed, function: Callable[[Any], Any]) -> Iterable[Any]:
        """Return the elements that a user's function makes of the feed's batches, which have any shapes.

        Raise SettingsError if the stream is no pipeline or is in queue mode, or if the function makes no data set of
        it; other errors of the function are passed on.
        """

    @abstractmethod
    def one_of(self, element: Any) -> Any:
        """Return what one replica has of a step's element; with several, the first one."""

    @abstractmethod
    def any_element(self, elements: Iterable[Any]) -> Any:
        """Return a spec of all elements, for one graph for all shapes; None: each shape has its own graph."""

    @abstractmethod
    def for_all(self, element: Any) -> Any:
        """Return a step's element in which each replica has this one."""

    @abstractmethod
    def compiled(self, step: TrainStep, *, xla: bool, any_shape: bool) -> Callable[[Any], Any]:
        """Return the step as a graph; with `any_shape`, one graph for any number of shapes.

        With `xla`, what each replica computes is compiled. Raise SettingsError, now or as it is traced or called, for
        an optimizer, loss or model that the strategy cannot train; a call raises LostError if another process is lost.
        """

    def prepare_optimizer(self, model: Any) -> None:  # noqa: B027 - most strategies have nothing to prepare
        """Prepare for the optimizer's variables, which come next; the model is built.

        Raise SettingsError for variables of which replicas have no copies that could be kept equal, or for a model that
        the strategy cannot train. Most strategies have nothing to do here.
        """

    def refuse_unequal(self, model: Any) -> None:  # noqa: B027 - where variables have one copy, they are equal
        """Raise DataError for variables, the optimizer's too, that are not the same on all replicas.

        All processes call it at the same step; raise LostError if a process is lost. Where variables have one copy, do
        nothing.
        """

    def refuse_other_beginning(self, parts: Mapping[str, str]) -> None:  # noqa: B027 - one process begins as it does
        """Raise DataError if the run begins otherwise in another process: `parts` has what it begins with, by name.

        All processes call it as they begin, with the same names; raise LostError if a process is lost. With one
        process, do nothing.
        """

    def broadcast(self, model: Any) -> list[str]:
        """Copy variables, the optimizer's too, from the first replica to all; return the paths of all that differed.

        Only those count that differed in this process. All processes call it at the same step; raise LostError if a
        process is lost. Where variables have one copy, do nothing, and return none.
        """
        return []

    def heeds(self, *, asked: bool) -> bool:
        """Return whether to stop now; `asked` says whether this process was asked to.

        All processes of a run stop after the same step; one that trains alone stops if it was asked.
        """
        return asked
