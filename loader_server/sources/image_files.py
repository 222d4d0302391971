"""Decoded images: JPEG, PNG, and whatever else Pillow reads, as rows, columns and channels of 8 bits.

Rules: this is the only place that decodes images. A SampleError says why a file cannot be used; that includes one whose
header claims more than a sample may have, which is refused before memory is taken for it, and one of more than 8 bits a
channel, which would lose them. Images stand upright: the orientation that a camera noted is applied. Versions of Pillow
and of the libraries below it shape the pixels, so they are part of what loaders compare.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, TypeVar

from loader_server.installed import version_of
from loader_server.sources.pictures import Picture
from loader_server.sources.sample_limits import LARGEST_SAMPLE, refuse_larger
from shared.errors import SampleError
from shared.extras import library
from shared.settings.parsers import choice, setting, wholes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Images", "colours_setting", "image_versions", "refuse_other_pixels", "resize_setting"]

_CHANNELS = {"RGB": 3, "L": 1, "RGBA": 4}

#: Modes of Pillow with 8 bits a channel or fewer; the others would be clipped.
#: Formats whose images need nothing of their file once they are loaded, so that equal colours need no copy.
_LOADED_WHOLE = ("JPEG", "PNG")

_OF_8_BITS = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "RGBa", "La", "CMYK", "YCbCr", "LAB", "HSV")

T = TypeVar("T")

#: The tag of Exif that says how the camera was held, and the values for which it lay on its side.
_ORIENTATION, _SIDEWAYS = 0x0112, (5, 6, 7, 8)


def resize_setting() -> Any:
    """Return the setting `resize` of a source of images."""
    text = "rows and columns that images are resized to, such as [224, 224]; left out, all are of one size"
    return setting(wholes(2, 1, 2**16), text, default=(), later=True)


def colours_setting() -> Any:
    """Return the setting `colours` of a source of images."""
    text = 'what images are converted to: "RGB", "L" (one channel, grey) or "RGBA"'
    return setting(choice(*_CHANNELS), text, default="RGB", later=True)


def _pillow() -> tuple[Any, Any]:
    """Return Pillow's modules Image and ImageOps; raise a SettingsError if it is not installed."""
    return (
        library("PIL.Image", extra="images", use="which decodes images"),
        library("PIL.ImageOps", extra="images", use="which decodes images"),
    )


def image_versions() -> dict[str, str]:
    """Return the versions of Pillow and of the libraries by which it decodes, by name.

    Raise importlib's PackageNotFoundError if Pillow was not installed as a package, or a SettingsError if it is not
    installed at all.
    """
    features = library("PIL.features", extra="images", use="which decodes images")
    below = {name: features.version(name) for name in ("jpg", "libjpeg_turbo", "zlib", "webp", "libtiff", "avif")}
    return {"pillow": version_of("pillow")} | {
        f"pillow {name}": str(version) for name, version in below.items() if version
    }


class Images:
    """How the images of a column are decoded.

    `colours` is what they are converted to, `resize` the rows and columns that they are resized to (empty: they stay as
    they are), and `largest` the most bytes that one may have once decoded (0: no limit).
    """

    def __init__(self, colours: str, resize: Sequence[int] = (), largest: int = LARGEST_SAMPLE) -> None:
        self._colours = colours
        self._size = tuple(resize)
        self._largest = largest
        self._image, self._ops = _pillow()

    def shape_of(self, raw: bytes, where: str) -> tuple[int, int, int]:
        """Return rows, columns and channels that an image will have once decoded, by its header.

        Raise a SampleError if the bytes are no image, or one that is too large or has more than 8 bits a channel.
        """
        return self._with_image(raw, where, self._shape)

    def decode(self, raw: bytes, where: str, pixels: Sequence[int] = ()) -> NDArray[np.uint8]:
        """Return the decoded image, a new array of rows, columns and channels; raise what `picture` raises."""
        return self.picture(raw, where, pixels).array()

    def picture(self, raw: bytes, where: str, pixels: Sequence[int] = ()) -> Picture:
        """Return the decoded image, not copied into an array yet.

        Raise a SampleError if the bytes are no whole image, or one that is too large, has more than 8 bits a channel,
        or has another shape than `pixels` (empty: any).
        """
        made = self._with_image(raw, where, self._decoded)
        if pixels:
            refuse_other_pixels(made.shape, pixels, where)
        return made

    def _with_image(self, raw: bytes, where: str, use: Callable[[Any], T]) -> T:
        """Return what `use` makes of the opened image; raise a SampleError as `shape_of` and `decode` do."""
        try:
            with self._image.open(io.BytesIO(raw)) as image:
                if image.mode not in _OF_8_BITS:
                    raise _unusable("deep_image", "at most 8 bits a channel", f'Pillow\'s mode "{image.mode}"', where)
                width, height = image.size
                # Before pixels are decoded: a header may claim any size, and decoding allocates it. Pillow itself
                # decodes to its own mode first, of up to four bytes a pixel.
                refuse_larger(width * height * 4, self._largest, where)
                return use(image)
        except (SampleError, MemoryError):
            raise
        except Exception as error:  # Pillow's plugins raise SyntaxError, struct.error, KeyError and others
            got = " ".join(str(error).split()) or type(error).__name__
            # Without the address of the stream in memory, which differs between runs.
            got = "bytes that Pillow knows no format for" if "cannot identify" in got else got
            raise _unusable("undecodable", "JPEG, PNG or another image that Pillow reads", got, where) from None

    def _shape(self, image: Any) -> tuple[int, int, int]:
        """Return rows, columns and channels that an opened image will have once it is decoded."""
        if self._size:
            return (*self._size, _CHANNELS[self._colours])  # type: ignore[return-value] # two of them
        width, height = image.size
        if image.getexif().get(_ORIENTATION) in _SIDEWAYS:
            width, height = height, width
        return height, width, _CHANNELS[self._colours]

    def _decoded(self, image: Any) -> Picture:
        """Return an opened image, decoded, upright, in the colours and the size that are asked for.

        Whatever Pillow raises for a broken image passes.
        """
        # Asked for first, as `datasets` does: transposing copies images that are upright already.
        if image.getexif().get(_ORIENTATION) is not None:
            image = self._ops.exif_transpose(image)
        if image.mode == self._colours and image.format in _LOADED_WHOLE:
            image.load()  # converting would copy it
        else:
            image = image.convert(self._colours)
        if self._size:
            height, width = self._size
            image = image.resize((width, height), self._image.Resampling.BILINEAR)
        return Picture(image)


def refuse_other_pixels(got: Sequence[int], expected: Sequence[int], where: str) -> None:
    """Raise a SampleError if an image has other rows, columns or channels than all have to have."""
    if tuple(got) != tuple(expected):
        raise SampleError(
            reason="other_size",
            expected=f"{expected[0]} x {expected[1]} pixels, as the first image has",
            got=f"{got[0]} x {got[1]}",
            where=where,
            remedy=f"Write resize = [{expected[0]}, {expected[1]}] to have all images of one size, or any_size = true.",
        )


def _unusable(reason: str, expected: str, got: str, where: str) -> SampleError:
    """Return the SampleError by which an image's row is masked or becomes a bad row."""
    return SampleError(
        reason=reason,
        expected=expected,
        got=got,
        where=where,
        remedy="Mend or remove the image, then run loader-server index.",
    )
