"""A feed's batches in rounds: one batch for each replica of this process, on the replica's device.

Rules: the batches of a round are consecutive in the plan, so they have one shape. The next rounds are put on their
devices while a step computes. It must not know what is done with them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from trainer_client.tf.dataset import make
from trainer_client.tf.element_structure import ElementStructure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from trainer_client.feed import Feed

__all__ = ["Rounds", "put"]


class Rounds:
    """Rounds from the cursor to the end of its epoch, each time they are iterated.

    `together` makes one element of those of all replicas here.
    """

    def __init__(
        self, feed: Feed, keys: dict[str, Any], devices: Sequence[str], together: Callable[[list[Any]], Any]
    ) -> None:
        session = feed._session
        self._data = make(session, ElementStructure(**keys), in_rounds=True)
        self._devices, self._together = devices, together
        self.element_spec = self._data.element_spec

    def __iter__(self) -> Iterator[Any]:
        return self._data.staged(self._make)

    def _make(self, take: Callable[[], Any]) -> Any:
        """Return the next round, of batches that `take` returns."""
        # The epoch ends at the first `take` of a round. It stands outside the generator, in which its StopIteration
        # would become a RuntimeError.
        batches = (take(), *(take() for _ in self._devices[1:]))
        return self._together([put(batch, on) for batch, on in zip(batches, self._devices, strict=True)])


def put(element: Any, device: str) -> Any:
    """Return the element with its tensors on this device."""
    with tf.device(device):
        return tf.nest.map_structure(tf.identity, element)
