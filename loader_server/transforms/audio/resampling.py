"""Resampling of audio, to a length that is known beforehand.

Rules: pure; a length depends only on the two rates and the number of samples, and is rounded up, so that no audio
becomes empty.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from loader_server.transforms import SampleError
from shared.extras import library

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["resampled", "resampled_length"]

soxr = library("soxr", extra="loader", use="which resamples audio")


def resampled_length(samples: NDArray[np.int64], rate: NDArray[np.int64], new_rate: int) -> NDArray[np.int64]:
    """Return how many samples `resampled` gives, rounded up."""
    return np.asarray(-(-np.asarray(samples, np.int64) * new_rate // np.asarray(rate, np.int64)), np.int64)


def resampled(audio: NDArray[np.float32], rate: int, new_rate: int) -> NDArray[np.float32]:
    """Return the audio at another rate, cut or padded by about a sample to the length that `resampled_length` gives.

    Return it as it is if the rates, which must be above 0, are equal, or it is empty. Raise SampleError unless it is
    float32.
    """
    if audio.dtype != np.float32:
        # Whole numbers would be taken for audio 32 768 times as loud.
        raise SampleError(
            reason="dtype",
            expected="audio as float32 from -1 to 1",
            got=str(audio.dtype),
            where="transforms",
            remedy='Put waveform with dtype = "int16" last.',
        )
    if rate == new_rate or not len(audio):
        return audio
    made: NDArray[np.float32] = soxr.resample(audio, rate, new_rate)
    length = -(-len(audio) * new_rate // rate)
    # libsoxr rounds lengths in its own way, which the index cannot predict.
    return made[:length] if len(made) >= length else np.pad(made, (0, length - len(made)))
