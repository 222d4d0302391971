"""The common part of transforms of images: what an image is, and resampling a part of one by Pillow.

Rules: pure. An image is `[rows, columns, channels]` of uint8, with 1, 3 or 4 channels; whether all have one size, the
field of its key says. The first transform of a stream gets images as Pictures, where the source has some; what a
transform makes is an array.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from loader_server.sources.pictures import Picture
from loader_server.transforms import SampleError, SettingsError, choice, setting, text
from shared.extras import library
from shared.settings.parsers import wholes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from shared.wire.batch_layout import Field

__all__ = ["Resampler", "cut", "cut_array", "filter_setting", "image_field", "key_setting", "of_size", "size_setting"]

_CHANNELS = (1, 3, 4)
_IMAGE_AXES = 3


def key_setting() -> Any:
    """Return the setting `key` of a transform of images."""
    return setting(text, "the image, [rows, columns, channels]", default="image")


def size_setting(**default: Any) -> Any:
    """Return the setting `size`, which is required unless a default is given."""
    return setting(wholes(2, 1, 2**16), "rows and columns of what it makes, such as [224, 224]", **default)


def filter_setting() -> Any:
    """Return the setting `filter` of a transform that resamples."""
    return setting(choice("bilinear", "bicubic", "lanczos", "nearest", "box"), "Pillow's filter", default="bilinear")


def image_field(field: Field) -> Field:
    """Return the field; raise a SettingsError unless it is one of images."""
    fits = len(field.shape) == _IMAGE_AXES and field.shape[2] in _CHANNELS and field.dtype == "uint8"
    if not fits:
        axes = ", ".join("any" if axis is None else str(axis) for axis in field.shape)
        raise SettingsError(
            expected=f'"{field.key}" as an image, uint8 [rows, columns, channels] with 1, 3 or 4 channels',
            got=f"{field.dtype} [{axes}]",
            where="",
            remedy="Name another `key`, or write it before transforms that make other values, such as normalise_image.",
        )
    return field


def of_size(size: Sequence[int]) -> Callable[[Field], Field]:
    """Return the rule that makes a field of images one of images of this size; it raises as `image_field` does."""

    def change(field: Field) -> Field:
        return replace(image_field(field), shape=(*size, field.shape[2]), per_second=None)

    return change


def cut(image: NDArray[Any] | Picture, top: int, left: int, size: Sequence[int]) -> NDArray[Any] | Picture:
    """Return the part of this size (rows and columns) that begins at `top` and `left`, of a Picture as a Picture.

    Raise a SampleError if the image is smaller.
    """
    if image.shape[0] < size[0] or image.shape[1] < size[1]:
        raise SampleError(
            reason="small_image",
            expected=f"at least {size[0]} x {size[1]} pixels to cut out",
            got=f"{image.shape[0]} x {image.shape[1]}",
            where="",
            remedy="Write resize_image before it, or leave small images out by a filter.",
        )
    if isinstance(image, Picture):
        return image.part(top, left, size)
    return image[top : top + size[0], left : left + size[1]]


def cut_array(image: NDArray[Any] | Picture, top: int, left: int, size: Sequence[int]) -> NDArray[Any]:
    """Return the part that `cut` returns as a new array; raise a SampleError if the image is smaller."""
    part = cut(image, top, left, size)
    return part.array() if isinstance(part, Picture) else part.copy()


class Resampler:
    """Pillow's resampling by one filter; making it raises a SettingsError without Pillow."""

    def __init__(self, name: str) -> None:
        self._image = library("PIL.Image", extra="images", use="which resizes images")
        self._filter = self._image.Resampling[name.upper()]

    def __call__(self, image: NDArray[np.uint8] | Picture, size: Sequence[int]) -> NDArray[np.uint8]:
        """Return the image as a new array of this size (rows and columns).

        Errors of Pillow pass, such as a TypeError for an array that is no image.
        """
        if not isinstance(image, Picture):
            image = Picture(self._image.fromarray(image[:, :, 0] if image.shape[2] == 1 else image))
        return image.resized(size, self._filter).array()
