"""Audio to the energies of its mel bands, a whole utterance at once, by any of the conventions.

Rules: pure; exactly as many frames as `length` says; an utterance shorter than a window is padded with zeros to one
frame; the bytes depend only on the audio and the settings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from loader_server.transforms.audio.resampling import resampled, resampled_length
from shared.audio.conventions import EMPHASIS
from shared.audio.mel_frames import mel_frames

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from loader_server.transforms.declare import Lengths
    from shared.audio.conventions import Convention
    from shared.audio.features import MelSettings

__all__ = ["MelBands", "logarithms"]

#: Bytes of frames that are transformed at once. With fewer, calls cost more than the work in them (2.6 s at 8 kHz take
#: 0.32 ms with 32 frames at once, 0.23 with 120, 0.21 with 240); with many more, they do not fit into the cache. A
#: remainder of up to half as many joins the last block, which saves 0.02 ms.
_BLOCK_BYTES = 240 * 2**10
#: Bands that are multiplied at once: a band uses only a few bins, so a product of all bins and bands is mostly zeros.
_BANDS_AT_ONCE = 32


class MelBands:
    """Turns samples into `[frames, bands]` of energy."""

    def __init__(self, settings: MelSettings, bands: int, convention: Convention) -> None:
        self._rate = settings.rate
        said = mel_frames(settings, convention)
        self._window, self._hop, self._fft, self._margin = said.window, said.hop, said.fft, said.margin
        self._convention = convention
        #: Frames whose bands are summed at once: BLAS rounds by their number, so it belongs to our bytes.
        self._block = max(1, _BLOCK_BYTES // (4 * self._fft))
        self._most = self._block + self._block // 2
        # A row for each frame, and zeros where frames are filled up: multiplying in one go takes half the time.
        self._taper = np.zeros((self._most, self._fft), np.float32)
        self._taper[:, : self._window] = convention.taper(self._window)
        self._bands = bands
        filters = convention.filters(self._fft, settings.rate, bands, said.edges_hz)
        full_scale = np.float32(2**15 if convention.like_kaldi else 1)
        self._strips = _strips(filters * np.float32(self._fft**2) * full_scale**2)  # the scale of _spectrum, and ours

    @property
    def per_second(self) -> float:
        """How many frames make a second."""
        return self._rate / self._hop

    def length(self, lengths: Lengths) -> NDArray[np.int64]:
        """How many frames recordings of this length make."""
        samples = resampled_length(lengths["audio"], lengths["audio_rate"], self._rate)
        spare = np.maximum(samples + 2 * self._margin - self._window, 0)
        return np.where(samples > 0, 1 + spare // self._hop, 0)

    def energies(self, sample: dict[str, Any]) -> NDArray[np.float32]:
        """The energies of the bands of a sample's audio."""
        audio = np.ascontiguousarray(resampled(sample["audio"], sample["audio_rate"], self._rate))
        frames = self._frames_of(len(audio))
        if frames and self._margin:
            audio = np.pad(audio, self._margin, mode=self._convention.padding)  # type: ignore[call-overload]
        if 0 < len(audio) < self._window:
            audio = np.pad(audio, (0, self._window - len(audio)))
        bands = np.empty((frames, self._bands), np.float32)
        framed = self._framed(audio, frames)
        raised = self._framed(_raised(audio), frames) if self._convention.like_kaldi else None
        tapered = np.zeros((min(frames, self._most), self._fft), np.float32)
        for at_once in self._spans(frames):
            block = tapered[: at_once.stop - at_once.start]
            windows = block[:, : self._window]
            if raised is None:
                np.copyto(windows, framed[at_once])
            else:
                _write_without_mean(framed[at_once], raised[at_once], windows)
            np.multiply(block, self._taper[: len(block)], out=block)
            self._write_energies(_spectrum(block), bands[at_once])
        return bands

    def _spans(self, frames: int) -> Iterator[slice]:
        """Which frames are transformed at once."""
        start = 0
        while frames - start > self._most:
            yield slice(start, start := start + self._block)
        if start < frames:
            yield slice(start, frames)

    def _frames_of(self, samples: int) -> int:
        return 1 + max(samples + 2 * self._margin - self._window, 0) // self._hop if samples else 0

    def _framed(self, audio: NDArray[np.float32], frames: int) -> NDArray[np.float32]:
        """The frames of the audio, as views of its memory."""
        shape, strides = (frames, self._window), (self._hop * audio.itemsize, audio.itemsize)
        framed: NDArray[np.float32] = np.ndarray(shape, np.float32, audio, strides=strides)
        return framed  # np.lib.stride_tricks.as_strided takes ten times as long

    def _write_energies(self, spectrum: NDArray[np.complexfloating], out: NDArray[np.float32]) -> None:
        power = np.square(spectrum.real)
        power += np.square(spectrum.imag)
        for start in range(0, len(out), self._block):
            frames = slice(start, start + self._block)
            for bins, bands, weights in self._strips:
                np.matmul(power[frames, bins], weights, out=out[frames, bands], casting="same_kind")


def logarithms(energies: NDArray[np.float32], convention: Convention, range_db: float) -> NDArray[np.float32]:
    """The logarithms of energies, in place; with a range in decibels, none is further than that below the highest."""
    # Comparing first takes a third of the time of raising. With a NaN among them, no comparison is true.
    if energies.size and not energies.min() >= convention.floor:
        np.maximum(energies, np.float32(convention.floor), out=energies)
    if not convention.decibels:
        np.log(energies, out=energies)
        return energies
    np.log10(energies, out=energies)
    energies *= np.float32(10)
    if range_db and energies.size:
        np.maximum(energies, energies.max() - np.float32(range_db), out=energies)
    return energies


def _raised(audio: NDArray[np.float32]) -> NDArray[np.float32]:
    """Each sample less a share of the one before; the first one unchanged."""
    raised: NDArray[np.float32] = audio.copy()
    raised[1:] -= EMPHASIS * audio[:-1]
    return raised


def _write_without_mean(block: NDArray[np.float32], raised: NDArray[np.float32], out: NDArray[np.float32]) -> None:
    """Write frames less their means, higher frequencies raised; a frame's first sample serves as the one before it."""
    means = block.mean(axis=1, keepdims=True)
    rest = 1 - EMPHASIS
    np.subtract(raised, rest * means, out=out)
    np.multiply(block[:, :1] - means, rest, out=out[:, :1])


def _spectrum(frames: NDArray[np.float32]) -> NDArray[np.complexfloating]:
    """The Fourier transforms of frames, divided by their length: where that is a power of two, this rounds nothing."""
    # Unscaled, numpy 2 (2.4 still) transforms float32 in float64 and rounds: 120 µs for 260 frames of 256, not 80.
    return np.fft.rfft(frames, norm="forward")


def _strips(filters: NDArray[np.float32]) -> list[tuple[slice, slice, NDArray[np.float32]]]:
    """The filters in strips of neighbouring bands: the bins that they use, the bands, and the weights."""
    strips = []
    for start in range(0, filters.shape[1], _BANDS_AT_ONCE):
        bands = slice(start, start + _BANDS_AT_ONCE)
        met = np.flatnonzero(filters[:, bands].any(axis=1))
        first, last = (int(met[0]), int(met[-1])) if met.size else (0, 0)
        bins = slice(first, last + 1)
        strips.append((bins, bands, np.ascontiguousarray(filters[bins, bands])))
    return strips
