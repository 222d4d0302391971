"""Mel filter bank: the band energies of audio, a whole utterance at once, by any of the conventions.

Rules: pure; exactly as many frames as `length` gives; an utterance shorter than a window is padded with zeros to one
frame; the bytes depend only on the audio and the settings.
"""

from __future__ import annotations

import abc
import itertools
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from loader_server.transforms import Outputs
from loader_server.transforms.audio.low_rates import ResamplingTransform
from loader_server.transforms.audio.resampling import resampled, resampled_length
from loader_server.transforms.on_columns import listed
from shared.audio.conventions import EMPHASIS
from shared.audio.features import mel_frames

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from loader_server.sources.batch_columns import Columns
    from loader_server.transforms.declare import Lengths
    from shared.audio.conventions import Convention
    from shared.audio.features import MelSettings

__all__ = ["MelBands", "MelTransform", "logarithms"]

#: Bytes of frames per Fourier transform. With fewer, calls cost more than the work in them (2.6 s at 8 kHz take
#: 0.32 ms with 32 frames at once, 0.23 with 120, 0.21 with 240); with many more, they do not fit into the cache. A
#: remainder of up to half as many joins the last block, which saves 0.02 ms.
_BLOCK_BYTES = 240 * 2**10
#: Rows per Fourier transform are a multiple of this: numpy takes four in one go, and a remainder one by one, which
#: costs more than additional rows of zeros (64 µs for 358 rows of 256, 56 for 360).
_ROWS_AT_ONCE = 4
#: Bands per matrix product: a band uses only a few bins, so a product of all bins and bands is mostly zeros.
_BANDS_AT_ONCE = 32


#: Audio and its sample rate.
Recording: TypeAlias = "tuple[NDArray[np.float32], int]"


class _Piece(NamedTuple):
    """Frames whose bands are summed at once."""

    framed: NDArray[np.float32]
    #: The same frames after pre-emphasis; None if the convention has none.
    emphasised: NDArray[np.float32] | None
    #: Where their bands are written.
    bands: NDArray[np.float32]


