"""Looks through each built batch for samples with values that are NaN or infinite: counts them by key, says so once a
key in the log, and masks them if the job asks for that.

Rules: values are looked at as trainers get them, rounded ones included. A sample is masked once, whatever number of its
keys has such values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from loader_server.building.not_finite import (
    float_keys,
    is_all_finite,
    mask_row,
    mask_stretch,
    rows_not_finite,
    seems_finite,
)
from loader_server.building.not_finite import not_finite as error_of
from loader_server.building.packed_rows import places_in_rows
from shared.logs import Log

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from collections.abc import Set as AbstractSet

    from numpy.typing import NDArray

    from loader_server.building.prepared import Prepared
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
        prepared: Prepared,
        arrays: Mapping[str, NDArray[Any]],
        note: Callable[[int, SampleError], None],
    ) -> tuple[tuple[str, int], ...]:
        """Return how many samples have such values, by key; samples that are masked are noted."""
        found = {
            key: places for key in self._keys if key in suspects and (places := self._places(prepared, arrays[key]))
        }
        samples, masked = prepared.samples.tolist(), set[int]()
        for key, places in found.items():
            self._say_once(key, samples[places[0]])
            for at in places if self._stream.masks_not_finite else ():
                if at not in masked:
                    masked.add(at)
                    note(samples[at], error_of(key, self._stream.source.name(samples[at])))
                    self._clear(at, prepared, arrays)
        return tuple((key, len(places)) for key, places in found.items())

    def _places(self, prepared: Prepared, values: NDArray[Any]) -> list[int]:
        """Return which of the samples have such values; rows without a sample have none."""
        rows: list[int] = rows_not_finite(values).tolist()
        if not self._stream.packed or not rows:
            return rows
        stretches = enumerate(self._stretches(prepared, values))
        return [at for at, (row, stretch) in stretches if not is_all_finite(values[row, stretch])]

    @staticmethod
    def _stretches(prepared: Prepared, values: NDArray[Any]) -> list[tuple[int, slice]]:
        """Return where each sample lies in a packed batch."""
        assert prepared.planned.rows is not None
        assert prepared.planned.offsets is not None
        places = places_in_rows(prepared.planned.rows, prepared.planned.offsets, values.shape[1])
        return [(place.row, slice(place.offset, place.offset + place.room)) for place in places]

    def _clear(self, at: int, prepared: Prepared, arrays: Mapping[str, NDArray[Any]]) -> None:
        if self._stream.packed:
            key = self._stream.settings.length
            mask_stretch(arrays, key, *self._stretches(prepared, arrays[key])[at])
        else:
            mask_row(arrays, at, int(prepared.samples[at]))

    def _say_once(self, key: str, sample: int) -> None:
        if key not in self._said:
            self._said.add(key)
            name, does = self._stream.source.name(sample), "masked" if self._stream.masks_not_finite else "kept"
            self._log.warning("samples have values that are not finite", key=key, first=name, samples=does)
