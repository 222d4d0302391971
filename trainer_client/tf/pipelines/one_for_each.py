"""Elements that a user's pipeline makes of a feed for our training loop: one per batch, to the end of the epoch.

Rules: the loop counts a batch for each element, so a pipeline that yields fewer, or more, is refused; and before the
last element is handed on, because nobody asks after it. Reading counts nothing. The feed's own error is raised, not
TensorFlow's form of it. It must not know what is done with elements.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from shared.errors import SettingsError
from trainer_client.tf import ctrl_c
from trainer_client.tf.dataset import FeedDataset
from trainer_client.tf.pipelines.pipeline import make

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trainer_client.session.feed_session import FeedSession

__all__ = ["OneForEach"]


class OneForEach:
    """Iterable over the elements from the cursor to the end of its epoch; the arguments are those of `make`."""

    def __init__(
        self, session: FeedSession, function: Callable[[Any], Any], device: str = "", *, in_rounds: bool = False
    ) -> None:
        self._session = session
        self._data = make(session, function, device, in_rounds=in_rounds)
        self.element_spec = self._data.element_spec

    def __iter__(self) -> Iterator[Any]:
        rounds = self._session.cursor.epoch_rounds()
        if rounds is None:  # in queue mode it is not known how many are left
            return self._elements_of(self._data)
        data = self._data.take(-1) if isinstance(self._data, FeedDataset) else self._data  # its own end would count
        return self._one_for_each(data, rounds[1] * self._session.ranks.replicas)

    def _one_for_each(self, data: tf.data.Dataset, batches: int) -> Iterator[Any]:
        """Yield as many elements as batches; raise SettingsError if the pipeline yields fewer or more."""
        elements = self._elements_of(data)
        for done in range(batches):
            element = next(elements, None)
            if element is None:
                raise _uneven(batches, done)
            if done + 1 == batches and next(elements, None) is not None:
                raise _uneven(batches, "more")
            yield element

    def _elements_of(self, data: tf.data.Dataset) -> Iterator[Any]:
        """Yield the data set's elements; raise the feed's own error in place of TensorFlow's."""
        elements = iter(data)
        while True:
            try:
                element = next(elements, None)
            except (tf.errors.OpError, RuntimeError):
                ctrl_c.raise_pending()
                if self._session.error is None:
                    raise
                raise self._session.error from None
            if element is None:
                return
            yield element


def _uneven(expected: int, got: int | str) -> SettingsError:
    return SettingsError(
        expected=f"an element for each of the {expected} batches that are left of the epoch", got=f"{got}",
        where="dataset_pipeline, below the marker",
        remedy="Let what lies below map_producer_to_consumer only map elements; filter, batch and repeat above it.",
    )  # fmt: skip
