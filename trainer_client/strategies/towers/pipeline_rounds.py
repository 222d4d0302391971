"""What a user's pipeline makes of a feed, in rounds: one element for each replica of this process, on its device.

Rules: elements of a round are consecutive ones, of any shapes. There is one for each batch that comes in, or steps
would not be rounds, and processes of a run would wait for each other for ever; so one that is missing is refused. It
must not know what is done with them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shared.errors import SettingsError
from trainer_client.strategies.towers.feeding import put
from trainer_client.tf.pipelines.pipeline import make

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from trainer_client.feed import Feed

__all__ = ["PipelineRounds"]


class PipelineRounds:
    """From the cursor to the end of its epoch, each time that it is iterated; `together` makes one element of those of
    all replicas here.
    """

    def __init__(
        self, feed: Feed, function: Callable[[Any], Any], devices: Sequence[str], together: Callable[[list[Any]], Any]
    ) -> None:
        self._session = feed._session  # noqa: SLF001 - both are halves of one face
        self._data = make(self._session, function, "CPU:0", in_rounds=True)  # `put` has them on their devices
        self._devices, self._together = devices, together
        self.element_spec = self._data.element_spec

    def __iter__(self) -> Iterator[Any]:
        rounds = self._session.epoch_rounds()
        assert rounds is not None, "in lockstep"
        elements = iter(self._data)
        for done in range(rounds[1]):
            found = [one for _, one in zip(self._devices, elements, strict=False)]
            if len(found) < len(self._devices):
                raise _uneven(rounds[1] * len(self._devices), done * len(self._devices) + len(found))
            yield self._together([put(one, on) for one, on in zip(found, self._devices, strict=True)])
        if next(elements, None) is not None:
            raise _uneven(rounds[1] * len(self._devices), "more")


def _uneven(expected: int, got: int | str) -> SettingsError:
    return SettingsError(
        expected=f"an element for each of the {expected} batches that are left of the epoch", got=f"{got}",
        where="dataset_pipeline, below the marker",
        remedy="Let what lies below map_producer_to_consumer only map elements; filter, batch and repeat above it.",
    )  # fmt: skip
