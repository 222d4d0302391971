"""Recordings that transforms mix into others: drawn from a separate source, and resampled to a given rate.

Rules: only the generator chooses which one is drawn; those decoded last are cached, bounded in bytes, which does not
affect the output. Files are opened with the first recording, not while settings are read.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from loader_server.sources.files.retried_reads import read_patiently
from loader_server.transforms import SampleError, SettingsError
from loader_server.transforms.audio.resampling import resampled

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from loader_server.sources.side_source import SideSource
    from loader_server.sources.source import Source

__all__ = ["DrawnRecordings"]

#: Most bytes of decoded recordings in the cache; the last one drawn stays even if it is larger.
_KEPT_BYTES = 64 * 2**20


class DrawnRecordings:
    """Recordings of a source, to be drawn at random."""

    def __init__(self, recordings: SideSource, where: str) -> None:
        self._recordings = recordings
        self._where = where
        self._kept: OrderedDict[tuple[int, int], NDArray[np.float32]] = OrderedDict()
        self._kept_bytes = 0

    @cached_property
    def _source(self) -> Source:
        """Return the source, opened with the first recording.

        Raise SettingsError if its settings are wrong or its samples have no audio, DataError if it cannot be used.
        Other errors of the source pass, such as an OSError if the disk fails.
        """
        source = self._recordings.open(self._where)
        if all(field.key != "audio" for field in source.fields):
            raise SettingsError(
                expected="a source of recordings",
                got=f"one of {', '.join(field.key for field in source.fields) or 'texts'}",
                where=self._where,
                remedy='Name one whose samples have audio, such as source = "manifest".',
            )
        return source

    def draw(self, rng: np.random.Generator, rate: int) -> NDArray[np.float32]:
        """Draw a recording, at this rate. The array is shared with later calls: do not change it.

        Raise SettingsError or DataError if the source cannot be used or has no recordings; SampleError if the sample
        drawn has no audio, has one that is not float32 or cannot be decoded; ReadError if it cannot be read. Other
        errors of opening and decoding pass.
        """
        number = int(rng.integers(self._source.samples))
        # Taken out and put back at the end, so that the first entry is always the least recently used.
        audio = self._kept.pop((number, rate), None)
        if audio is None:
            audio = self._decoded(number, rate)
            self._kept_bytes += audio.nbytes
        self._kept[number, rate] = audio
        while self._kept_bytes > _KEPT_BYTES and len(self._kept) > 1:
            _, oldest = self._kept.popitem(last=False)
            self._kept_bytes -= oldest.nbytes
        return audio

    def _decoded(self, number: int, rate: int) -> NDArray[np.float32]:
        """Read, decode and resample one recording.

        Raise SampleError if it has no audio, has one that is not float32 or cannot be decoded; ReadError if it cannot
        be read. Other errors of decoding and resampling pass.
        """
        (raw,) = read_patiently(self._source.read, [number], bool)
        sample = self._source.decode(number, raw)
        audio = sample.get("audio")
        if not isinstance(audio, np.ndarray) or not len(audio) or "audio_rate" not in sample:
            raise SampleError(
                reason="no_recording",
                expected="a recording with audio and audio_rate",
                got=", ".join(sample) if len(sample.get("audio", " ")) else "one without any audio",
                where=f"{self._where}, {self._source.name(number)}",
                remedy="Name a source of recordings, and remove those that are empty.",
            )
        return resampled(audio, sample["audio_rate"], rate)
