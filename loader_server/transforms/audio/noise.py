"""`noise`: mixes a recording from another source into the audio, at a signal-to-noise ratio that is drawn.

Rules: which part of the noise is used is drawn as well, and a noise shorter than the audio starts over; powers are
means over the whole utterance; if either is silent, nothing is mixed. The result may be louder than 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from loader_server.sources.side_source import SideSource, side_source
from loader_server.transforms import number, numbers, setting, transform
from loader_server.transforms.audio.drawn_recordings import DrawnRecordings
from loader_server.transforms.declare import built_in

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["NoiseSettings", "RecordedNoise"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseSettings:
    """The table [streams.<name>.noise]."""

    recordings: SideSource = setting(side_source, "the source of the noises: a table with source and its settings")
    snr_db: tuple[float, ...] = setting(
        numbers(-60, 120),
        "how much louder the audio is, in decibels, drawn between the least and the most of these",
        default=(5.0, 20.0),
    )
    share: float = setting(number(0, 1), "the share of samples that get noise", default=1.0)


@built_in("noise")
@transform(settings=NoiseSettings, packages=("soxr",))
class RecordedNoise:
    """Transform that mixes noise into `audio`, which keeps its length."""

    def __init__(self, settings: NoiseSettings) -> None:
        self._noises = DrawnRecordings(settings.recordings, "transform noise, recordings")
        self._least, self._most = min(settings.snr_db), max(settings.snr_db)
        self._share = settings.share

    def __call__(self, sample: dict[str, Any], rng: np.random.Generator) -> None:
        """Mix noise into the audio, or leave it as it is, as drawn.

        Raise SettingsError or DataError if the source of noises cannot be used, SampleError if the noise has no audio
        in float32 or cannot be decoded, and ReadError if it cannot be read. Other errors of `draw` pass through.
        """
        if rng.random() >= self._share:
            return
        # The order of draws is part of the bytes: recording, part, ratio.
        noise = self._noises.draw(rng, sample["audio_rate"])
        part = part_of(noise, len(sample["audio"]), rng)
        sample["audio"] = mixed(sample["audio"], part, float(rng.uniform(self._least, self._most)))


def part_of(noise: NDArray[np.float32], length: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """Return a part of a noise, from a place that is drawn; a noise that is too short starts over at its end.

    Raise ValueError if the noise is empty and `length` is not 0.
    """
    if len(noise) >= length:
        start = int(rng.integers(len(noise) - length, endpoint=True))
        return noise[start : start + length]
    start = int(rng.integers(len(noise)))
    # `np.resize` repeats its input until the length is reached.
    return np.resize(np.concatenate([noise[start:], noise[:start]]), length)


def mixed(audio: NDArray[np.float32], noise: NDArray[np.float32], snr_db: float) -> NDArray[np.float32]:
    """Return the audio mixed with the noise at this signal-to-noise ratio; unchanged if either is silent.

    The noise has to be as long as the audio.
    """
    loud, loud_noise = (float(np.dot(sound, sound)) for sound in (audio, noise))
    if not loud or not loud_noise:
        return audio
    # Decibels of power, hence 20 for amplitudes: the ratio of powers becomes 10 ** (snr_db / 10).
    made: NDArray[np.float32] = audio + np.float32(np.sqrt(loud / loud_noise) * 10 ** (-snr_db / 20)) * noise
    return made
