"""What a member of a WebDataset shard becomes, by its suffix: audio, text, a number, an array, an image, JSON, bytes.

Rules: `txt` becomes `text`; `flac`, `wav`, `ogg` and `mp3` become `audio` with its rate; an image that the stream asks
for becomes `image`; any other becomes a value named like the suffix. If the suffix has a name before the format, that
is the key: `de.txt` gives `de`. Everything but bytes, recordings and images is decoded during indexing as it is later,
so that members that cannot be decoded are known before training; of these two the header is looked at.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, replace
from tokenize import TokenError
from typing import TYPE_CHECKING, Any

import numpy as np

from loader_server.sources.any_size import AnySize, has_any_size
from loader_server.sources.array_files import array_of_npy
from loader_server.sources.batch_columns import shown_axes
from loader_server.sources.image_files import Images, refuse_other_pixels
from loader_server.sources.sample_limits import LARGEST_SAMPLE
from shared.errors import SampleError
from shared.wire.batch_layout import DTYPES, Field

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

__all__ = ["MemberForm", "MemberForms"]

_KINDS = {
    **dict.fromkeys(("txt", "text"), "text"),
    **dict.fromkeys(("wav", "flac", "ogg", "mp3"), "audio"),
    "cls": "number",
    "json": "json",
    "npy": "array",
}
#: Exceptions of json's, int's and numpy's parsers for malformed bytes.
_UNREADABLE = (ValueError, TypeError, SyntaxError, EOFError, OverflowError, RecursionError, TokenError)
_NAMES = {"text": "text", "audio": "audio", "image": "image"}


def _number(raw: bytes) -> Any:
    return np.int64(int(raw))


#: What makes a value of a member's bytes, by its kind; arrays, audio and images need more than the bytes.
_PARSERS: dict[str, Callable[[bytes], Any]] = {
    "text": bytes.decode,
    "bytes": bytes,
    "number": _number,
    "json": json.loads,
}


@dataclass(frozen=True, slots=True)
class MemberForm:
    """How members with this suffix are decoded; `dtype` is set for arrays and images only.

    `shape` is that of one step of an array, and of an image rows, columns and channels; None are axes that differ.
    """

    suffix: str
    dtype: str = ""
    shape: tuple[int | None, ...] | None = None
    #: What decodes images, if members with this suffix are some.
    images: Images | None = dataclasses.field(default=None, compare=False)

    @property
    def kind(self) -> str:
        """Return audio, text, number, json, array or bytes, by the last part of the suffix; bytes if it is unknown.

        Return image if the stream asks for images of this suffix.
        """
        return "image" if self.images is not None else _KINDS.get(self.suffix.rpartition(".")[2], "bytes")

    @property
    def is_wide(self) -> bool:
        """Return whether arrays or images differ along their first two axes."""
        return self.shape is not None and self.shape[:1] == (None,)

    @property
    def key(self) -> str:
        """Return the key of a value: the name before the format, or else `text`, `audio`, `image` or the suffix.

        Members that stay bytes have the whole suffix as their key.
        """
        name, _, last = self.suffix.rpartition(".")
        return name if name and self.kind != "bytes" else _NAMES.get(self.kind, self.suffix or last)

    def field(self, rate: int) -> Field | None:
        """Return the field in a batch, or None for text, JSON and bytes.

        `rate` is the sampling rate that all recordings under this key have, or 0 if they differ; only with a common
        rate can lengths be given in seconds.
        """
        if self.kind == "image":
            return Field(key=self.key, dtype="uint8", shape=self.shape or ())
        if self.kind == "audio":
            return Field(key=self.key, dtype="float32", shape=(None,), per_second=float(rate) or None)
        if self.kind == "number":
            return Field(key=self.key, dtype="int64", shape=())
        if self.kind == "array":
            return Field(key=self.key, dtype=self.dtype, shape=() if self.shape is None else (None, *self.shape))
        return None

    @property
    def lengths(self) -> tuple[str, ...]:
        """Return the keys whose values `look` returns: audio and its rate, text, or an array with axes.

        Images and arrays of any size have a length and a width. It is empty for all others.
        """
        if self.kind == "audio":
            return self.key, f"{self.key}_rate"
        if self.is_wide:
            return self.key, f"{self.key}_width"
        padded = self.kind == "text" or (self.kind == "array" and self.shape is not None)
        return (self.key,) if padded else ()

    def look(self, raw: bytes, where: str, largest: int = LARGEST_SAMPLE) -> Sequence[int]:
        """Return the member's lengths, in the order of `lengths`; raise a SampleError if it cannot be used.

        Audio and images are measured by their headers, not decoded; audio is refused if it would have more than
        `largest` bytes (0: no limit). SettingsError of `audio_lengths` passes through, and what `decode` lets pass.
        """
        if self.images is not None:
            pixels = self.images.shape_of(raw, where)
            if not self.is_wide:
                refuse_other_pixels(pixels, self._pixels, where)
            return pixels[: len(self.lengths)]
        if self.kind == "audio":
            from loader_server.sources.audio.audio_files import audio_lengths  # needs soundfile

            return audio_lengths(raw, where, largest)
        value = self.decode(raw, where)[self.key]
        if not self.lengths:
            return ()
        return [len(value)] if self.kind == "text" else value.shape[: len(self.lengths)]

    @property
    def _pixels(self) -> tuple[int, ...]:
        """Return rows, columns and channels that all images have; nothing if they differ in size."""
        return () if self.is_wide else tuple(axis for axis in self.shape or () if axis is not None)

    def decode(self, raw: bytes, where: str, largest: int = LARGEST_SAMPLE, picture_key: str = "") -> dict[str, Any]:
        """Return the member's values in a raw sample by key; raise a SampleError if it cannot be used.

        An image under `picture_key` is a Picture.

        Audio other than plain WAV is also refused if it would have more than `largest` bytes (0: no limit); images have
        the limit that their decoder was made with, and other kinds none here. SettingsError of `decoded_audio` passes.
        """
        if self.images is not None:
            picture = self.images.picture(raw, where, self._pixels)
            return {self.key: picture if self.key == picture_key else picture.array()}
        if self.kind == "audio":
            from loader_server.sources.audio.audio_files import AVERAGED, decoded_audio  # needs soundfile

            audio, rate = decoded_audio(raw, where, AVERAGED, largest)
            return {self.key: audio, f"{self.key}_rate": rate}
        try:
            parse = self._array if self.kind == "array" else _PARSERS[self.kind]
            return {self.key: parse(raw)}
        except UnicodeDecodeError as error:
            got = f"the byte 0x{raw[error.start]:02x} after {error.start} others"
            raise _unusable("not_utf8", f'"{self.suffix}" in UTF-8', got, where) from None
        except _UNREADABLE as error:
            raise _unusable("undecodable", self._expected, str(error), where) from None

    @property
    def _expected(self) -> str:
        axes = shown_axes(() if self.shape is None else (None, *self.shape))
        return f'"{self.suffix}" as {self.kind}' + (f" of {self.dtype} [{axes}]" if self.dtype else "")

    def _array(self, raw: bytes) -> Any:
        """Return the array, or a scalar if it has no axes.

        Raise a ValueError if it has another dtype or step than the first array had; for bytes that are no array, raise
        an error of `_UNREADABLE`.
        """
        array = array_of_npy(raw)
        if self.dtype and (str(array.dtype), self._step_of(array)) != (self.dtype, self.shape):
            takes = f', which any_size = ["{self.key}"] may take' if self.shape and not self.is_wide else ""
            raise ValueError(f"an array of {array.dtype} {list(array.shape)}{takes}")
        return array if array.ndim else array[()]  # a scalar, not an array without axes

    def _step_of(self, array: NDArray[Any]) -> tuple[int | None, ...] | None:
        """Return the shape of a step of an array, with None for columns that may differ; None without axes."""
        if self.is_wide and array.ndim > 1:
            return (None, *array.shape[2:])
        return array.shape[1:] if array.ndim else None


class MemberForms:
    """How a stream's members are decoded: which are images, and which images and arrays may differ along two axes.

    `images` are suffixes, whole ones or just formats. `colours` and `resize` say what becomes of images, and `largest`
    is the most bytes that one may have once decoded. Making it raises a SettingsError without Pillow if there are
    images.
    """

    def __init__(
        self,
        images: Sequence[str] = (),
        *,
        colours: str = "RGB",
        resize: Sequence[int] = (),
        any_size: AnySize = False,
        largest: int = LARGEST_SAMPLE,
    ) -> None:
        self._suffixes = tuple(images)
        self._any_size = any_size
        self._images = Images(colours, resize, largest) if images else None

    def known(self, suffix: str, dtype: str, shape: Sequence[int | None] | None) -> MemberForm:
        """Return the form of members with this suffix, whose dtype and shape an index has."""
        images = self._images if self._is_image(suffix) else None
        return MemberForm(suffix, dtype, None if shape is None else tuple(shape), images)

    def _is_image(self, suffix: str) -> bool:
        return suffix in self._suffixes or suffix.rpartition(".")[2] in self._suffixes

    def form_of(self, suffix: str, raw: bytes) -> MemberForm:
        """Return the form of members with this suffix, given the bytes of one of them.

        Raise a SampleError if these bytes are no array of a supported dtype, or no image, but have to be one. The bytes
        of other kinds are not looked at.
        """
        form = self.known(suffix, "", None)
        any_size = has_any_size(self._any_size, form.key, image=form.kind == "image")
        if form.images is not None:
            pixels = form.images.shape_of(raw, suffix)
            return replace(form, dtype="uint8", shape=(None, None, pixels[2]) if any_size else pixels)
        if form.kind != "array":
            return form
        value = form.decode(raw, suffix)[form.key]
        if str(value.dtype) not in DTYPES:
            expected = f"an array of a dtype of {', '.join(sorted(DTYPES))}"
            raise _unusable("undecodable", expected, str(value.dtype), suffix)
        if any_size and value.ndim < 2:
            expected, got = "an array of two axes or more, as any_size says", f"{value.dtype} {list(value.shape)}"
            raise _unusable("undecodable", expected, got, suffix)
        step = (None, *value.shape[2:]) if any_size else value.shape[1:]
        return replace(form, dtype=str(value.dtype), shape=step if value.ndim else None)


def _unusable(reason: str, expected: str, got: str, where: str) -> SampleError:
    return SampleError(
        reason=reason,
        expected=expected,
        got=got,
        where=where,
        remedy="Mend or remove the member, or leave it out of `members`, then run loader-server index.",
    )
