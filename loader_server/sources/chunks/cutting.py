"""Where long samples are cut: which chunks there are, from lengths alone.

Rules: pure, integers only; the chunks of a recording are numbered one after another, and recordings follow each other
in order. Chunks begin at regular steps, so without an overlap each step is in exactly one chunk; the last one may be
short. A recording no longer than a chunk is one chunk, and so is an empty one.
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
    """For each of several chunks its recording, where it begins and ends there, and whether it is the last one."""

    recordings: Integers
    starts: Integers
    stops: Integers
    last: NDArray[np.bool_]


class ChunkTable:
    """All chunks of recordings of these lengths: each has `steps` steps, and one begins every `stride` steps.

    `steps` and `stride` are arrays, of one number for all recordings or of one for each.
    """

    def __init__(self, lengths: Integers, steps: Integers, stride: Integers) -> None:
        self._lengths = lengths
        self._steps = np.broadcast_to(steps, lengths.shape)
        self._stride = np.broadcast_to(stride, lengths.shape)
        # One chunk, and one more for each stride begun beyond its end: the last chunk reaches the recording's end.
        counts = 1 + -(-np.maximum(lengths - self._steps, 0) // self._stride)
        #: The first chunk of each recording, and the number of all chunks as the last entry.
        self.firsts: Integers = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])

    def __len__(self) -> int:
        return int(self.firsts[-1])

    def recordings_of(self, chunks: Integers) -> Integers:
        """Return the recording of each chunk."""
        recordings: Integers = np.searchsorted(self.firsts, chunks, side="right") - 1
        return recordings

    def extents(self, chunks: Integers) -> Extents:
        """Return where each of these chunks lies."""
        recordings = self.recordings_of(chunks)
        starts = (chunks - self.firsts[recordings]) * self._stride[recordings]
        stops = np.minimum(starts + self._steps[recordings], self._lengths[recordings])
        return Extents(recordings, starts, stops, chunks + 1 == self.firsts[recordings + 1])

    def segments(self, own: Integers, most: int) -> Integers:
        """Return where segments of chunks begin: none cuts a recording in two.

        They are the recordings' own segments, `own`, divided further at recordings so that each has about `most`
        chunks.
        """
        wanted = np.arange(0, len(self), most)
        # For each multiple of `most`, the first recording that begins there or later.
        begins = self.firsts[np.searchsorted(self.firsts, wanted)]
        return np.union1d(self.firsts[own], begins)

    def begins(self, start: int, stop: int) -> NDArray[np.bool_]:
        """Tell for each chunk from `start` to before `stop` whether it is the first of its recording."""
        chunks = np.arange(start, stop)
        found: NDArray[np.bool_] = self.firsts[self.recordings_of(chunks)] == chunks
        return found
