"""`random_crop`: a part of each image, whose place is drawn, so that all have one size; smaller images are refused.

Rules: pure but for `rng`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from loader_server.transforms import transform
from loader_server.transforms.declare import built_in
from loader_server.transforms.images.crops import Crop, CropSettings
from loader_server.transforms.images.pixels import cut_array

if TYPE_CHECKING:
    import numpy as np

__all__ = ["RandomCropTransform"]


@built_in("random_crop")
@transform(settings=CropSettings)
class RandomCropTransform(Crop):
    """Transform that keeps a part of images, whose place is drawn."""

    def __call__(self, sample: dict[str, Any], rng: np.random.Generator) -> None:
        """Cut a part out, each place equally likely; raise a SampleError if the image is smaller."""
        image = sample[self.key]
        top, left = (int(rng.integers(0, max(image.shape[axis] - self.size[axis], 0) + 1)) for axis in (0, 1))
        sample[self.key] = cut_array(image, top, left, self.size)
