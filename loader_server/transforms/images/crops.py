"""The common part of crops: their settings, the size that they make, and which images are too small, by lengths.

Rules: pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from loader_server.transforms import Outputs
from loader_server.transforms.images.pixels import key_setting, of_size, size_setting

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from loader_server.transforms.declare import Lengths

__all__ = ["Crop", "CropSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CropSettings:
    """The tables [streams.<name>.centre_crop] and [streams.<name>.random_crop]."""

    key: str = key_setting()
    size: tuple[int, ...] = size_setting()


class Crop:
    """What cuts a part of one size out of images."""

    def __init__(self, settings: CropSettings) -> None:
        self.key, self.size = settings.key, settings.size
        self.picture_key = settings.key
        self.outputs = Outputs(changes={settings.key: of_size(settings.size)})

    def may_refuse(self, lengths: Lengths) -> NDArray[np.bool_]:
        """Return which images are too small, as far as their lengths are known."""
        small = np.zeros(len(next(iter(lengths.values()), ())), np.bool_)
        for key, least in zip((self.key, f"{self.key}_width"), self.size, strict=True):
            if key in lengths:
                small |= lengths[key] < least
        return small
