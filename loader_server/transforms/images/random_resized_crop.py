"""`random_resized_crop`: a part of each image, whose area, proportion and place are drawn, resized to one size.

Rules: pure but for `rng`. As torchvision draws it: where ten drawn parts do not lie in the image, the largest one of an
allowed proportion, in the middle, is taken.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from loader_server.transforms import Outputs, SettingsError, numbers, setting, transform
from loader_server.transforms.declare import built_in
from loader_server.transforms.images.pixels import Resampler, cut, filter_setting, key_setting, of_size, size_setting

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

__all__ = ["RandomResizedCropSettings", "RandomResizedCropTransform"]

#: How often a part of drawn area and proportion is tried before the largest one in the middle is taken.
_TRIES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomResizedCropSettings:
    """The table [streams.<name>.random_resized_crop]."""

    key: str = key_setting()
    size: tuple[int, ...] = size_setting()
    share: tuple[float, ...] = setting(
        numbers(0, 1), "the least and the greatest share of the image that is kept", default=(0.08, 1.0)
    )
    proportion: tuple[float, ...] = setting(
        numbers(0.01, 100), "the least and the greatest width of that part, for a height of 1", default=(0.75, 4 / 3)
    )
    filter: str = filter_setting()


@built_in("random_resized_crop")
# Pillow resizes in code for any x86-64, which asks no processor what it has.
@transform(settings=RandomResizedCropSettings, packages=("pillow",), processor_safe=True)
class RandomResizedCropTransform:
    """Transform that resizes a part of images, whose area, proportion and place are drawn (Inception's).

    Making it raises a SettingsError for ranges that are none, or without Pillow.
    """

    def __init__(self, settings: RandomResizedCropSettings) -> None:
        for name in ("share", "proportion"):
            _refuse_no_range(name, getattr(settings, name))
        self._settings = settings
        self._resample = Resampler(settings.filter)
        self.picture_key = settings.key
        self.outputs = Outputs(changes={settings.key: of_size(settings.size)})

    def __call__(self, sample: dict[str, Any], rng: np.random.Generator) -> None:
        """Resize a drawn part of the image; raise a SampleError for an image without pixels."""
        settings = self._settings
        image = sample[settings.key]
        top, left, rows, columns = self._drawn(image.shape[0], image.shape[1], rng)
        part = cut(image, top, left, (max(rows, 1), max(columns, 1)))
        sample[settings.key] = self._resample(part, settings.size)

    def _drawn(self, rows: int, columns: int, rng: np.random.Generator) -> tuple[int, int, int, int]:
        """Return where the part begins, and its rows and columns."""
        smallest, largest = self._settings.share
        least, most = (math.log(bound) for bound in self._settings.proportion)
        for _ in range(_TRIES):
            area = rows * columns * rng.uniform(smallest, largest)
            proportion = math.exp(rng.uniform(least, most))
            height, width = round(math.sqrt(area / proportion)), round(math.sqrt(area * proportion))
            if 0 < height <= rows and 0 < width <= columns:
                top, left = rng.integers(0, (rows - height + 1, columns - width + 1)).tolist()
                return top, left, height, width
        # An image of extreme proportion: the largest part of an allowed one, in the middle.
        narrow, wide = self._settings.proportion
        height, width = min(rows, round(columns / narrow)), min(columns, round(rows * wide))
        return (rows - height) // 2, (columns - width) // 2, height, width


def _refuse_no_range(name: str, bounds: Sequence[float]) -> None:
    """Raise a SettingsError unless these are two numbers above 0 that do not fall."""
    if len(bounds) != 2 or not 0 < bounds[0] <= bounds[1]:
        raise SettingsError(
            expected="two numbers, the least and the greatest, above 0",
            got=str(list(bounds)),
            where=name,
            remedy=f"Write for instance {name} = [0.5, 1.0].",
        )
