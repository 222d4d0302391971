"""`waveform`: the audio itself, at one rate, for models that compute their own features.

Rules: pure; int16 reproduces the exact values of a 16-bit recording that has the rate already, and anything louder than
full scale is clipped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from loader_server.transforms import Outputs, choice, setting, transform, whole
from loader_server.transforms.audio.low_rates import ResamplingTransform
from loader_server.transforms.audio.resampling import resampled, resampled_length
from loader_server.transforms.declare import built_in
from loader_server.transforms.on_columns import listed

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from loader_server.sources.batch_columns import Columns
    from loader_server.transforms.declare import Lengths

__all__ = ["Waveform", "WaveformSettings"]

#: 1.0 in 16 bits.
_FULL_SCALE = np.float32(2**15)


@dataclass(frozen=True, slots=True, kw_only=True)
class WaveformSettings:
    """The table [streams.<name>.waveform]."""

    rate: int = setting(whole(1000, 384_000), "hertz; audio of another rate is resampled to it", default=16_000)
    dtype: str = setting(
        choice("float32", "int16"),
        "float32 from -1 to 1, or int16 from -32768 to 32767 in half the bytes",
        default="float32",
    )


@built_in("waveform")
@transform(settings=WaveformSettings, draws=False, packages=("soxr",))
class Waveform(ResamplingTransform):
    """Transform of `audio` to `[samples]` at one rate."""

    def __init__(self, settings: WaveformSettings) -> None:
        self.rate = settings.rate
        self._whole = settings.dtype == "int16"
        self.outputs = Outputs.of(
            {"audio": (settings.dtype, None)},
            lengths={"audio": self._length, "audio_rate": lambda _: np.int64(settings.rate)},
            per_second={"audio": settings.rate},
        )

    def __call__(self, sample: dict[str, Any], rng: np.random.Generator) -> None:
        """Resample the audio to `rate`, convert it to int16 if `dtype` is so, and set the sample's rate.

        Raise SampleError unless it is float32.
        """
        sample["audio"] = self._made(sample["audio"], sample["audio_rate"])
        sample["audio_rate"] = self.rate

    def empty_bands(self, highest_hz: float) -> tuple[int, int]:
        """Return 0 and 0: it makes no bands."""
        return 0, 0

    def on_columns(self, columns: Columns) -> None:
        """Resample the audio of all samples, convert it to int16 if `dtype` is so, and set their rates.

        Raise SampleError unless the audio is float32, TypeError unless audio and rates are lists, or KeyError if one is
        missing.
        """
        made = list(map(self._made, listed(columns, "audio"), listed(columns, "audio_rate")))
        columns |= {"audio": made, "audio_rate": [self.rate] * len(made)}

    def _made(self, audio: NDArray[np.float32], rate: int) -> NDArray[np.generic]:
        audio = resampled(audio, rate, self.rate)
        return _in_16_bits(audio) if self._whole else audio

    def _length(self, lengths: Lengths) -> NDArray[np.int64]:
        return resampled_length(lengths["audio"], lengths["audio_rate"], self.rate)


def _in_16_bits(audio: NDArray[np.float32]) -> NDArray[np.int16]:
    scaled = np.rint(audio * _FULL_SCALE)
    # 1.0 scales to 32 768, one more than int16 holds: without clipping it would wrap around to -32 768.
    made: NDArray[np.int16] = np.clip(scaled, -_FULL_SCALE, _FULL_SCALE - 1, out=scaled).astype(np.int16)
    return made
