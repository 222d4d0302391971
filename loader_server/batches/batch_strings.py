"""The strings that come with a stream's batches: how many bytes they take, and those of one batch.

Rules: a tensor's bytes follow from the plan and the index alone, so that all workers make the same batch. Each shape
has room for the longest strings that a batch of it may have; a batch has what its own take, in steps of an eighth.
A masked sample has an empty string, and so has a row without a sample.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from loader_server.index.string_columns import StringColumn, column_of_strings
from loader_server.plan_keeper import PlanKeeper
from loader_server.sources.batch_columns import Ragged
from shared.errors import SettingsError
from shared.wire.batch_layout import STRING, Field
from shared.wire.strings import MOST_BYTES, bytes_needed, room_for, write_strings

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from loader_server.index.joined import SourceSet
    from loader_server.job_file import StreamRecipe
    from loader_server.planning import PlannedBatch
    from loader_server.planning.stages import Keeper
    from shared.wire.batch_layout import BucketShape

__all__ = ["BatchStrings", "FoundStrings"]


@dataclass(frozen=True, slots=True)
class FoundStrings:
    """The strings of one batch."""

    #: By key, the UTF-8 of all samples' strings.
    by_key: Mapping[str, Ragged]
    #: How many strings a batch has, and the place of each sample's among them, ascending; None: from the first on.
    count: int
    places: NDArray[np.int64] | None
    #: The bytes of each key's tensor.
    room: tuple[int, ...]

    def write(self, tensors: Mapping[str, NDArray[np.uint8]], masked: Collection[int]) -> None:
        """Write all bytes of the tensors; samples at the positions in `masked` get an empty string."""
        for key, strings in self.by_key.items():
            kept = _without(strings, masked) if masked else strings
            sizes = kept.lengths
            if len(sizes) < self.count:
                sizes = np.zeros(self.count, np.int64)
                sizes[slice(len(kept.lengths)) if self.places is None else self.places] = kept.lengths
            write_strings(sizes, kept.values, tensors[key])

    def of(self, at: int) -> dict[str, str]:
        """Return the strings of the sample at a position, by key."""
        ends = {key: np.append(0, np.cumsum(strings.lengths)) for key, strings in self.by_key.items()}
        spans = {key: slice(int(end[at]), int(end[at + 1])) for key, end in ends.items()}
        return {key: self.by_key[key].values[span].tobytes().decode() for key, span in spans.items()}


def _without(strings: Ragged, masked: Collection[int]) -> Ragged:
    """Return the strings with empty ones at these positions."""
    kept = np.ones(len(strings.lengths), np.bool_)
    kept[list(masked)] = False
    return Ragged(strings.values[np.repeat(kept, strings.lengths)], strings.lengths * kept)


class BatchStrings:
    """The strings of a stream, by default none: a column for each key of its batches.

    `longest` has the sizes of the longest strings by the source's key, the longest first. If `repeated`, a batch may
    have one sample's string several times.
    """

    def __init__(
        self,
        columns: Mapping[str, StringColumn] = MappingProxyType({}),
        longest: Mapping[str, NDArray[np.int64]] = MappingProxyType({}),
        *,
        packed: bool = False,
        repeated: bool = False,
        where: str = "",
    ) -> None:
        self._columns = columns
        self._longest = longest
        self._repeated = repeated
        self._where = where
        shape = (None,) if packed else ()
        #: The fields of a batch, one for each key.
        self.fields = tuple(Field(key=name, dtype=STRING, shape=shape) for name in columns)
        #: Words for the batches' identity: which key has the strings of another of the source's.
        self.words = tuple(f"{name} = {column.key}" for name, column in columns.items() if name != column.key)

    @classmethod
    def of(cls, recipe: StreamRecipe, joined: SourceSet, folder: Path) -> BatchStrings:
        """Return the strings that a stream's table names; what takes long to find out is kept in its index's folder."""
        columns = dict[str, StringColumn]()
        for key in sorted({key for _, key in recipe.settings.strings}):
            name = column_of_strings(key)
            columns[key] = StringColumn(
                key, [(member.source, member.index.indexed.strings[name]) for member in joined.opened]
            )
        return cls(
            {name: columns[key] for name, key in recipe.settings.strings},
            _kept_sizes(columns.values(), PlanKeeper(folder), joined.fingerprint),
            packed=recipe.plan.packing is not None,
            # Of a recording that is cut, or of a source that is mixed in more often than others.
            repeated=recipe.chunks is not None or bool(recipe.plan.weights),
            where=f"{recipe.where}, strings",
        )

    def roomy(self, shape: BucketShape, strings: int) -> BucketShape:
        """Return the shape with room for the longest strings, of which a batch has so many for each key.

        Raise a SettingsError if they may not fit into one tensor.
        """
        if not self._columns:
            return shape
        room = dict[str, int]()
        for name, column in self._columns.items():
            room[name] = nbytes = self._most_bytes(column, strings)
            if nbytes > MOST_BYTES:
                raise SettingsError(
                    expected=f'at most {MOST_BYTES} bytes of "{name}" in a batch',
                    got=f"up to {nbytes} for {strings} samples, the longest taken together",
                    where=self._where,
                    remedy="Lower the budget or the rows, or leave the key out.",
                )
        return replace(shape, lengths={**shape.lengths, **room})

    def _most_bytes(self, column: StringColumn, strings: int) -> int:
        """Return the most bytes that the tensor of so many strings takes, whichever samples they are of."""
        longest = self._longest[column.key]
        among = longest[: 1 if self._repeated else strings]
        rest = (strings - len(among)) * int(among[-1]) if self._repeated or len(among) == len(longest) else 0
        return bytes_needed(strings, int(among.sum()) + rest)

    def find(self, planned: PlannedBatch, samples: NDArray[np.int64], shape: BucketShape) -> FoundStrings | None:
        """Return the strings of a batch's samples, none if it is empty; None if the stream has no strings.

        `shape` is the batch's as `roomy` returned it.
        """
        if not self._columns:
            return None
        count, places = shape.rows, None
        if planned.rows is not None and len(samples):
            # Rows ascend, so `searchsorted` finds the first sample of each one's row.
            order = np.arange(len(samples)) - np.searchsorted(planned.rows, planned.rows)
            each = int(order.max()) + 1
            count, places = count * each, planned.rows * each + order
        by_key, room = {}, []
        for name, column in self._columns.items():
            strings = by_key[name] = column.of(samples)
            room.append(room_for(bytes_needed(count, len(strings.values)), shape.lengths[name]))
        return FoundStrings(by_key, count, places, tuple(room))


def _kept_sizes(columns: Collection[StringColumn], keeper: Keeper, index: str) -> dict[str, NDArray[np.int64]]:
    """Return the sizes of each column's longest strings by its key, from the keeper or by a look at all of them.

    The columns, in the order of their keys, note the size of their longest one.
    """
    if not columns:
        return {}
    # By number, because a key may be anything and these are names of files in an archive.
    names = {str(place): column for place, column in enumerate(columns)}
    arrays = keeper.load("strings", index)
    if arrays is None:
        arrays = {name: column.longest_sizes() for name, column in names.items()}
        keeper.save("strings", index, arrays)
    for name, column in names.items():
        column.note_longest(int(arrays[name].max(initial=0)))
    return {column.key: arrays[name].astype(np.int64) for name, column in names.items()}
