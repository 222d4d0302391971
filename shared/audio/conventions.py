"""Mel-band conventions of Kaldi, librosa and torchaudio, and our own: tapers, filters and logarithms.

Rules: pure; a convention is data. Loaders' transforms and layers on trainers' devices use the same conventions. Tests
compare each with the package's own numbers. Our own convention, which job files select by naming none, never changes:
its bytes are pinned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shared.audio.mel_filters import (
    kaldi_filters,
    librosa_filters,
    own_filters,
    torchaudio_filters,
)

__all__ = ["CONVENTIONS", "EMPHASIS", "NAMED", "OWN", "Convention"]

#: Pre-emphasis coefficient (Kaldi's default).
EMPHASIS = np.float32(0.97)

#: Makes a filter bank from FFT size, sample rate, number of bands, and lowest and highest edge in hertz.
_Filters = Callable[[int, int, int, tuple[float, float]], NDArray[np.float32]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Convention:
    """Parameters of one way to turn audio into mel bands."""

    taper: Callable[[int], NDArray[np.float64]]
    filters: _Filters
    #: Whether frames are zero-padded to a power of two before the FFT.
    power_of_two: bool
    #: numpy padding mode for half a window before and after the audio, which centres frames; empty: no padding.
    padding: str = ""
    #: Kaldi's preprocessing: scale to 16-bit values, subtract each frame's mean, apply pre-emphasis.
    like_kaldi: bool = False
    #: Lower bound of energies before the logarithm.
    floor: float = 1e-10
    #: Use decibels (10 log10) instead of the natural logarithm.
    decibels: bool = False
    #: Dynamic range: bands are clipped this many decibels below the utterance's maximum; 0 disables it.
    range_db: float = 0.0
    #: Dynamic range of the bands that cepstra are computed from.
    cepstral_range_db: float = 80.0
    #: Liftering coefficient (Kaldi's --cepstral-lifter); 0 disables liftering.
    lifter: int = 0


# Periodic: the window repeats after `window` samples, as for an FFT; numpy's own is symmetric, with zeros at both ends.
def _periodic_hann(window: int) -> NDArray[np.float64]:
    return np.hanning(window + 1)[:-1]


OWN = Convention(
    # Symmetric Hann without its zero ends, as Kaldi and torchaudio avoid wasting two points of a short window.
    taper=lambda window: np.hanning(window + 2)[1:-1],
    filters=own_filters,
    power_of_two=True,
)

#: Conventions by the name that job files use.
CONVENTIONS: Mapping[str, Convention] = {
    "kaldi": Convention(
        taper=lambda window: np.hanning(window) ** 0.85,  # Kaldi's "povey" window
        filters=kaldi_filters,
        power_of_two=True,
        like_kaldi=True,
        floor=float(np.finfo(np.float32).eps),
        cepstral_range_db=0.0,
        lifter=22,
    ),
    "librosa": Convention(
        taper=_periodic_hann,
        filters=librosa_filters,
        power_of_two=False,
        padding="constant",
        decibels=True,
        range_db=80.0,
    ),
    "torchaudio": Convention(
        taper=_periodic_hann,
        filters=torchaudio_filters,
        power_of_two=False,
        padding="reflect",
        decibels=True,
    ),
}
NAMED = tuple(CONVENTIONS)
