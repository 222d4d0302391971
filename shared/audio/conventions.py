"""Mel-band conventions of Kaldi, librosa and torchaudio, and our own: tapers, filter banks and logarithms.

A filter bank is `[fft // 2 + 1, bands]` in float32. They differ in the mel scale, in whether triangles are linear in
hertz or in mels, in height, and in what happens to a triangle narrower than an FFT bin.

Rules: pure; a convention is data. Loaders' transforms and layers on trainers' devices use the same conventions. Tests
compare each with the package's own numbers. Our own convention, which job files select by naming none, never changes:
its bytes are pinned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["CONVENTIONS", "EMPHASIS", "NAMED", "OWN", "Convention", "own_filters"]

#: Pre-emphasis coefficient (Kaldi's default).
EMPHASIS = np.float32(0.97)

_Numbers: TypeAlias = NDArray[np.float64]

#: Slaney's mel scale: linear up to the break (3 mels for 200 Hz), logarithmic above it (27 mels for a factor of 6.4).
_BREAK_HZ, _BREAK_MEL, _HZ_A_MEL, _LOG_STEP = 1000.0, 15.0, 200.0 / 3, np.log(6.4) / 27

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


def own_filters(fft: int, rate: int, bands: int, edges_hz: tuple[float, float]) -> NDArray[np.float32]:
    """Return our filter bank: height 1, linear in hertz; a triangle that covers no bin is moved to the nearest bin."""
    corners = _hertz(_spread(_mels, edges_hz, bands))
    filters = _triangles(np.arange(fft // 2 + 1) * (rate / fft), corners)
    empty = np.flatnonzero(filters.sum(axis=0) == 0.0)
    # Low bands may be narrower than the distance of two bins, and would be silent for ever: give each its nearest bin.
    filters[np.rint(corners[1:-1][empty] * fft / rate).astype(int), empty] = 1.0
    return filters.astype(np.float32)


def _kaldi_filters(fft: int, rate: int, bands: int, edges_hz: tuple[float, float]) -> NDArray[np.float32]:
    """Return Kaldi's filter bank: height 1, linear in mels."""
    corners = _spread(lambda edge: float(1127.0 * np.log1p(edge / 700.0)), edges_hz, bands)
    return _triangles(1127.0 * np.log1p(np.arange(fft // 2 + 1) * (rate / fft) / 700.0), corners).astype(np.float32)


def _librosa_filters(fft: int, rate: int, bands: int, edges_hz: tuple[float, float]) -> NDArray[np.float32]:
    """Return librosa's filter bank: equal area, linear in hertz, on Slaney's mel scale."""
    corners = _slaneys_hertz(_spread(_slaneys_mels, edges_hz, bands))
    filters = _triangles(np.arange(fft // 2 + 1) * (rate / fft), corners)
    # Slaney's normalisation: a triangle of this height has area 1 over its width in hertz.
    filters *= 2.0 / (corners[2:] - corners[:-2])
    return filters.astype(np.float32)


def _torchaudio_filters(fft: int, rate: int, bands: int, edges_hz: tuple[float, float]) -> NDArray[np.float32]:
    """Return torchaudio's filter bank: height 1, linear in hertz.

    Bins are spread evenly from 0 to half the rate, even if `fft` is odd and its last bin lies lower, because torchaudio
    does so.
    """
    corners = _hertz(_spread(_mels, edges_hz, bands))
    return _triangles(np.linspace(0, rate // 2, fft // 2 + 1), corners).astype(np.float32)


def _spread(scale: Callable[[float], float], edges_hz: tuple[float, float], bands: int) -> _Numbers:
    """Return the corners of all triangles: `bands + 2` points, evenly spaced on a scale."""
    return np.linspace(scale(edges_hz[0]), scale(edges_hz[1]), bands + 2, dtype=np.float64)


def _triangles(bins: NDArray[np.floating[Any]], corners: _Numbers) -> _Numbers:
    """Return the height of each triangle at each bin; `corners` holds start, peak and end of consecutive triangles."""
    rising = (bins[:, None] - corners[:-2]) / (corners[1:-1] - corners[:-2])
    falling = (corners[2:] - bins[:, None]) / (corners[2:] - corners[1:-1])
    # Each bin is at the lower of both slopes, which is negative outside the triangle.
    return np.maximum(0.0, np.minimum(rising, falling))


def _mels(hertz: float) -> float:
    # The HTK mel scale.
    return float(2595.0 * np.log10(1.0 + hertz / 700.0))


def _hertz(mels: _Numbers) -> _Numbers:
    return 700.0 * (10.0 ** (mels / 2595.0) - 1.0)


def _slaneys_mels(hertz: float) -> float:
    if hertz < _BREAK_HZ:
        return hertz / _HZ_A_MEL
    return float(_BREAK_MEL + np.log(hertz / _BREAK_HZ) / _LOG_STEP)


def _slaneys_hertz(mels: _Numbers) -> _Numbers:
    logarithmic = _BREAK_HZ * np.exp(_LOG_STEP * (mels - _BREAK_MEL))
    return np.where(mels < _BREAK_MEL, mels * _HZ_A_MEL, logarithmic)


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
        filters=_kaldi_filters,
        power_of_two=True,
        like_kaldi=True,
        floor=float(np.finfo(np.float32).eps),
        cepstral_range_db=0.0,
        lifter=22,
    ),
    "librosa": Convention(
        taper=_periodic_hann,
        filters=_librosa_filters,
        power_of_two=False,
        padding="constant",
        decibels=True,
        range_db=80.0,
    ),
    "torchaudio": Convention(
        taper=_periodic_hann,
        filters=_torchaudio_filters,
        power_of_two=False,
        padding="reflect",
        decibels=True,
    ),
}
NAMED = tuple(CONVENTIONS)
