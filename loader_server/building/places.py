"""Places of a batch's samples in its arrays: one row each, or several samples packed into a row.

Both kinds of places are written in the same ways, sample by sample or all at once, so a builder need not know which
kind a stream has. Rules: `begin` comes first, also when a fallback starts over; the last write wins. After `finish`
every byte of the arrays was written. No sample is read or decoded here.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from loader_server.building.not_finite import is_all_finite, mask_row, mask_stretch, rows_not_finite
from loader_server.building.packed_rows import PackedRows, write_marks
from loader_server.sources.batch_columns import gather_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from loader_server.building.read_ahead import Prepared
    from loader_server.sources.batch_columns import Gathers
    from loader_server.stream import Stream
    from shared.wire.batch_layout import Field

__all__ = ["Look", "PackedPlaces", "Places", "RowPlaces", "places_of"]

#: Callback that gets some rows of a batch as soon as they are written.
Look: TypeAlias = "Callable[[Mapping[str, NDArray[Any]]], None]"

#: Bytes of rows per call of `Look`: little enough that they are still in the processor's cache.
_PIECE_BYTES = 2**20

_Values: TypeAlias = "Mapping[str, NDArray[np.generic]]"


class RowPlaces:
    """Places of samples that have a row each, from the first row on."""

    def __init__(self, fields: Sequence[Field], samples: NDArray[np.int64], arrays: Mapping[str, NDArray[Any]]) -> None:
        #: The positions of samples that are masked.
        self.masked = set[int]()
        self._fields = fields
        self._samples = samples
        self._arrays = arrays

    @cached_property
    def _room(self) -> Mapping[str, int]:
        return {
            key: room
            for field in self._fields
            for key, room in zip(field.length_keys, self._arrays[field.key].shape[1:], strict=False)
        }

    def begin(self) -> None:
        """Write the weight, 1, and the sample's number into each row that has a sample."""
        self.masked.clear()
        end = len(self._samples)
        self._arrays["weight"][:end] = 1
        self._arrays["tag"][:end] = self._samples

    def room(self, at: int) -> Mapping[str, int]:
        """Return the most steps that a sample may have along each padded axis, by `Field.length_keys`.

        `at` is the sample's position in the batch.
        """
        return self._room

    def write(self, at: int, values: _Values) -> None:
        """Write one sample into its row: padded keys with length (and width) and zeros behind, other keys as they are.

        No value may be longer than `room` says; a longer one raises ValueError.
        """
        arrays = self._arrays
        for field in self._fields:
            value, place = values[field.key], arrays[field.key][at]
            if field.padded:
                if field.is_wide:
                    width = value.shape[1]
                    arrays[f"{field.key}_width"][at] = width
                    place[: len(value), width:] = 0
                    place[: len(value), :width] = value
                else:
                    place[: len(value)] = value
                place[len(value) :] = 0
                arrays[f"{field.key}_length"][at] = len(value)
            else:
                arrays[field.key][at] = value

    def mask(self, at: int) -> None:
        """Clear a sample's row, weight included; it keeps the sample's number."""
        self.masked.add(at)
        mask_row(self._arrays, at, int(self._samples[at]))

    clear = mask

    def gather(self, source: Gathers, masked: Sequence[int], look: Look | None = None) -> None:
        """Let the source write all samples at once, except those that are masked.

        With `look`, and if none is masked, the source writes a piece of the rows at a time, and `look` is called with
        each while it is still in the processor's cache. Reading 10 MB of a finished batch again takes as long as
        writing it did. Pass on any error of the source.
        """
        samples, end = self._samples, len(self._samples)
        keys = [name for field in self._fields for name in (field.key, f"{field.key}_length", f"{field.key}_width")]
        own = {key: self._arrays[key][:end] for key in keys if key in self._arrays}
        if masked:
            # Masked rows are holes, so the others are gathered into arrays of their own and copied.
            rows = np.delete(np.arange(end), masked)
            gather_rows(source, samples[rows], rows, own)
        elif end and look is not None:
            row_bytes: int = sum(array[:1].nbytes for array in own.values())
            count = max(1, _PIECE_BYTES // max(1, row_bytes))
            for start in range(0, end, count):
                piece = {key: array[start : start + count] for key, array in own.items()}
                source.gather(samples[start : start + count], piece)
                look(piece)
        elif end:
            source.gather(samples, own)

    def finish(self, masked: int) -> int:
        """Clear the rows that hold no sample, and return how many rows are valid if `masked` samples are not."""
        _leave_empty(self._arrays, len(self._samples))
        return len(self._samples) - masked

    def not_finite(self, key: str) -> list[int]:
        """Return the positions of samples with NaN or infinite values, maybe none; empty rows do not count."""
        rows: list[int] = rows_not_finite(self._arrays[key]).tolist()
        return rows


class PackedPlaces:
    """Places of one key's samples, several of which share a row.

    A masked sample leaves its place in the row empty; `tag` is the row's first sample.
    """

    def __init__(self, key: str, prepared: Prepared, arrays: Mapping[str, NDArray[Any]]) -> None:
        #: The positions of samples that are masked.
        self.masked = set[int]()
        self._key = key
        self._samples = samples = prepared.samples
        self._arrays = arrays
        # A want for an empty batch still has a planned batch, whose samples are left out.
        planned, none = prepared.planned, samples[:0]
        rows, offsets = (planned.rows, planned.offsets) if len(samples) else (none, none)
        assert rows is not None
        assert offsets is not None
        self._rows = PackedRows(rows, offsets, arrays[key].shape[1])

    def begin(self) -> None:
        """Clear all rows, and write the number of each row's first sample; a row without samples gets tag -1."""
        self.masked.clear()
        _leave_empty(self._arrays, 0)
        firsts = self._rows.firsts
        self._arrays["tag"][self._rows.rows[firsts]] = self._samples[firsts]

    def room(self, at: int) -> Mapping[str, int]:
        """Return the most steps that a sample may have before the next one begins or the row ends, by key."""
        return {self._key: self._rows.places[at].room}

    def write(self, at: int, values: _Values) -> None:
        """Write one sample and its marks; its row becomes valid, with a length up to the end of this sample.

        It may not be longer than `room` says, which is not checked.
        """
        arrays, key, place = self._arrays, self._key, self._rows.places[at]
        value = values[key]
        stop = place.offset + len(value)
        arrays[key][place.row, place.offset : stop] = value
        write_marks(arrays[f"{key}_segment"], arrays[f"{key}_position"], place, len(value))
        arrays[f"{key}_length"][place.row] = stop
        arrays["weight"][place.row] = 1

    def mask(self, at: int) -> None:
        """Leave the place of a sample empty; `begin` cleared it."""
        self.masked.add(at)

    def clear(self, at: int) -> None:
        """Clear the place of a sample that was written; the row gets the length and weight of the samples left."""
        self.masked.add(at)
        place = self._rows.places[at]
        mask_stretch(self._arrays, self._key, place.row, slice(place.offset, place.offset + place.room))

    def gather(self, source: Gathers, masked: Sequence[int], look: Look | None = None) -> None:
        """Let the source write all samples at once, except those that are masked, and move each into its place.

        `look` is never called: a piece of packed rows is not a piece of samples. Raise ValueError if a sample is longer
        than its place; pass on any error of the source.
        """
        if not len(self._samples):
            return
        arrays, key, rows = self._arrays, self._key, self._rows
        kept = np.delete(np.arange(len(self._samples)), masked)
        values = np.empty((len(kept), rows.most_room, *arrays[key].shape[2:]), arrays[key].dtype)
        lengths = np.zeros(len(kept), np.int64)
        source.gather(self._samples[kept], {key: values, f"{key}_length": lengths})
        rows.write(kept, lengths, values, (arrays[key], arrays[f"{key}_segment"], arrays[f"{key}_position"]))
        rows_kept = rows.rows[kept]
        # A row's length is the end of its last sample. Assigning with repeated row numbers would rely on numpy's order.
        np.maximum.at(arrays[f"{key}_length"], rows_kept, (rows.offsets[kept] + lengths).astype(np.int32))
        arrays["weight"][rows_kept] = 1

    def finish(self, masked: int) -> int:
        """Return the number of valid rows, which have at least one sample that was written."""
        return int(self._arrays["weight"].sum())

    def not_finite(self, key: str) -> list[int]:
        """Return the positions of samples with NaN or infinite values; empty if all are finite."""
        values = self._arrays[key]
        # Nearly always all is finite; only if not, it takes a look at each sample to find the one.
        if not len(rows_not_finite(values)):
            return []
        stretches = ((place.row, slice(place.offset, place.offset + place.room)) for place in self._rows.places)
        return [at for at, (row, stretch) in enumerate(stretches) if not is_all_finite(values[row, stretch])]


Places: TypeAlias = "RowPlaces | PackedPlaces"


def places_of(stream: Stream, prepared: Prepared, arrays: Mapping[str, NDArray[Any]]) -> Places:
    """Return the places of a batch's samples, of the kind that the stream has."""
    if stream.packed:
        return PackedPlaces(stream.settings.length, prepared, arrays)
    return RowPlaces(stream.chain.fields, prepared.samples, arrays)


def _leave_empty(arrays: Mapping[str, NDArray[Any]], rows: int) -> None:
    """Clear the rows from `rows` on, which hold no sample, and set their tags to -1."""
    if rows == len(arrays["tag"]):
        return
    for array in arrays.values():
        array[rows:] = 0
    arrays["tag"][rows:] = -1
