"""Settings of features for job files and for layers (`logmel`, `spec_augment`), and the frames that they ask for.

Rules: pure; one declaration for both sides, so that a table of a job file can be passed to a layer unchanged; settings
that leave no frame or no band are refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shared.audio.conventions import NAMED
from shared.errors import require
from shared.settings.parsers import choice, duration_s, number, setting, whole

if TYPE_CHECKING:
    from shared.audio.conventions import Convention

__all__ = ["LogMelSettings", "MelFrames", "MelSettings", "StripeSettings", "mel_frames"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MelSettings:
    """Settings that all mel-band features share."""

    rate: int = setting(whole(1000, 384_000), "hertz; audio of another rate is resampled to it", default=16_000)
    window: float = setting(duration_s, 'length of a frame, such as "25 ms"', default=0.025)
    hop: float = setting(duration_s, 'from one frame to the next, such as "10 ms"', default=0.010)
    low_hz: float = setting(number(0), "lower edge of the lowest band", default=20.0)
    high_hz: float = setting(number(0), "upper edge of the highest band; 0: half the rate", default=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogMelSettings(MelSettings):
    """The table [streams.<name>.logmel]."""

    bands: int = setting(whole(1, 1024), "mel bands", default=80)
    convention: str | None = setting(
        choice(*NAMED), "whose definition of these bands: kaldi, librosa or torchaudio; ours if left out", default=None
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StripeSettings:
    """Settings of SpecAugment: stripes to mask in time and frequency, and their fill value."""

    time_stripes: int = setting(whole(0, 100), "how many stripes of steps are wiped out", default=2)
    time_width: int = setting(whole(0), "most steps of a stripe", default=100)
    time_share: float = setting(number(0, 1), "most of a sample's steps that one stripe takes", default=0.2)
    band_stripes: int = setting(whole(0, 100), "how many stripes of bands are wiped out", default=2)
    band_width: int = setting(whole(0), "most bands of a stripe", default=27)
    fill: str = setting(
        choice("mean", "zero"),
        "what to put there: the sample's mean, or zeros for normalised features",
        default="mean",
    )


@dataclass(frozen=True, slots=True)
class MelFrames:
    """Frame layout, in samples: a frame every `hop` samples, each of `window` samples zero-padded to `fft`.

    The first frame begins `margin` samples before the audio, and the last may end that many after it. Bands lie between
    `edges_hz`.
    """

    window: int
    hop: int
    fft: int
    margin: int
    edges_hz: tuple[float, float]


def mel_frames(settings: MelSettings, convention: Convention) -> MelFrames:
    """Return the frame layout that settings ask for; raise SettingsError if they allow no frame or no band.

    A window needs 2 samples and a hop 1, and `low_hz` has to be below `high_hz`, which is at most half the rate.
    """
    window, hop = round(settings.window * settings.rate), round(settings.hop * settings.rate)
    low_hz, high_hz = settings.low_hz, settings.high_hz or settings.rate / 2
    require(
        window >= 2 and hop >= 1,
        expected=f"a window of at least 2 samples and a hop of at least 1 at {settings.rate} Hz",
        got=f"{window} and {hop}",
        where="window and hop",
        remedy='Write for instance window = "25 ms" and hop = "10 ms".',
    )
    require(
        low_hz < high_hz <= settings.rate / 2,
        expected=f"low_hz < high_hz <= {settings.rate / 2:g}, half the rate",
        got=f"low_hz = {low_hz:g} and high_hz = {high_hz:g}",
        where="low_hz and high_hz",
        remedy="Lower them, or raise the rate.",
    )
    fft = 1 << (window - 1).bit_length() if convention.power_of_two else window  # the next power of two, or itself
    return MelFrames(window, hop, fft, window // 2 if convention.padding else 0, (low_hz, high_hz))
