"""`random_flip`: a drawn share of images mirrored, left and right swapped.

Rules: pure but for `rng`; the input is left alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from loader_server.transforms import Outputs, number, setting, transform
from loader_server.transforms.declare import built_in
from loader_server.transforms.images.pixels import image_field, key_setting

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["RandomFlipSettings", "RandomFlipTransform"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomFlipSettings:
    """The table [streams.<name>.random_flip]."""

    key: str = key_setting()
    share: float = setting(number(0, 1), "how often an image is mirrored", default=0.5)


@built_in("random_flip")
@transform(settings=RandomFlipSettings)
class RandomFlipTransform:
    """Transform that mirrors images, which keep their size."""

    def __init__(self, settings: RandomFlipSettings) -> None:
        self._settings = settings
        self.outputs = Outputs(changes={settings.key: image_field})

    def __call__(self, sample: dict[str, Any], rng: np.random.Generator) -> None:
        """Mirror the image, or leave it."""
        if rng.random() < self._settings.share:
            image: NDArray[np.uint8] = sample[self._settings.key]
            sample[self._settings.key] = np.ascontiguousarray(image[:, ::-1])
