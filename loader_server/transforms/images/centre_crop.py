"""`centre_crop`: the middle of each image, so that all have one size; smaller images are refused.

Rules: pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from loader_server.transforms import transform
from loader_server.transforms.declare import built_in
from loader_server.transforms.images.crops import Crop, CropSettings
from loader_server.transforms.images.pixels import cut_array

if TYPE_CHECKING:
    import numpy as np

__all__ = ["CentreCropTransform"]


@built_in("centre_crop")
@transform(settings=CropSettings, draws=False)
class CentreCropTransform(Crop):
    """Transform that keeps the middle of images."""

    def __call__(self, sample: dict[str, Any], rng: np.random.Generator) -> None:
        """Cut the middle out; raise a SampleError if the image is smaller."""
        image = sample[self.key]
        top, left = ((image.shape[axis] - self.size[axis]) // 2 for axis in (0, 1))
        sample[self.key] = cut_array(image, top, left, self.size)
