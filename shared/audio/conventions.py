"""What Kaldi, librosa and torchaudio each mean by mel bands, and what we do: tapers, edges, filters and logarithms.

Rules: pure; a convention is data. Loaders' transforms and layers on trainers' devices read it to turn audio into bands.
Tests compare each with that package's own numbers. Ours, which has no name in a job file, never changes: its bytes are
pinned.
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

#: How much of the sample before is taken from each, to raise the higher frequencies as Kaldi does.
EMPHASIS = np.float32(0.97)

#: FFT size, rate, bands, lowest and highest edge in hertz.
_Filters = Callable[[int, int, int, tuple[float, float]], NDArray[np.float32]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Convention:
    """How audio is turned into bands."""

    taper: Callable[[int], NDArray[np.float64]]
    filters: _Filters
    #: Whether frames are padded with zeros to a power of two before they are transformed.
    power_of_two: bool
    #: How the half windows before and after the audio are filled, so that frames are centred; empty: they are not.
    padding: str = ""
    #: Whether each frame loses its mean and has its higher frequencies raised, on the scale of 16 bits.
    like_kaldi: bool = False
    #: Lower energies are raised to this one.
    floor: float = 1e-10
    #: Ten times the decimal logarithm, in place of the natural one.
    decibels: bool = False
    #: How far below an utterance's loudest band the others are clipped, in decibels; 0: they are not.
    range_db: float = 0.0
    #: The same for cepstra.
    cepstral_range_db: float = 80.0
    #: Cepstra are weighed with half a sine wave of twice this many coefficients; 0: they are not.
    lifter: int = 0


def _periodic_hann(window: int) -> NDArray[np.float64]:
    return np.hanning(window + 1)[:-1]


OWN = Convention(
    # Symmetric Hann without its zero ends, as Kaldi and torchaudio avoid wasting two points of a short window.
    taper=lambda window: np.hanning(window + 2)[1:-1],
    filters=own_filters,
    power_of_two=True,
)

#: What a job file may name.
CONVENTIONS: Mapping[str, Convention] = {
    "kaldi": Convention(
        taper=lambda window: np.hanning(window) ** 0.85,
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
