"""Elements in queue mode: asking for the next one reports the earlier ones as done.

Rules: elements that TensorFlow prefetched are not done, so this comes after all of its stages. It is not an iterator of
TensorFlow's, which graphs could read unseen; so Keras fetches each element in Python. It must not know what an element
is.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import tensorflow as tf
from typing_extensions import Self

from shared.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trainer_client.session.lease_account import LeaseAccount

__all__ = ["LeasedElements", "refuse_graph", "refuse_uncounted"]


class LeasedElements:
    """One pass over a dataset in queue mode."""

    def __init__(self, elements: Iterator[Any], leases: LeaseAccount) -> None:
        self._elements = elements
        self._leases = leases
        self._handed_over = 0
        self._reading = -1

    def __iter__(self) -> _KerasExecution:
        return _KerasExecution(self)

    def __next__(self) -> Any:
        # Before fetching: asking for an element reports those before it, and fetching may wait for long.
        self._leases.count_handed_over(self._reading, self._handed_over)
        element = next(self._elements)
        # Counted here, after prefetching: what TensorFlow holds ahead would be reported as trained on otherwise.
        self._handed_over += 1
        self._reading = self._leases.reading
        return element

    def staged(self, make: Callable[[Callable[[], Any]], Any]) -> Iterator[Any]:
        """Yield what `make` makes with a function that returns the next element, in a thread; raise its error here.

        A StopIteration of `make` ends it. What the thread took ahead is not done: each time it is asked for more, the
        elements of what was yielded before are reported.
        """
        with contextlib.closing(self._elements.staged(partial(_counted, make))) as ahead:  # type: ignore[attr-defined]
            while True:
                self._leases.count_handed_over(self._reading, self._handed_over)
                made = next(ahead, None)
                if made is None:
                    return
                self._handed_over += made.elements
                self._reading = self._leases.reading
                yield made.result


@dataclass(frozen=True, slots=True)
class _StagedElement:
    """Something that was made of so many elements."""

    result: Any
    elements: int


def _counted(make: Callable[[Callable[[], Any]], Any], take: Callable[[], Any]) -> _StagedElement:
    """Return what `make` makes of elements that `take` returns, with how many it took; pass on errors of both."""
    elements = 0

    def take_and_count() -> Any:
        nonlocal elements
        element = take()
        elements += 1
        return element

    return _StagedElement(make(take_and_count), elements)


class _KerasExecution:
    """Elements of one execution of Keras, which takes as many as it has steps, in a loop of its own.

    Keras would fail if such a loop found no element at all, except by OutOfRangeError, which it reads as the end of the
    data.
    """

    def __init__(self, elements: LeasedElements) -> None:
        self._elements = elements
        self._is_begun = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        try:
            element = next(self._elements)
        except StopIteration:
            if self._is_begun:
                raise
            raise tf.errors.OutOfRangeError(None, None, "end of the epoch") from None
        self._is_begun = True
        return element


def refuse_graph() -> SettingsError:
    """Return the SettingsError for a dataset in queue mode that is iterated inside a `tf.function`."""
    return SettingsError(
        expected="to iterate it in Python",
        got="a loop inside a tf.function, where nobody sees which batches are done",
        where="a dataset in queue mode",
        remedy="Move the loop out of the tf.function, and leave the step in it.",
    )


def refuse_uncounted() -> SettingsError:
    """Return the SettingsError for reading a dataset that is derived from one in queue mode."""
    return SettingsError(
        expected="the feed's own dataset",
        got="one that is derived from it, of which nobody sees which batches are done",
        where="a dataset in queue mode",
        remedy="Give the mapping to feed.dataset(map=), and iterate what that returns.",
    )
