"""Settings of features for job files and for layers: `logmel`, `spec_augment`.

Rules: pure; one declaration for both sides, so that a table of a job file can be passed to a layer unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass

from shared.audio.conventions import NAMED
from shared.settings.values import choice, duration_s, number, setting, whole

__all__ = ["LogMelSettings", "MelSettings", "StripeSettings"]


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
