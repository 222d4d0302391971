"""Check of each built batch for NaN and infinite values.

Samples that have such values are counted by key, logged once a key, and masked if the job has them masked.

Rules: values are checked as trainers get them, after rounding. A sample is masked once, however many of its keys have
such values.
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
    """NaN and infinity check of one stream's batches."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._keys = float_keys(stream.chain.fields)
        #: Keys for which a warning has been logged.
        self._logged = set[str]()
        self._log = Log("worker", stream=stream.name)

    def suspects(self, arrays: Mapping[str, NDArray[Any]]) -> set[str]:
        """Return the keys whose values may not all be finite, by a fast test with false alarms; maybe none."""
        return {key for key in self._keys if not seems_finite(arrays[key])}

    def look(
        self,
        suspects: AbstractSet[str],
        samples: NDArray[np.int64],
        places: Places,
        note: Callable[[int, SampleError], None],
    ) -> tuple[tuple[str, int], ...]:
        """Return how many samples have NaN or infinite values, by key, for those `suspects` that any has; maybe ().

        Warn of the first sample of each key, once. If the job masks such samples, clear their places and call `note`
        once for each. Errors of the source's `name` pass through.
        """
        looked_through = {key: places.not_finite(key) for key in self._keys if key in suspects}
        found = {key: unfit for key, unfit in looked_through.items() if unfit}
        masked = set[int]()
        for key, unfit in found.items():
            self._warn_once(key, int(samples[unfit[0]]))
            for at in unfit if self._stream.masks_not_finite else ():
                if at not in masked:
                    masked.add(at)
                    sample = int(samples[at])
                    note(sample, error_of(key, self._stream.source.name(sample)))
                    places.clear(at)
        return tuple((key, len(unfit)) for key, unfit in found.items())

    def _warn_once(self, key: str, sample: int) -> None:
        if key not in self._logged:
            self._logged.add(key)
            name, does = self._stream.source.name(sample), "masked" if self._stream.masks_not_finite else "kept"
            self._log.warning("samples have values that are not finite", key=key, first=name, samples=does)
