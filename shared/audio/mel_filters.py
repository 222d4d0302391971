"""Triangular mel filter banks: our own, and those of Kaldi, librosa and torchaudio.

Rules: pure; each is `[fft // 2 + 1, bands]` in float32. They differ in the mel scale, in whether triangles are linear
in hertz or in mels, in height, and in what happens to a triangle narrower than an FFT bin.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["kaldi_filters", "librosa_filters", "own_filters", "torchaudio_filters"]

_Numbers = NDArray[np.float64]

#: Slaney's mel scale: linear up to the break (3 mels for 200 Hz), logarithmic above it (27 mels for a factor of 6.4).
_BREAK_HZ, _BREAK_MEL, _HZ_A_MEL, _LOG_STEP = 1000.0, 15.0, 200.0 / 3, np.log(6.4) / 27


def own_filters(fft: int, rate: int, bands: int, edges_hz: tuple[float, float]) -> NDArray[np.float32]:
    """Return our filter bank: height 1, linear in hertz; a triangle that covers no bin is moved to the nearest bin."""
    corners = _hertz(_spread(_mels, edges_hz, bands))
    bins = np.arange(fft // 2 + 1) * (rate / fft)
    filters = _triangles(bins, corners)
    empty = np.flatnonzero(filters.sum(axis=0) == 0.0)
    # Low bands may be narrower than the distance of two bins, and would be silent for ever: give each its nearest bin.
    filters[np.rint(corners[1:-1][empty] * fft / rate).astype(int), empty] = 1.0
    return filters.astype(np.float32)


def kaldi_filters(fft: int, rate: int, bands: int, edges_hz: tuple[float, float]) -> NDArray[np.float32]:
    """Return Kaldi's filter bank: height 1, linear in mels."""
    corners = _spread(lambda edge: float(1127.0 * np.log1p(edge / 700.0)), edges_hz, bands)
    return _triangles(1127.0 * np.log1p(np.arange(fft // 2 + 1) * (rate / fft) / 700.0), corners).astype(np.float32)


def librosa_filters(fft: int, rate: int, bands: int, edges_hz: tuple[float, float]) -> NDArray[np.float32]:
    """Return librosa's filter bank: equal area, linear in hertz, on Slaney's mel scale."""
    corners = _slaneys_hertz(_spread(_slaneys_mels, edges_hz, bands))
    filters = _triangles(np.arange(fft // 2 + 1) * (rate / fft), corners)
    # Slaney's normalisation: a triangle of this height has area 1 over its width in hertz.
    filters *= 2.0 / (corners[2:] - corners[:-2])
    return filters.astype(np.float32)


def torchaudio_filters(fft: int, rate: int, bands: int, edges_hz: tuple[float, float]) -> NDArray[np.float32]:
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
    made: _Numbers = np.maximum(0.0, np.minimum(rising, falling))
    return made


def _mels(hertz: float) -> float:
    # The HTK mel scale.
    return float(2595.0 * np.log10(1.0 + hertz / 700.0))


def _hertz(mels: _Numbers) -> _Numbers:
    made: _Numbers = 700.0 * (10.0 ** (mels / 2595.0) - 1.0)
    return made


def _slaneys_mels(hertz: float) -> float:
    if hertz < _BREAK_HZ:
        return hertz / _HZ_A_MEL
    return float(_BREAK_MEL + np.log(hertz / _BREAK_HZ) / _LOG_STEP)


def _slaneys_hertz(mels: _Numbers) -> _Numbers:
    logarithmic = _BREAK_HZ * np.exp(_LOG_STEP * (mels - _BREAK_MEL))
    return np.where(mels < _BREAK_MEL, mels * _HZ_A_MEL, logarithmic)
