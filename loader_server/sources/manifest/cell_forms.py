"""What a cell of a manifest becomes: an array, an image or a recording in the file that it names, a number, or a text.

Rules: files are decoded by the code that decodes them for every source. The first usable file of a column decides the
dtype and inner shape of its arrays, or the shape of its images, and files of another are bad rows; of columns of any
size rows and columns may differ.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from loader_server.sources.any_size import AnySize, has_any_size
from loader_server.sources.array_files import UNREADABLE, array_of_file, form_of_npy
from loader_server.sources.batch_columns import shown_axes
from loader_server.sources.image_files import Images, image_versions, refuse_other_pixels
from loader_server.sources.sample_limits import refuse_larger
from shared.errors import SampleError
from shared.wire.batch_layout import DTYPES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from loader_server.sources.source import OfJob

__all__ = ["KINDS", "CellForm", "Decoders", "number_of", "versions_of_cells"]

#: What a column may be called in `columns`: kinds of files, texts, and dtypes of numbers.
_FILES = ("array", "image", "audio")
_NUMBERS = ("int32", "int64", "float32", "float64")
KINDS = (*_FILES, "text", *_NUMBERS)


@dataclass(frozen=True, slots=True, kw_only=True)
class CellForm:
    """What the cells of a column become.

    `dtype` and `shape` (without the first axis) are those of arrays, whose `shape` is None without axes; images have a
    `shape` of rows, columns and channels. Axes of it that differ from file to file are None.
    """

    key: str
    kind: str
    dtype: str = ""
    shape: tuple[int | None, ...] | None = None

    @property
    def is_wide(self) -> bool:
        """Return whether its arrays or images differ along their first two axes."""
        return self.shape is not None and self.shape[:1] == (None,)

    @property
    def is_file(self) -> bool:
        """Return whether its cells name files."""
        return self.kind in _FILES

    @property
    def lengths(self) -> tuple[str, ...]:
        """Return the keys whose lengths the index has: none for numbers and arrays without axes."""
        if self.kind == "audio":
            return self.key, f"{self.key}_rate"
        padded = self.kind in ("text", "image") or (self.kind == "array" and self.shape is not None)
        return (self.key, f"{self.key}_width")[: 1 + self.is_wide] if padded else ()

    def column(self) -> tuple[str, str, tuple[int | None, ...], bool] | None:
        """Return key, dtype, further axes, and whether the first axis varies, as `fields_of_rows` takes them.

        Return None for texts, which have no field.
        """
        if self.kind == "audio":
            return self.key, "float32", (), True
        if self.kind == "image":
            return self.key, "uint8", (self.shape or ())[int(self.is_wide) :], self.is_wide
        if self.kind == "array":
            return self.key, self.dtype, self.shape or (), self.shape is not None
        return None if self.kind == "text" else (self.key, self.kind, (), False)

    def to_json(self) -> list[Any]:
        """Return the form as the index keeps it."""
        return [self.key, self.kind, self.dtype, None if self.shape is None else list(self.shape)]

    @classmethod
    def from_json(cls, values: Sequence[Any]) -> CellForm:
        """Return the form that `to_json` gave these values of."""
        key, kind, dtype, shape = values
        return cls(key=key, kind=kind, dtype=dtype, shape=None if shape is None else tuple(shape))


class Decoders:
    """Looks at cells and at the files that they name, and decodes them.

    `colours` and `resize` say what becomes of images, `any_size` which images and arrays may differ along two axes, and
    `of_job` the most bytes that a sample may have once decoded.
    """

    def __init__(self, colours: str, resize: Sequence[int], of_job: OfJob, *, any_size: AnySize = False) -> None:
        self._how = colours, resize
        self._any_size = any_size
        self._of_job = of_job
        self._made: Images | None = None

    @property
    def _images(self) -> Images:
        """Return what decodes images; raise a SettingsError without Pillow."""
        if self._made is None:
            self._made = Images(*self._how, self._of_job.largest_sample)
        return self._made

    def form_of_file(self, form: CellForm, head: bytes, size: int, where: str) -> CellForm:
        """Return the form with what the beginning of a file tells, of so many bytes: dtype and shape.

        The head is the whole file, unless that is a large `.npy` file. Raise a SampleError if the file cannot be used.
        """
        any_size = has_any_size(self._any_size, form.key, image=form.kind == "image")
        if form.kind == "image":
            pixels = self._images.shape_of(head, where)
            return replace(form, shape=(None, None, pixels[2]) if any_size else pixels)
        if form.kind != "array":
            return form
        dtype, shape = self._array_form(head, size, where)
        if dtype not in DTYPES:
            raise _unusable(f"an array of a dtype of {', '.join(sorted(DTYPES))}", dtype, where)
        if any_size and len(shape) < 2:
            raise _unusable("an array of two axes or more, as any_size says", f"{dtype} {list(shape)}", where)
        inner = (None, *shape[2:]) if any_size else shape[1:]
        return replace(form, dtype=dtype, shape=inner if shape else None)

    def measure(self, form: CellForm, head: bytes, size: int, where: str) -> Sequence[int]:
        """Return the lengths of a file, in the order of `form.lengths`, by its beginning (see `form_of_file`).

        Raise a SampleError if the file cannot be used, or has another dtype or shape than the form says.
        """
        if form.kind == "audio":
            from loader_server.sources.audio.audio_files import audio_lengths  # needs soundfile

            return audio_lengths(head, where, self._of_job.largest_indexed)
        if form.kind == "image":
            pixels = self._images.shape_of(head, where)
            if form.is_wide:
                return pixels[:2]
            refuse_other_pixels(pixels, _fixed_pixels(form), where)
            return pixels[:1]
        dtype, shape = self._array_form(head, size, where)
        _refuse_other_array(form, dtype, shape, where)
        return shape[: len(form.lengths)]

    def _array_form(self, head: bytes, size: int, where: str) -> tuple[str, tuple[int, ...]]:
        """Return dtype and shape of an array's file; raise a SampleError if it is none, or too large."""
        try:
            found = form_of_npy(head, size)
            if found is None:
                array = array_of_file(head, self._of_job.largest_sample)
                found = array.dtype, array.shape
        except UNREADABLE as error:
            raise _unusable("an array of .npy or .npz", str(error), where) from None
        dtype, shape = found
        refuse_larger(dtype.itemsize * int(np.prod(shape, dtype=object)), self._of_job.largest_sample, where)
        return str(dtype), shape

    def decode(self, form: CellForm, raw: bytes, length: int, where: str, picture_key: str = "") -> dict[str, Any]:
        """Return the values of a whole file by key: a recording of `length` frames has its rate beside it.

        An image under `picture_key` is a Picture.

        Raise a SampleError if it cannot be decoded, or is another than the form and the length say. Other errors of
        `decoded_audio` pass, such as a SettingsError for MP3.
        """
        if form.kind == "image":
            picture = self._images.picture(raw, where, _fixed_pixels(form))
            return {form.key: picture if form.key == picture_key else picture.array()}
        if form.kind == "audio":
            from loader_server.sources.audio.audio_files import recording_of  # needs soundfile

            audio, rate = recording_of(raw, where, length, self._of_job.largest_sample)
            return {form.key: audio, f"{form.key}_rate": rate}
        try:
            array = array_of_file(raw, self._of_job.largest_sample)
        except UNREADABLE as error:
            raise _unusable("an array of .npy or .npz", str(error), where) from None
        _refuse_other_array(form, str(array.dtype), array.shape, where)
        return {form.key: array if array.ndim else array[()]}  # a scalar, not an array without axes


