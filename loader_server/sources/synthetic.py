"""The synthetic source: made-up samples, for load tests and for trying a job's settings without data.

Rules: a sample follows from its number and the settings alone, in integers of our own hashing, so it is the same on
every machine; lengths spread like a log-normal distribution, as those of sentences and utterances do. It makes whole
batches at once (`gather`), with the same bytes as sample by sample, which lets one core feed hundreds of trainers.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

from loader_server.sources.batch_columns import write_padded
from loader_server.sources.source import Found, Indexed, Inventory, Source
from shared.hashing import hashed, key_of
from shared.settings.parsers import choice, number, setting, whole
from shared.wire.batch_layout import Field

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

__all__ = ["SyntheticSettings", "SyntheticSource"]

#: Lengths are drawn from 2 to this power equally likely quantiles of the distribution.
_LENGTH_BITS = 12

#: A sample is a piece of one text and begins at one of its first 2 to this power steps.
_TEXT_BITS = 14

_LENGTH_KEY = key_of("synthetic length")
_START_KEY = key_of("synthetic start")

#: Samples whose lengths are drawn at a time.
_PIECE = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticSettings:
    """Further settings of a stream with source = "synthetic"."""

    samples: int = setting(whole(1, 2**40), "how many samples there are")
    kind: str = setting(
        choice("tokens", "features"), "tokens: whole numbers; features: vectors of `bands` numbers", default="tokens"
    )
    median_length: int = setting(whole(1, 100_000), "half of the samples are at least this long, in steps", default=44)
    spread: float = setting(
        number(0, 2), "how much lengths differ: the standard deviation of their logarithm", default=0.5
    )
    vocabulary: int = setting(whole(2, 2**31 - 1), "tokens are from 1 to below this", default=32_000)
    bands: int = setting(whole(1, 4096), "numbers in a step of features", default=80)


class SyntheticSource(Source):
    """Samples cut from one long text; their only column is their length."""

    Settings = SyntheticSettings
    piece_rows = _PIECE
    #: A sample follows from its number, so none may be left out of the index.
    measurable = False
    gathers = True
    settings: SyntheticSettings

    @property
    def fields(self) -> tuple[Field, ...]:
        """Return the only field: "tokens" of int32, or "features" of float32 with `bands` values a step."""
        if self.settings.kind == "tokens":
            return (Field(key="tokens", dtype="int32", shape=(None,)),)
        return (Field(key="features", dtype="float32", shape=(None, self.settings.bands)),)

    def stamp(self) -> str:
        """Return the constant "synthetic": there are no data besides the settings."""
        return "synthetic"

    def survey(self) -> Inventory:
        """Return the number of samples, and ranges of numbers as pieces."""
        total = self.settings.samples
        return Inventory(
            total=total,
            pieces=lambda rows: (range(start, min(start + rows, total)) for start in range(0, total, rows)),
        )

    def probe(self, piece: range) -> Found:
        """Return the lengths of these samples, in steps; no row is bad."""
        lengths = _length_steps(self.settings)[_top_bits(np.arange(piece.start, piece.stop), _LENGTH_KEY, _LENGTH_BITS)]
        return Found(rows=piece, numbers={f"length_{self.fields[0].key}": lengths})

    def open(self, indexed: Indexed) -> None:
        """Take the index, and make the text that all samples are cut from."""
        super().open(indexed)
        self._key = self.fields[0].key
        self._lengths = self.lengths[self._key]
        self._text = _text(self.settings, 2**_TEXT_BITS + int(_length_steps(self.settings)[-1]))

    def name(self, sample: int) -> str:
        """Return "synthetic" and the sample's number, as one text; raise an IndexError if it is out of range."""
        return f"synthetic {self.checked(sample)}"

    def decode(self, sample: int, _raw: bytes) -> dict[str, Any]:
        """Return a copy of the sample's piece of the text; raise an IndexError if the number is out of range."""
        start = int(_starts(np.array([self.checked(sample)]))[0])
        return {self._key: self._text[start : start + int(self._lengths[sample])].copy()}

    def gather(self, samples: NDArray[np.int64], out: Mapping[str, NDArray[Any]]) -> None:
        """Write all rows of a batch into `out`, with lengths and zero padding; sample numbers are not checked."""
        # A bucket may be longer than any sample, so that rows reach beyond the text: there they are padding.
        lengths = out[f"{self._key}_length"][:] = self._lengths[samples]
        write_padded(self._text, _starts(samples), lengths, out[self._key])


def _top_bits(samples: NDArray[np.int64], key: int, bits: int) -> NDArray[np.int64]:
    top: NDArray[np.int64] = (hashed(samples, key) >> np.uint64(64 - bits)).astype(np.int64)
    return top


def _length_steps(settings: SyntheticSettings) -> NDArray[np.int64]:
    """Return the possible lengths, equally likely, in ascending order."""
    lengths = (max(round(settings.median_length * math.exp(settings.spread * score)), 1) for score in _scores())
    return np.fromiter(lengths, np.int64)


@functools.cache
def _scores() -> tuple[float, ...]:
    """Return equally likely quantiles of the standard normal distribution, one for each possible length."""
    count = 2**_LENGTH_BITS
    return tuple(NormalDist().inv_cdf((step + 0.5) / count) for step in range(count))


def _starts(samples: NDArray[np.int64]) -> NDArray[np.int64]:
    return _top_bits(samples, _START_KEY, _TEXT_BITS)


def _text(settings: SyntheticSettings, steps: int) -> NDArray[Any]:
    """Return the text: tokens from 1, because 0 is padding, or features from -1 to 1 that float32 holds exactly."""
    if settings.kind == "tokens":
        words = hashed(np.arange(steps), key_of("synthetic tokens"))
        tokens: NDArray[Any] = (words % np.uint64(settings.vocabulary - 1) + np.uint64(1)).astype(np.int32)
        return tokens
    # 16 bits, because a whole number of steps of 2**-15 from -1 to 1 is exact in float32.
    words = hashed(np.arange(steps * settings.bands), key_of("synthetic features")) >> np.uint64(48)
    values: NDArray[Any] = (words.astype(np.int64) - 2**15).astype(np.float32) / np.float32(2**15)
    return values.reshape(steps, settings.bands)
