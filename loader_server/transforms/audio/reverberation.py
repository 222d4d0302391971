"""`reverberation`: makes the audio sound as in a room, by an impulse response from another source.

Rules: the length stays, and so does the time of speech: the response starts at its loudest value, the direct sound. The
power of the whole utterance stays, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from loader_server.sources.side_source import SideSource, side_source
from loader_server.transforms import number, setting, transform
from loader_server.transforms.audio.drawn_recordings import DrawnRecordings
from loader_server.transforms.declare import built_in

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Reverberation", "ReverberationSettings", "reverberated"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReverberationSettings:
    """The table [streams.<name>.reverberation]."""

    recordings: SideSource = setting(
        side_source, "the source of the impulse responses: a table with source and its settings"
    )
    share: float = setting(number(0, 1), "the share of samples that get reverberation", default=1.0)


@built_in("reverberation")
@transform(settings=ReverberationSettings, packages=("soxr",))
class Reverberation:
    """Transform that adds reverberation to `audio`, which keeps its length."""

    def __init__(self, settings: ReverberationSettings) -> None:
        self._responses = DrawnRecordings(settings.recordings, "transform reverberation, recordings")
        self._share = settings.share

    def __call__(self, sample: dict[str, Any], rng: np.random.Generator) -> None:
        """Convolve the audio with a response, or leave it as it is, as drawn.

        Raise SettingsError or DataError if the source of responses cannot be used, SampleError if the response has no
        audio in float32 or cannot be decoded, and ReadError if it cannot be read. Other errors of `draw` pass through.
        """
        if rng.random() < self._share:
            sample["audio"] = reverberated(sample["audio"], self._responses.draw(rng, sample["audio_rate"]))


def reverberated(audio: NDArray[np.float32], response: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the audio convolved with the response, as long, as loud and at the same time as before.

    Return it unchanged if it is empty or the result is silent. The response must not be empty.
    """
    if not len(audio):
        return audio
    direct = int(np.abs(response).argmax())
    response = response[: direct + len(audio)]  # later values only affect what is cut off below
    size = 1 << (len(audio) + len(response) - 2).bit_length()
    # With forward scaling numpy 2 transforms float32 as float32, in half the time. The result is then 1 / size of the
    # convolution, which the scaling to the old power undoes.
    spectrum = np.fft.rfft(audio, size, norm="forward") * np.fft.rfft(response, size, norm="forward")
    made = np.fft.irfft(spectrum, size, norm="forward")[direct : direct + len(audio)].astype(np.float32)
    before, after = (float(np.dot(sound, sound)) for sound in (audio, made))
    return made * np.float32(np.sqrt(before / after)) if after else audio
