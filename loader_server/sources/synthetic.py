"""The synthetic source: samples made of nothing, for load tests and for trying a job's settings without data.

Rules: a sample follows from its number and the settings alone, in integers of our own hashing, so it is the same on
every machine; lengths spread like a log-normal distribution, as those of sentences and utterances do. What it makes of
one sample it makes of a whole batch at once (`gather`), bytes being equal: that is what lets one core feed hundreds of
trainers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

from shared.config import choice, number, setting, whole
from shared.hashing import hashed, key_of
from shared.wire.layout import Field

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from loader_server.sources.index.folder import Index

__all__ = ["SyntheticSettings", "SyntheticSource", "fields_of", "lengths_of", "open_synthetic"]

#: Different lengths are drawn by so many equally likely steps of the distribution.
_LENGTH_BITS = 12

#: A sample is a piece of one endless text, which repeats after so many steps.
_TEXT_BITS = 14

_LENGTH_KEY = key_of("synthetic length")
_START_KEY = key_of("synthetic start")

#: Samples whose lengths are drawn at a time.
_PIECE = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticSettings:
    """What a stream with source = "synthetic" says besides."""

    samples: int = setting(whole(1, 2**40), "how many samples there are")
    kind: str = setting(
        choice("tokens", "features"), "tokens: whole numbers; features: vectors of `bands` numbers", default="tokens"
    )
    median_length: int = setting(whole(1, 100_000), "half of the samples are at least so long, in steps", default=44)
    spread: float = setting(
        number(0, 2), "how much lengths differ: the standard deviation of their logarithm", default=0.5
    )
    vocabulary: int = setting(whole(2, 2**31 - 1), "tokens are from 1 to below this", default=32_000)
    bands: int = setting(whole(1, 4096), "numbers in a step of features", default=80)


def fields_of(settings: SyntheticSettings) -> tuple[Field, ...]:
    """The one value of a sample."""
    if settings.kind == "tokens":
        return (Field(key="tokens", dtype="int32", shape=(None,)),)
    return (Field(key="features", dtype="float32", shape=(None, settings.bands)),)


def lengths_of(settings: SyntheticSettings) -> Iterator[dict[str, NDArray[np.int64]]]:
    """The lengths of all samples in order, by key, in pieces."""
    key, steps = fields_of(settings)[0].key, _length_steps(settings)
    for start in range(0, settings.samples, _PIECE):
        samples = np.arange(start, min(start + _PIECE, settings.samples))
        yield {key: steps[_top_bits(samples, _LENGTH_KEY, _LENGTH_BITS)]}


def _top_bits(samples: NDArray[np.int64], key: int, bits: int) -> NDArray[np.int64]:
    top: NDArray[np.int64] = (hashed(samples, key) >> np.uint64(64 - bits)).astype(np.int64)
    return top


def _length_steps(settings: SyntheticSettings) -> NDArray[np.int64]:
    """The lengths that there are, equally likely, in rising order."""
    count = 2**_LENGTH_BITS
    scores = (NormalDist().inv_cdf((step + 0.5) / count) for step in range(count))
    lengths = [round(settings.median_length * math.exp(settings.spread * score)) for score in scores]
    return np.maximum(np.array(lengths, np.int64), 1)


def open_synthetic(index: Index, _base: Path) -> SyntheticSource:
    """Open the source of an index; there is nothing else to open."""
    settings = SyntheticSettings(**index.meta.settings)
    return SyntheticSource(settings, index.raw_lengths[fields_of(settings)[0].key])


class SyntheticSource:
    """Samples of `lengths` steps, by number."""

    def __init__(self, settings: SyntheticSettings, lengths: NDArray[np.int64]) -> None:
        self.fields = fields_of(settings)
        self._key = self.fields[0].key
        self._lengths = lengths
        self._text = _text(settings, 2**_TEXT_BITS + int(_length_steps(settings)[-1]))
        self._steps = np.arange(len(self._text), dtype=np.int64)

    @property
    def samples(self) -> int:
        """How many there are."""
        return len(self._lengths)

    def name(self, sample: int) -> str:
        """Its number is all the name that it has."""
        return f"synthetic {sample}"

    def read(self, _sample: int) -> bytes:
        """Nothing has to be read."""
        return b""

    def decode(self, sample: int, _raw: bytes) -> dict[str, Any]:
        """The piece of the text that this sample is."""
        start = int(_starts(np.array([sample]))[0])
        return {self._key: self._text[start : start + int(self._lengths[sample])].copy()}

    def gather(self, samples: NDArray[np.int64], out: Mapping[str, NDArray[Any]]) -> None:
        """Write all rows of a batch at once, with lengths, and zeros behind them."""
        values, lengths = out[self._key], self._lengths[samples]
        steps = self._steps[: values.shape[1]]
        np.take(self._text, _starts(samples)[:, None] + steps, axis=0, out=values, mode="clip")
        values[steps >= lengths[:, None]] = 0
        out[f"{self._key}_length"][:] = lengths

    def close(self) -> None:
        """Nothing is open."""


def _starts(samples: NDArray[np.int64]) -> NDArray[np.int64]:
    return _top_bits(samples, _START_KEY, _TEXT_BITS)


def _text(settings: SyntheticSettings, steps: int) -> NDArray[Any]:
    """Tokens from 1, for 0 is padding; features from -1 to 1, in steps that float32 holds exactly."""
    if settings.kind == "tokens":
        words = hashed(np.arange(steps), key_of("synthetic tokens"))
        most = np.uint64(settings.vocabulary - 1)
        tokens: NDArray[Any] = (words % most + np.uint64(1)).astype(np.int32)
        return tokens
    words = hashed(np.arange(steps * settings.bands), key_of("synthetic features")) >> np.uint64(48)
    values: NDArray[Any] = (words.astype(np.int64) - 2**15).astype(np.float32) / np.float32(2**15)
    return values.reshape(steps, settings.bands)
