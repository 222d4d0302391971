"""Images that are decoded, but not copied into arrays yet: for a first transform that resizes or cuts them.

Copying an image out of Pillow, and back in to be resized, takes half as long as decoding it. Rules: a picture is whole
and in the colours that the source says; nothing of its file is needed any more. Only a transform that says so gets
pictures (`picture_key`); all others get arrays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from loader_server.sources.blame import undecoded
from loader_server.sources.source import decoded
from shared.errors import StokerError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from loader_server.sources.source import Source

__all__ = ["DecodesPictures", "Picture", "decoded_with_picture"]


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


def decoded_with_picture(source: Source, sample: int, raw: bytes, key: str) -> dict[str, Any]:
    """Return what `decoded` returns, but a Picture under the key, if the source can; arrays alone for an empty key.

    Raise what `decoded` raises: a SampleError if the sample cannot be used, or a ReadError if the machine failed.
    """
    if not key or not isinstance(source, DecodesPictures):
        return decoded(source, sample, raw)
    try:
        return source.decode_picture(sample, raw, key)
    except (StokerError, MemoryError):
        raise
    except BaseException as error:  # a decoder may raise anything, as in `decoded`
        raise undecoded(error, source.name(sample)) from error