class MelBands:
    """Filter bank that turns recordings into `[frames, bands]` of energy.

    Raise SettingsError if the settings allow no frame or no band, as `mel_frames` does.
    """

    def __init__(self, settings: MelSettings, bands: int, convention: Convention) -> None:
        self.rate = settings.rate
        frames = mel_frames(settings, convention)
        self._window, self._hop, self._fft, self._margin = frames.window, frames.hop, frames.fft, frames.margin
        self._convention = convention
        #: Frames whose bands are summed at once. BLAS rounds differently for other numbers of rows, so another number
        #: would change the bytes.
        self._block = max(1, _BLOCK_BYTES // (4 * self._fft))
        self._most = self._block + self._block // 2
        # One row of window weights for each frame, with zeros up to the FFT size: a single product of whole rows takes
        # half the time.
        self._taper = np.zeros((_filled_up(self._most), self._fft), np.float32)
        self._taper[:, : self._window] = convention.taper(self._window)
        self._bands = bands
        filters = convention.filters(self._fft, settings.rate, bands, frames.edges_hz)
        #: Lowest frequency that each band takes in; infinite if it takes in none at all.
        self._lowest_hz = _lowest_hz(filters, settings.rate / self._fft)
        full_scale = np.float32(2**15 if convention.like_kaldi else 1)
        # The weights undo the division by the FFT size in `_spectrum`, squared, and scale the audio from -1 to 1.
        self._strips = _strips(filters * np.float32(self._fft**2) * full_scale**2)

    @property
    def per_second(self) -> float:
        """Return the number of frames a second."""
        return self.rate / self._hop

    def length(self, lengths: Lengths) -> NDArray[np.int64]:
        """Return how many frames recordings of these lengths and rates make; 0 for empty ones.

        Raise KeyError if there is no length of the audio, or no rate.
        """
        samples = resampled_length(lengths["audio"], lengths["audio_rate"], self.rate)
        spare = np.maximum(samples + 2 * self._margin - self._window, 0)
        return np.where(samples > 0, 1 + spare // self._hop, 0)

    def empty_bands(self, highest_hz: float) -> tuple[int, int]:
        """Return how many bands take in nothing below `highest_hz`, and how many bands there are.

        Bands that take in nothing at all do not count among the first.
        """
        used = np.isfinite(self._lowest_hz)
        return int((used & (self._lowest_hz >= highest_hz)).sum()), self._bands

    def energies(self, recordings: Sequence[Recording]) -> list[NDArray[np.float32]]:
        """Return the band energies of each recording, `[frames, bands]`; raise SampleError unless all are float32.

        They do not depend on the other recordings in the call.
        """
        made: list[NDArray[np.float32]] = []
        tapered = np.zeros((0, self._fft), np.float32)
        for together in self._blocks(self._pieces(recordings, made)):
            frames = sum(len(piece.bands) for piece in together)
            rows = _filled_up(frames)
            if rows > len(tapered):
                tapered = np.zeros((rows, self._fft), np.float32)
            tapered[frames:rows] = 0
            self._transform(together, tapered[:rows])
        return made

    def _padded(self, audio: NDArray[np.float32], rate: int) -> NDArray[np.float32]:
        """Return the audio at our rate, with the convention's padding on both sides, at least as long as a window.

        Empty audio stays empty. Raise SampleError unless it is float32.
        """
        audio = np.ascontiguousarray(resampled(audio, rate, self.rate))
        if self._margin and len(audio):
            audio = np.pad(audio, self._margin, mode=self._convention.padding)  # type: ignore[call-overload]
        if 0 < len(audio) < self._window:
            audio = np.pad(audio, (0, self._window - len(audio)))
        return audio

    def _pieces(self, recordings: Iterable[Recording], made: list[NDArray[np.float32]]) -> Iterator[_Piece]:
        """Yield the recordings' frames in pieces that are summed at once; append each recording's bands to `made`.

        Raise SampleError unless they are float32.
        """
        for audio in itertools.starmap(self._padded, recordings):
            made.append(bands := np.empty((self._frames_of(len(audio)), self._bands), np.float32))
            framed = self._framed(audio, len(bands))
            emphasised = self._framed(_pre_emphasised(audio), len(bands)) if self._convention.like_kaldi else None
            for start in range(0, len(bands), self._block):
                frames = slice(start, start + self._block)
                yield _Piece(framed[frames], None if emphasised is None else emphasised[frames], bands[frames])

    def _blocks(self, pieces: Iterable[_Piece]) -> Iterator[list[_Piece]]:
        """Yield lists of pieces that are Fourier-transformed at once: as many as fit, in their order.

        Without pieces nothing is yielded. No piece may be larger than the limit, which is not checked.
        """
        together, frames = list[_Piece](), 0
        for piece in pieces:
            if frames + len(piece.bands) > self._most:
                yield together
                together, frames = [], 0
            together.append(piece)
            frames += len(piece.bands)
        if together:
            yield together

    def _transform(self, pieces: Sequence[_Piece], tapered: NDArray[np.float32]) -> None:
        """Write the bands of these pieces.

        `tapered` is scratch space with a row for each of their frames, and perhaps some of zeros.
        """
        start = 0
        for piece in pieces:
            windows = tapered[start : (start := start + len(piece.bands)), : self._window]
            if piece.emphasised is None:
                np.copyto(windows, piece.framed)
            else:
                _write_without_offset(piece.framed, piece.emphasised, windows)
        np.multiply(tapered, self._taper[: len(tapered)], out=tapered)
        spectrum = _spectrum(tapered)
        power = np.square(spectrum.real)
        power += np.square(spectrum.imag)
        for piece in pieces:
            of_piece, power = power[: len(piece.bands)], power[len(piece.bands) :]
            # Piece by piece: products of whole blocks take 7 µs less, but round in other ways, so that a recording's
            # bytes would depend on its neighbours in the batch.
            for bins, bands, weights in self._strips:
                np.matmul(of_piece[:, bins], weights, out=piece.bands[:, bands], casting="same_kind")

    def _frames_of(self, samples: int) -> int:
        """Return how many frames padded audio of so many samples has; 0 for empty audio."""
        return 1 + (samples - self._window) // self._hop if samples else 0

    def _framed(self, audio: NDArray[np.float32], frames: int) -> NDArray[np.float32]:
        """Return the frames of the audio as views of its memory, which overlap."""
        shape, strides = (frames, self._window), (self._hop * audio.itemsize, audio.itemsize)
        framed: NDArray[np.float32] = np.ndarray(shape, np.float32, audio, strides=strides)
        return framed  # np.lib.stride_tricks.as_strided takes ten times as long


class MelTransform(ResamplingTransform):
    """Transform of `audio` to float32 `[frames, size]` that is made of mel bands, a whole utterance at once.

    Raise SettingsError if the settings allow no frame or no band, as `mel_frames` does.
    """

    def __init__(self, settings: MelSettings, bands: int, size: int, convention: Convention) -> None:
        self._convention = convention
        self._mel = MelBands(settings, bands, convention)
        self.rate = settings.rate
        self.outputs = Outputs.of(
            {"audio": ("float32", None, size)},
            lengths={"audio": self._mel.length},
            per_second={"audio": self._mel.per_second},
        )

    @abc.abstractmethod
    def _features_of(self, energies: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return a recording's features, from the energies of its bands, which may be overwritten."""

    def __call__(self, sample: dict[str, Any], rng: np.random.Generator) -> None:
        """Replace the audio by its features; raise SampleError unless it is float32."""
        (energies,) = self._mel.energies([(sample["audio"], sample["audio_rate"])])
        sample["audio"] = self._features_of(energies)

    def on_columns(self, columns: Columns) -> None:
        """Replace the audio of all samples by its features.

        Raise SampleError unless it is float32, TypeError unless audio and rates are lists, or KeyError if one is
        missing.
        """
        # Together, so that short recordings share Fourier transforms: 171 instead of 215 µs a recording.
        recordings = list(zip(listed(columns, "audio"), listed(columns, "audio_rate"), strict=True))
        columns["audio"] = list(map(self._features_of, self._mel.energies(recordings)))

    def empty_bands(self, highest_hz: float) -> tuple[int, int]:
        """Return how many bands take in nothing below `highest_hz`, and how many bands there are.

        Bands that take in nothing at all do not count among the first.
        """
        return self._mel.empty_bands(highest_hz)


def logarithms(energies: NDArray[np.float32], convention: Convention, range_db: float) -> NDArray[np.float32]:
    """Return the energies replaced by their logarithms, in place; values below the convention's floor are raised to it.

    In decibels if the convention asks so. With `range_db`, raise values further than that below the highest one; only
    conventions in decibels use it.
    """
    # Comparing takes a third of the time of clipping. `not >=` instead of `<`: with a NaN, both comparisons are false,
    # and the clipping must then run for the other values.
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


def _pre_emphasised(audio: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the audio after pre-emphasis; the first sample stays unchanged."""
    emphasised: NDArray[np.float32] = audio.copy()
    emphasised[1:] -= EMPHASIS * audio[:-1]
    return emphasised


def _write_without_offset(
    block: NDArray[np.float32], emphasised: NDArray[np.float32], out: NDArray[np.float32]
) -> None:
    """Write frames without DC offset, after pre-emphasis; a frame's first sample serves as its predecessor, too."""
    # Pre-emphasis of x - m is (x[i] - c * x[i-1]) - (1 - c) * m. `emphasised` already has the first term for the whole
    # audio; only the first column, whose predecessor lies outside the frame, is computed anew.
    means = block.mean(axis=1, keepdims=True)
    rest = 1 - EMPHASIS
    np.subtract(emphasised, rest * means, out=out)
    np.multiply(block[:, :1] - means, rest, out=out[:, :1])


def _filled_up(frames: int) -> int:
    return -(-frames // _ROWS_AT_ONCE) * _ROWS_AT_ONCE


def _spectrum(frames: NDArray[np.float32]) -> NDArray[np.complexfloating]:
    """Return the Fourier transforms of frames, divided by their length: exact if that is a power of two."""
    # As products of matrices the transforms would take 100 to 240 µs, and scipy's give the same bytes in the same time.
    # Without scaling, numpy 2 (still in 2.4) computes float32 input in float64 and rounds: 120 µs for 260 frames of
    # 256, instead of 80.
    return np.fft.rfft(frames, norm="forward")


def _lowest_hz(filters: NDArray[np.float32], bin_hz: float) -> NDArray[np.float64]:
    taken = filters > 0
    return np.where(taken.any(axis=0), taken.argmax(axis=0) * bin_hz, np.inf)


def _strips(filters: NDArray[np.float32]) -> list[tuple[slice, slice, NDArray[np.float32]]]:
    """Return the filters in strips of neighbouring bands: the bins that they use, the bands, and the weights."""
    strips = []
    for start in range(0, filters.shape[1], _BANDS_AT_ONCE):
        bands = slice(start, start + _BANDS_AT_ONCE)
        met = np.flatnonzero(filters[:, bands].any(axis=1))
        first, last = (int(met[0]), int(met[-1])) if met.size else (0, 0)
        bins = slice(first, last + 1)
        strips.append((bins, bands, np.ascontiguousarray(filters[bins, bands])))
    return strips
