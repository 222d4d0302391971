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
        said = self._settings
        features: NDArray[np.float32] = sample[said.key].copy()
        if features.ndim != 2:
            raise _no_features(said.key, features.ndim)
        steps, bands = features.shape
        fill = features.mean() if said.fill == "mean" and features.size else 0
        most = min(said.time_width, int(said.time_share * steps))
        for stripe in _stripes(rng, said.time_stripes, most, steps):
            features[stripe] = fill
        for stripe in _stripes(rng, said.band_stripes, min(said.band_width, bands), bands):
            features[:, stripe] = fill
        sample[said.key] = features


def _no_features(key: str, axes: int) -> SettingsError:
    return SettingsError(
        expected=f'"{key}" as features, [steps, bands]',
        got=f"an array of {axes} axes" if axes != 1 else "an array of one axis",
        where="transform spec_augment",
        remedy="Write it behind the transform that makes the features, such as logmel, or name another `key`.",
    )


def _stripes(rng: np.random.Generator, stripes: int, most: int, size: int) -> Iterator[slice]:
    """Draw ranges of places below `size`, each at most `most` wide."""
    widths = rng.integers(0, most, stripes, endpoint=True)
    starts = rng.integers(0, size - widths, endpoint=True)
    return map(slice, starts.tolist(), (starts + widths).tolist())