def number_of(text: str, form: CellForm, where: str) -> Any:
    """Return a cell as a number of the form's dtype; raise a SampleError if it is none, or does not fit."""
    try:
        made = np.dtype(form.kind).type(int(text) if form.kind.startswith("int") else float(text))
    except (ValueError, OverflowError):
        raise _unusable(f"{form.kind}", f'"{text}"', where, "wrong_type") from None
    return made


def _fixed_pixels(form: CellForm) -> tuple[int, ...]:
    """Return rows, columns and channels that all images of a column have; nothing if they differ in size."""
    return () if form.is_wide else tuple(axis for axis in form.shape or () if axis is not None)


def _refuse_other_array(form: CellForm, dtype: str, shape: tuple[int, ...], where: str) -> None:
    """Raise a SampleError if an array has another dtype or inner shape than the form says."""
    inner: tuple[int | None, ...] | None = shape[1:] if shape else None
    if form.is_wide and inner:
        inner = (None, *inner[1:])
    if (dtype, inner) != (form.dtype, form.shape):
        axes = shown_axes(() if form.shape is None else (None, *form.shape))
        raise SampleError(
            reason="other_array",
            expected=f"{form.dtype} [{axes}], as the first array is",
            got=f"{dtype} {list(shape)}",
            where=where,
            remedy="Mend or remove the row"
            + (f', or write any_size = ["{form.key}"]' if form.shape and not form.is_wide else "")
            + ", then run loader-server index.",
        )


def versions_of_cells(forms: Iterable[CellForm]) -> Mapping[str, str]:
    """Return the versions of the libraries that decode files of these forms, by name.

    Raise importlib's PackageNotFoundError for one that was not installed as a package, and a SettingsError for one that
    is missing.
    """
    kinds = {form.kind for form in forms}
    versions = image_versions() if "image" in kinds else {}
    if "audio" in kinds:
        from loader_server.sources.audio.audio_files import audio_versions  # needs soundfile

        versions |= audio_versions()
    return versions


def _unusable(expected: str, got: str, where: str, reason: str = "undecodable") -> SampleError:
    """Return the SampleError by which a row is masked or becomes a bad row."""
    return SampleError(
        reason=reason,
        expected=expected,
        got=got,
        where=where,
        remedy="Mend or remove the row, then run loader-server index.",
    )
