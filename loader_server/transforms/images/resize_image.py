"""`resize_image`: images of another size, by Pillow: exactly `size`, or with the shorter side of one length.

Rules: pure. With `shorter`, the longer side keeps the proportion, rounded down, as torchvision rounds it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from loader_server.transforms import Outputs, SettingsError, setting, transform, whole
from loader_server.transforms.declare import built_in
from loader_server.transforms.images.pixels import (
    Resampler,
    filter_setting,
    image_field,
    key_setting,
    of_size,
    size_setting,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from loader_server.transforms.declare import LengthRule, Lengths
    from shared.wire.batch_layout import Field

__all__ = ["ResizeImageSettings", "ResizeImageTransform"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeImageSettings:
    """The table [streams.<name>.resize_image]."""

    key: str = key_setting()
    size: tuple[int, ...] = size_setting(default=())
    shorter: int = setting(whole(1), "in place of size: how long the shorter side becomes", default=0)
    filter: str = filter_setting()


@built_in("resize_image")
# Pillow resizes in code for any x86-64, which asks no processor what it has.
@transform(settings=ResizeImageSettings, draws=False, packages=("pillow",), processor_safe=True)
class ResizeImageTransform:
    """Transform that resizes images.

    Making it raises a SettingsError unless there is either `size` or `shorter`, or without Pillow.
    """

    def __init__(self, settings: ResizeImageSettings) -> None:
        if bool(settings.size) == bool(settings.shorter):
            raise SettingsError(
                expected="either size or shorter",
                got="both" if settings.size else "neither",
                where="",
                remedy="Write size = [224, 224] for images of one size, or shorter = 256 to keep their proportion.",
            )
        self._settings = settings
        self._resample = Resampler(settings.filter)
        self.picture_key = settings.key
        key = settings.key
        if settings.size:
            self.outputs = Outputs(changes={key: of_size(settings.size)})
        else:
            rules: dict[str, LengthRule] = {key: self._rows, f"{key}_width": self._columns}
            self.outputs = Outputs(changes={key: self._proportional}, lengths=rules)

    def __call__(self, sample: dict[str, Any], rng: np.random.Generator) -> None:
        """Resize the image."""
        image = sample[self._settings.key]
        size = self._settings.size or _shortened(image.shape[0], image.shape[1], self._settings.shorter)
        sample[self._settings.key] = self._resample(image, [int(axis) for axis in size])

    def _proportional(self, field: Field) -> Field:
        """Return the field of images; raise a SettingsError for others, and for images of one size."""
        if not image_field(field).is_wide:
            raise SettingsError(
                expected=f'"{field.key}" of any size',
                got=f"images of {field.shape[1]} columns",
                where="shorter",
                remedy="Write size = [rows, columns], as all have one size already, or any_size = true at the source.",
            )
        return field

    def _rows(self, lengths: Lengths) -> NDArray[np.int64]:
        key = self._settings.key
        return np.asarray(_shortened(lengths[key], lengths[f"{key}_width"], self._settings.shorter)[0], np.int64)

    def _columns(self, lengths: Lengths) -> NDArray[np.int64]:
        key = self._settings.key
        return np.asarray(_shortened(lengths[key], lengths[f"{key}_width"], self._settings.shorter)[1], np.int64)


def _shortened(rows: Any, columns: Any, shorter: int) -> tuple[Any, Any]:
    """Return rows and columns, numbers or arrays of them, once the shorter of the two is this long."""
    least = np.maximum(np.minimum(rows, columns), 1)
    return rows * shorter // least, columns * shorter // least
