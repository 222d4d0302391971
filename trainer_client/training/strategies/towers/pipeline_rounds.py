"""The elements of a user's pipeline in rounds: one for each replica of this process, on its device.

Rules: elements of a round are consecutive, and of any shapes. Each batch that comes in makes one element: otherwise
steps would not be rounds, and processes of a run would wait for each other for ever. It must not know what is done with
them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainer_client.tf.pipelines.one_for_each import OneForEach
from trainer_client.training.strategies.towers.feeding import put

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from trainer_client.feed import Feed

__all__ = ["PipelineRounds"]


class PipelineRounds:
    """Rounds from the cursor to the end of its epoch, each time they are iterated.

    `together` makes one element of those of all replicas here.
    """

    def __init__(
        self, feed: Feed, function: Callable[[Any], Any], devices: Sequence[str], together: Callable[[list[Any]], Any]
    ) -> None:
        session = feed._session
        self._elements = OneForEach(session, function, "CPU:0", in_rounds=True)  # `put` moves them to their devices
        self._devices, self._together = devices, together
        self.element_spec = self._elements.element_spec

    def __iter__(self) -> Iterator[Any]:
        elements = iter(self._elements)
        # The same iterator for each device, so that a round has consecutive elements; `strict` refuses one cut short.
        for elements_of_round in zip(*[elements for _ in self._devices], strict=True):
            yield self._together(
                [put(element, on) for element, on in zip(elements_of_round, self._devices, strict=True)]
            )
