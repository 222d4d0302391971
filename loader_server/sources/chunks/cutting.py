"""Where long samples are cut: which chunks there are, from lengths alone.

Rules: pure, integers only; the chunks of a recording are numbered one after another, and those of one recording after
those of the one before. Chunks begin at regular steps, so without an overlap each step is in exactly one chunk; the
last one may be short. A recording that is no longer than a chunk is one chunk, and so is an empty one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

__all__ = ["ChunkTable", "Extents"]


@dataclass(frozen=True, slots=True)
class Extents:
    """For each of some chunks: its recording, where it begins and ends there, and whether it is the last one."""

    recordings: Integers
    starts: Integers
    stops: Integers
    last: NDArray[np.bool_]


class ChunkTable:
    """All chunks of recordings of these lengths: each has `steps` steps, and one begins every `stride` steps; both are
    arrays, of one number for all recordings or of one for each.
    """

    def __init__(self, lengths: Integers, steps: Integers, stride: Integers) -> None:
        self._lengths = lengths
        self._steps = np.broadcast_to(steps, lengths.shape)
        self._stride = np.broadcast_to(stride, lengths.shape)
        counts = 1 + -(-np.maximum(lengths - self._steps, 0) // self._stride)
        #: The first chunk of each recording, with the number of all chunks at the end.
        self.firsts: Integers = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])

    def __len__(self) -> int:
        return int(self.firsts[-1])

    def recordings_of(self, chunks: Integers) -> Integers:
        """The recording of each chunk."""
        recordings: Integers = np.searchsorted(self.firsts, chunks, side="right") - 1
        return recordings

    def extents(self, chunks: Integers) -> Extents:
        """Where each of these chunks lies."""
        recordings = self.recordings_of(chunks)
        starts = (chunks - self.firsts[recordings]) * self._stride[recordings]
        stops = np.minimum(starts + self._steps[recordings], self._lengths[recordings])
        return Extents(recordings, starts, stops, chunks + 1 == self.firsts[recordings + 1])

    def segments(self, own: Integers, most: int) -> Integers:
        """The recordings' segments as chunks, cut further where a recording begins so that they stay near `most`."""
        wanted = np.arange(0, len(self), most)
        begins = self.firsts[np.searchsorted(self.firsts, wanted)]
        return np.union1d(self.firsts[own], begins)

    def begins(self, start: int, stop: int) -> NDArray[np.bool_]:
        """Which of the chunks from `start` to before `stop` are the first of a recording."""
        chunks = np.arange(start, stop)
        found: NDArray[np.bool_] = self.firsts[self.recordings_of(chunks)] == chunks
        return found
