"""`logmel`: audio to logarithmic mel bands, float32, a whole utterance at once.

Rules: exactly as many frames as `frames_of` says; an utterance shorter than a window is padded with zeros to one frame;
the bytes depend only on the audio and the settings. Pure. Must not know files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from loader_server.transforms import Outputs, SettingsError, duration_s, number, setting, transform, whole
from loader_server.transforms.audio.resampling import resampled, resampled_length

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from loader_server.transforms.declare import Lengths

__all__ = ["LogMel", "LogMelSettings", "frames_of", "mel_matrix"]

#: Energy below this counts as silence: 100 dB below full scale.
_FLOOR = np.float32(1e-10)
#: Bytes of frames that are transformed at once. With fewer, calls cost more than the work in them (2.6 s at 8 kHz take
#: 0.32 ms with 32 frames at once, 0.23 with 120, 0.21 with 240); with many more, they do not fit into the cache.
_BLOCK_BYTES = 240 * 2**10
#: Bands that are multiplied at once: a band uses only a few bins, so a product of all bins and bands is mostly zeros.
_BANDS_AT_ONCE = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class LogMelSettings:
    """The table [streams.<name>.logmel]."""

    rate: int = setting(whole(1000, 384_000), "hertz; audio of another rate is resampled to it", default=16_000)
    bands: int = setting(whole(1, 1024), "mel bands", default=80)
    window: float = setting(duration_s, 'length of a frame, such as "25 ms"', default=0.025)
    hop: float = setting(duration_s, 'from one frame to the next, such as "10 ms"', default=0.010)
    low_hz: float = setting(number(0), "lower edge of the lowest band", default=20.0)
    high_hz: float = setting(number(0), "upper edge of the highest band; 0: half the rate", default=0.0)


@transform(settings=LogMelSettings, draws=False, packages=("soxr",))
class LogMel:
    """The transform: `audio` becomes float32 `[frames, bands]`."""

    def __init__(self, settings: LogMelSettings) -> None:
        self._rate = settings.rate
        self._window = round(settings.window * settings.rate)
        self._hop = round(settings.hop * settings.rate)
        high_hz = settings.high_hz or settings.rate / 2
        self._refuse_impossible(settings, high_hz)
        self._fft = 1 << (self._window - 1).bit_length()
        # Symmetric Hann without its zero ends, as Kaldi and torchaudio avoid wasting two points of a short window.
        self._taper = np.hanning(self._window + 2)[1:-1].astype(np.float32)
        self._block = max(1, _BLOCK_BYTES // (4 * self._fft))
        self._bands = settings.bands
        filters = mel_matrix(self._fft, settings.rate, settings.bands, (settings.low_hz, high_hz))
        self._strips = _strips(filters * np.float32(self._fft**2))  # makes up for the scale of _spectrum
        self.outputs = Outputs.of(
            {"audio": ("float32", None, settings.bands)},
            lengths={"audio": self._length},
            per_second={"audio": settings.rate / self._hop},
        )

    def _refuse_impossible(self, settings: LogMelSettings, high_hz: float) -> None:
        if self._window < 2 or self._hop < 1:
            raise SettingsError(
                expected=f"a window of at least 2 samples and a hop of at least 1 at {settings.rate} Hz",
                got=f"{self._window} and {self._hop}",
                where="window and hop",
                remedy='Write for instance window = "25 ms" and hop = "10 ms".',
            )
        if not settings.low_hz < high_hz <= settings.rate / 2:
            raise SettingsError(
                expected=f"low_hz < high_hz <= {settings.rate / 2:g}, half the rate",
                got=f"low_hz = {settings.low_hz:g} and high_hz = {high_hz:g}",
                where="low_hz and high_hz",
                remedy="Lower them, or raise the rate.",
            )

    def __call__(self, sample: dict[str, Any], rng: np.random.Generator) -> None:  # noqa: ARG002 - every transform gets it
        """Replace the audio by its bands."""
        audio = resampled(sample["audio"], sample["audio_rate"], self._rate)
        sample["audio"] = self._log_mel(audio)

    def _log_mel(self, audio: NDArray[np.float32]) -> NDArray[np.float32]:
        if 0 < len(audio) < self._window:
            audio = np.pad(audio, (0, self._window - len(audio)))
        frames = frames_of(len(audio), self._window, self._hop)
        step = audio.strides[0]
        framed = np.lib.stride_tricks.as_strided(
            audio, (frames, self._window), (self._hop * step, step), writeable=False
        )
        bands = np.empty((frames, self._bands), np.float32)
        tapered = np.zeros((min(frames, self._block), self._fft), np.float32)
        for start in range(0, frames, self._block):
            block = framed[start : start + self._block]
            np.multiply(block, self._taper, out=tapered[: len(block), : self._window])
            self._write_energies(_spectrum(tapered[: len(block)]), bands[start : start + len(block)])
        np.maximum(bands, _FLOOR, out=bands)
        return np.log(bands, out=bands)

    def _write_energies(self, spectrum: NDArray[np.complexfloating], out: NDArray[np.float32]) -> None:
        power = np.square(spectrum.real)
        power += np.square(spectrum.imag)
        for bins, bands, weights in self._strips:
            np.matmul(power[:, bins], weights, out=out[:, bands], casting="same_kind")

    def _length(self, lengths: Lengths) -> NDArray[np.int64]:
        samples = resampled_length(lengths["audio"], lengths["audio_rate"], self._rate)
        return np.where(samples > 0, 1 + np.maximum(samples - self._window, 0) // self._hop, 0)


def _spectrum(frames: NDArray[np.float32]) -> NDArray[np.complexfloating]:
    """The Fourier transforms of frames, divided by their length, a power of two, so that dividing rounds nothing."""
    # Unscaled, numpy 2 (2.4 still) transforms float32 in float64 and rounds: 120 µs for 260 frames of 256, not 80.
    return np.fft.rfft(frames, norm="forward")


def _strips(filters: NDArray[np.float32]) -> list[tuple[slice, slice, NDArray[np.float32]]]:
    """The filters in strips of neighbouring bands: the bins that they use, the bands, and the weights."""
    strips = []
    for start in range(0, filters.shape[1], _BANDS_AT_ONCE):
        bands = slice(start, start + _BANDS_AT_ONCE)
        met = np.flatnonzero(filters[:, bands].any(axis=1))
        bins = slice(int(met[0]), int(met[-1]) + 1)
        strips.append((bins, bands, np.ascontiguousarray(filters[bins, bands])))
    return strips


def frames_of(samples: int, window: int, hop: int) -> int:
    """How many frames an utterance has: whole windows, and at least one where there is any audio."""
    return 1 + max(samples - window, 0) // hop if samples else 0


def mel_matrix(fft: int, rate: int, bands: int, edges_hz: tuple[float, float]) -> NDArray[np.float32]:
    """Triangular filters `[fft // 2 + 1, bands]`, equally spaced in mel; one without any bin takes the nearest."""
    low, high = (2595.0 * np.log10(1.0 + edge / 700.0) for edge in edges_hz)
    corners = 700.0 * (10.0 ** (np.linspace(low, high, bands + 2) / 2595.0) - 1.0)
    bins = np.arange(fft // 2 + 1)[:, None] * (rate / fft)
    rising = (bins - corners[:-2]) / (corners[1:-1] - corners[:-2])
    falling = (corners[2:] - bins) / (corners[2:] - corners[1:-1])
    filters = np.maximum(0.0, np.minimum(rising, falling))
    empty = np.flatnonzero(filters.sum(axis=0) == 0.0)
    filters[np.rint(corners[1:-1][empty] * fft / rate).astype(int), empty] = 1.0
    return filters.astype(np.float32)
