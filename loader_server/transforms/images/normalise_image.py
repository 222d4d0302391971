"""`normalise_image`: pixels from 0 to 255 as float32: divided by 255, less each channel's mean, over its deviation.

Rules: pure. As multiplication and addition in float32, whose factors are computed once in float64.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from loader_server.transforms import Outputs, SettingsError, numbers, setting, transform
from loader_server.transforms.declare import built_in
from loader_server.transforms.images.pixels import image_field, key_setting

if TYPE_CHECKING:
    from shared.wire.batch_layout import Field

__all__ = ["NormaliseImageSettings", "NormaliseImageTransform"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NormaliseImageSettings:
    """The table [streams.<name>.normalise_image]."""

    key: str = key_setting()
    mean: tuple[float, ...] = setting(
        numbers(0, 1), "the mean of each channel, from 0 to 1, or one for all", default=(0.485, 0.456, 0.406)
    )
    deviation: tuple[float, ...] = setting(
        numbers(0.0001, 1), "the deviation of each channel, or one for all", default=(0.229, 0.224, 0.225)
    )


@built_in("normalise_image")
@transform(settings=NormaliseImageSettings, draws=False)
class NormaliseImageTransform:
    """Transform that makes float32 of images, which keep their size.

    Making it raises a SettingsError unless there are as many means as deviations, or one of either.
    """

    def __init__(self, settings: NormaliseImageSettings) -> None:
        self._settings = settings
        if len(settings.mean) != len(settings.deviation) and 1 not in (len(settings.mean), len(settings.deviation)):
            raise SettingsError(
                expected=f"as many numbers as in deviation, {len(settings.deviation)}, or one for all",
                got=str(list(settings.mean)),
                where="mean",
                remedy="Give both a number for each channel.",
            )
        deviation = np.array(settings.deviation, np.float64)
        self._factor = (1 / (255 * deviation)).astype(np.float32)
        self._offset = (-np.array(settings.mean, np.float64) / deviation).astype(np.float32)
        self.outputs = Outputs(changes={settings.key: self._change})

    def __call__(self, sample: dict[str, Any], rng: np.random.Generator) -> None:
        """Make float32 of the image."""
        made = sample[self._settings.key] * self._factor
        made += self._offset
        sample[self._settings.key] = made

    def _change(self, field: Field) -> Field:
        """Return the field as float32; raise a SettingsError for other fields, or another number of channels."""
        channels = image_field(field).shape[2]
        for name in ("mean", "deviation"):
            values = getattr(self._settings, name)
            if len(values) not in (1, channels):
                raise SettingsError(
                    expected=f"{channels} numbers, one a channel, or one for all",
                    got=str(list(values)),
                    where=name,
                    remedy=f"Mend {name}, or the `colours` of the source.",
                )
        return replace(field, dtype="float32")
