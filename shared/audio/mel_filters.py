"""Filters that gather the bins of a spectrum into mel bands: ours, and those of Kaldi, librosa and torchaudio.

Rules: pure; all are triangles `[fft // 2 + 1, bands]` in float32, and differ in what a mel is, where a triangle is
straight (in hertz or in mels), how high it is, and what happens to one that is narrower than a bin.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["kaldi_filters", "librosa_filters", "own_filters", "torchaudio_filters"]

_Numbers = NDArray[np.float64]

#: Slaney's mels are linear up to here, 3 for 200 Hz, and logarithmic above: 27 for each factor of 6.4.
_BREAK_HZ, _BREAK_MEL, _HZ_A_MEL, _LOG_STEP = 1000.0, 15.0, 200.0 / 3, np.log(6.4) / 27


def own_filters(fft: int, rate: int, bands: int, edges_hz: tuple[float, float]) -> NDArray[np.float32]:
    """Height 1, straight in hertz; a filter without any bin takes the nearest."""
    corners = _hertz(_spread(_mels, edges_hz, bands))
    bins = np.arange(fft // 2 + 1) * (rate / fft)
    filters = _triangles(bins, corners)
    empty = np.flatnonzero(filters.sum(axis=0) == 0.0)
    filters[np.rint(corners[1:-1][empty] * fft / rate).astype(int), empty] = 1.0
    return filters.astype(np.float32)


def kaldi_filters(fft: int, rate: int, bands: int, edges_hz: tuple[float, float]) -> NDArray[np.float32]:
    """Height 1, straight in mels."""
    corners = _spread(lambda edge: float(1127.0 * np.log1p(edge / 700.0)), edges_hz, bands)
    return _triangles(1127.0 * np.log1p(np.arange(fft // 2 + 1) * (rate / fft) / 700.0), corners).astype(np.float32)


def librosa_filters(fft: int, rate: int, bands: int, edges_hz: tuple[float, float]) -> NDArray[np.float32]:
    """Equal area, straight in hertz, on Slaney's scale."""
    corners = _slaneys_hertz(_spread(_slaneys_mels, edges_hz, bands))
    filters = _triangles(np.arange(fft // 2 + 1) * (rate / fft), corners)
    filters *= 2.0 / (corners[2:] - corners[:-2])
    return filters.astype(np.float32)


def torchaudio_filters(fft: int, rate: int, bands: int, edges_hz: tuple[float, float]) -> NDArray[np.float32]:
    """Height 1, straight in hertz; the bins are spread evenly up to half the rate, even if fft is odd."""
    corners = _hertz(_spread(_mels, edges_hz, bands))
    return _triangles(np.linspace(0, rate // 2, fft // 2 + 1), corners).astype(np.float32)


def _spread(scale: Callable[[float], float], edges_hz: tuple[float, float], bands: int) -> _Numbers:
    """The corners of all triangles, evenly spread on a scale."""
    return np.linspace(scale(edges_hz[0]), scale(edges_hz[1]), bands + 2, dtype=np.float64)


def _triangles(bins: NDArray[np.floating[Any]], corners: _Numbers) -> _Numbers:
    """The height of each triangle over each bin; corners are those of all triangles, in order."""
    rising = (bins[:, None] - corners[:-2]) / (corners[1:-1] - corners[:-2])
    falling = (corners[2:] - bins[:, None]) / (corners[2:] - corners[1:-1])
    made: _Numbers = np.maximum(0.0, np.minimum(rising, falling))
    return made


def _mels(hertz: float) -> float:
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
