"""The strings that come with batches: those of one key, from the indexes of a stream's sources.

An index keeps the strings that its stream asks for in columns of their own, so that a batch's strings are found without
reading or decoding a sample, and the bytes that they take follow from the plan. Rules: a sample's strings are those of
its source, before any transform; of a chunk they are those of its recording.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, cast

import numpy as np

from loader_server.sources.batch_columns import Ragged, interleaved

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from loader_server.index.column_files import Strings
    from loader_server.sources.source import Source

__all__ = ["LONGEST_STRING", "StringColumn", "column_of_strings"]

#: The most bytes that a string may have; a row with a longer one is bad.
LONGEST_STRING = 2**20

#: The longest strings whose sizes bound those of a batch: without them, a batch of 1 000 strings would count as 1 000
#: of the longest.
_LONGEST = 2**16
#: From this mean size on, strings are copied one by one.
_LONG = 256
#: Strings whose sizes are in memory at once.
_BLOCK = 2**22


def column_of_strings(key: str) -> str:
    """Return the name of the index's column that has the strings of this key."""
    return f"strings.{key}"


class StringColumn:
    """The strings of one key, of all samples of a stream; each source is given with the column of its index."""

    def __init__(self, key: str, members: Sequence[tuple[Source, Strings]]) -> None:
        self.key = key
        self._sources = [source for source, _ in members]
        self._columns = [column for _, column in members]
        #: The first sample of each source, and the number of all samples.
        self._starts = np.array([0, *accumulate(source.samples for source in self._sources)])
        #: The strings as entries of an array, if a single source has them and they are known to have one size, as ids
        #: do, and that size for as many of them as batches had so far.
        self._equal: NDArray[np.void] | None = None
        self._sizes = np.zeros(0, np.int64)

    def note_longest(self, size: int) -> None:
        """Note the size of the longest string; if all have it, batches find theirs without looking at where each is."""
        (column, *others) = self._columns
        if not others and size and len(column) * size == len(column.blob):
            self._equal = column.blob.view(np.dtype((np.void, size)))

    def of(self, samples: NDArray[np.int64]) -> Ragged:
        """Return the UTF-8 of these samples' strings; numbers have to be in range, which is not checked."""
        if self._equal is not None:
            found = self._equal.take(self._sources[0].indexed_samples(samples))
            sizes = self._sizes
            if len(found) > len(sizes):  # without a lock: another thread may keep fewer, and both are right
                sizes = self._sizes = np.full(len(found), found.itemsize)
            return Ragged(found.view(np.uint8), sizes[: len(found)])
        if len(self._columns) == 1:
            return _gathered(self._columns[0], self._sources[0].indexed_samples(samples))
        members = np.searchsorted(self._starts, samples, side="right") - 1
        strings: list[Ragged] = []
        places: list[NDArray[np.int64]] = []
        for member, (column, source) in enumerate(zip(self._columns, self._sources, strict=True)):
            places.append(np.flatnonzero(members == member))
            own = samples[places[-1]] - self._starts[member]
            strings.append(_gathered(column, source.indexed_samples(own)))
        return cast("Ragged", interleaved(strings, places))

    def longest_sizes(self) -> NDArray[np.int64]:
        """Return the bytes of the longest strings of all samples, the longest first, of at most 65 536."""
        longest = np.zeros(0, np.int64)
        for column in self._columns:
            for start in range(0, len(column), _BLOCK):
                sizes = np.diff(column.starts[start : start + _BLOCK + 1])
                longest = np.sort(np.concatenate([longest, sizes]))[::-1][:_LONGEST]
        return longest


def _gathered(column: Strings, rows: NDArray[np.int64]) -> Ragged:
    """Return the UTF-8 of a column's strings at these rows."""
    starts = column.starts[rows]
    sizes = column.starts[rows + 1] - starts
    ends = sizes.cumsum()
    total = int(ends[-1]) if len(ends) else 0
    if total > len(rows) * _LONG:
        spans = zip(starts.tolist(), (starts + sizes).tolist(), strict=True)
        return Ragged(np.concatenate([column.blob[start:stop] for start, stop in spans]), sizes)
    # For each byte, its place in the column: without a step of Python for each string.
    places = np.repeat(starts - ends + sizes, sizes)
    places += np.arange(total)
    return Ragged(column.blob[places], sizes)
