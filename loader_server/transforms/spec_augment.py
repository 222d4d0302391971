"""`spec_augment`: masks stripes of time and of frequency in features (SpecAugment), after Park et al. (2019).

Rules: pure; the input is left alone, because a source may hold on to it. A stripe's width is drawn first and then
its place, so that every allowed place is equally likely; widths of 0 are drawn too. Time is not warped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from loader_server.transforms import SettingsError, setting, text, transform
from loader_server.transforms.declare import built_in
from shared.audio.features import StripeSettings

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import NDArray

__all__ = ["SpecAugmentSettings", "SpecAugmentTransform"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecAugmentSettings(StripeSettings):
    """The table [streams.<name>.spec_augment]."""

    key: str = setting(text, "the features, [steps, bands]", default="audio")


@built_in("spec_augment")
@transform(settings=SpecAugmentSettings)
class SpecAugmentTransform:
    """Transform that masks stripes of features, which keep their shape."""

    def __init__(self, settings: SpecAugmentSettings) -> None:
        self._settings = settings

    def __call__(self, sample: dict[str, Any], rng: np.random.Generator) -> None:
        """Mask as many stripes as the settings ask for, in a copy; raise SettingsError unless there are two axes."""
        settings = self._settings
        # A copy, because a source may keep its arrays for the next epoch.
        features: NDArray[np.float32] = sample[settings.key].copy()
        if features.ndim != 2:
            raise SettingsError(
                expected=f'"{settings.key}" as features, [steps, bands]',
                got=f"an array of {features.ndim} axes" if features.ndim != 1 else "an array of one axis",
                where="transform spec_augment",
                remedy="Write it behind the transform that makes the features, such as logmel, or name another `key`.",
            )
        steps, bands = features.shape
        fill = features.mean() if settings.fill == "mean" and features.size else 0
        most = min(settings.time_width, int(settings.time_share * steps))
        for stripe in _stripes(rng, settings.time_stripes, most, steps):
            features[stripe] = fill
        for stripe in _stripes(rng, settings.band_stripes, min(settings.band_width, bands), bands):
            features[:, stripe] = fill
        sample[settings.key] = features


def _stripes(rng: np.random.Generator, stripes: int, most: int, size: int) -> Iterator[slice]:
    """Return ranges of places below `size`, as many as `stripes`, each at most `most` wide, as drawn."""
    widths = rng.integers(0, most, stripes, endpoint=True)
    starts = rng.integers(0, size - widths, endpoint=True)
    return map(slice, starts.tolist(), (starts + widths).tolist())
