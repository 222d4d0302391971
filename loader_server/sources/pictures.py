"""Images that are decoded, but not copied into arrays yet: for a first transform that resizes or cuts them.

Copying an image out of Pillow, and back in to be resized, takes more than half as long as decoding it. Rules: pure. A
picture is whole and in the colours that the source asks for; nothing of its file is needed any more. Only a transform
with a `picture_key` gets pictures; all others get arrays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["DecodesPictures", "Picture"]


class Picture:
    """A decoded image of Pillow's, 8 bits a channel."""

    def __init__(self, image: Any) -> None:
        self._image = image

    @property
    def shape(self) -> tuple[int, int, int]:
        """Return rows, columns and channels."""
        return self._image.height, self._image.width, len(self._image.getbands())

    def array(self) -> NDArray[np.uint8]:
        """Return the pixels as a new array of rows, columns and channels."""
        return np.array(self._image, np.uint8).reshape(self.shape)

    def part(self, top: int, left: int, size: Sequence[int]) -> Picture:
        """Return the part of this size (rows and columns) that begins at `top` and `left`, which has to lie within."""
        return Picture(self._image.crop((left, top, left + size[1], top + size[0])))

    def resized(self, size: Sequence[int], resampling: Any) -> Picture:
        """Return the image in another size (rows and columns), by one of Pillow's filters; errors of Pillow pass."""
        return Picture(self._image.resize((size[1], size[0]), resampling))


@runtime_checkable
class DecodesPictures(Protocol):
    """A source that can leave out copying an image into an array."""

    def decode_picture(self, sample: int, raw: bytes, key: str) -> dict[str, Any]:
        """Return what `decode` does, but a Picture under the key, if it holds an image; raise what `decode` raises."""
