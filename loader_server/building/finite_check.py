"""Looks through each built batch for samples with values that are NaN or infinite: counts them by key, says so once a
key in the log, and masks them if the job asks for that.

Rules: values are looked at as trainers get them, rounded ones included. A sample is masked once, whatever number of its
keys has such values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from loader_server.building.not_finite import float_keys, seems_finite
from loader_server.building.not_finite import not_finite as error_of
from shared.logs import Log

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from collections.abc import Set as AbstractSet

    import numpy as np
    from numpy.typing import NDArray

    from loader_server.building.places import Places
    from loader_server.stream import Stream
    from shared.errors import SampleError

__all__ = ["FiniteCheck"]


class FiniteCheck:
    """The check of one stream's batches."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._keys = float_keys(stream.chain.fields)
        #: Keys of which the log says that they have such values.
        self._said = set[str]()
        self._log = Log("worker", stream=stream.name)

    def suspects(self, arrays: Mapping[str, NDArray[Any]]) -> set[str]:
        """Return the keys whose values may not all be finite."""
        return {key for key in self._keys if not seems_finite(arrays[key])}

    def look(
        self,
        suspects: AbstractSet[str],
        samples: NDArray[np.int64],
        places: Places,
        note: Callable[[int, SampleError], None],
    ) -> tuple[tuple[str, int], ...]:
        """Return how many samples have such values, by key; samples that are masked are noted."""
        looked_through = {key: places.not_finite(key) for key in self._keys if key in suspects}
        found = {key: unfit for key, unfit in looked_through.items() if unfit}
        masked = set[int]()
        for key, unfit in found.items():
            self._say_once(key, int(samples[unfit[0]]))
            for at in unfit if self._stream.masks_not_finite else ():
                if at not in masked:
                    masked.add(at)
                    sample = int(samples[at])
                    note(sample, error_of(key, self._stream.source.name(sample)))
                    places.clear(at)
        return tuple((key, len(unfit)) for key, unfit in found.items())

    def _say_once(self, key: str, sample: int) -> None:
        if key not in self._said:
            self._said.add(key)
            name, does = self._stream.source.name(sample), "masked" if self._stream.masks_not_finite else "kept"
            self._log.warning("samples have values that are not finite", key=key, first=name, samples=does)
