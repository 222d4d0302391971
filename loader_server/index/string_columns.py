"""The strings that come with batches: those of one key, from the indexes of a stream's sources.

An index keeps the strings that its stream asks for in columns of their own, so that a batch's strings are found without
reading or decoding a sample, and the bytes that they take follow from the plan. Rules: a sample's strings are those of
its source, before any transform; of a chunk they are those of its recording.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from loader_server.index.column_files import Strings
    from loader_server.index.joined import OpenedSource

__all__ = ["LONGEST_STRING", "StringColumn", "column_of_strings"]

#: The most bytes that a string may have; a row with a longer one is bad.
LONGEST_STRING = 2**20

#: The longest strings whose sizes bound those of a batch: without them, a batch of 1 000 strings would count as 1 000
#: of the longest.
_LONGEST = 2**16
#: Strings whose sizes are in memory at once.
_BLOCK = 2**22


def column_of_strings(key: str) -> str:
    """Return the name of the index's column that has the strings of this key."""
    return f"strings.{key}"


class StringColumn:
    """The strings of one key, of all samples of a stream."""

    def __init__(self, key: str, opened: Sequence[OpenedSource]) -> None:
        self.key = key
        self._sources = [member.source for member in opened]
        self._columns: list[Strings] = [member.index.indexed.strings[column_of_strings(key)] for member in opened]
        #: The first sample of each source, and the number of all samples.
        self._starts = np.array([0, *accumulate(source.samples for source in self._sources)])

    def of(self, samples: NDArray[np.int64]) -> list[memoryview]:
        """Return the UTF-8 of these samples' strings; the numbers have to be in range, which is not checked."""
        strings: list[memoryview] = [memoryview(b"")] * len(samples)
        members = np.searchsorted(self._starts, samples, side="right") - 1
        for member in np.unique(members).tolist():
            column, places = self._columns[member], np.flatnonzero(members == member)
            rows = self._sources[member].indexed_samples(samples[places] - self._starts[member])
            text = memoryview(column.blob)
            starts, stops = column.starts[rows].tolist(), column.starts[rows + 1].tolist()
            for place, start, stop in zip(places.tolist(), starts, stops, strict=True):
                strings[place] = text[start:stop]
        return strings

    def longest_sizes(self) -> NDArray[np.int64]:
        """Return the bytes of the longest strings of all samples, the longest first, of at most 65 536."""
        longest = np.zeros(0, np.int64)
        for column in self._columns:
            for start in range(0, len(column), _BLOCK):
                sizes = np.diff(column.starts[start : start + _BLOCK + 1])
                longest = np.sort(np.concatenate([longest, sizes]))[::-1][:_LONGEST]
        return longest
