"""Columns of files, as `datasets` keeps recordings and images: what they hold, how long each is, and decoding.

Rules: a recording is decoded as one in a file of its own (`sources/audio`), and has its file's own rate beside it; an
image likewise (`sources/image_files`). All images of a column have one shape, that of the first one, unless the stream
resizes them or takes any size. What a column holds, recordings or images, its writer says, or else the first bytes
tell.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from loader_server.sources.any_size import AnySize, has_any_size
from loader_server.sources.arrays.arrow_columns import stored
from loader_server.sources.arrays.arrow_types import UNKNOWN, ColumnKind, unusable
from loader_server.sources.arrays.nested_lists import found_lengths
from loader_server.sources.image_files import Images, image_versions, refuse_other_pixels
from shared.errors import SampleError

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from loader_server.sources.source import OfJob
    from shared.errors import DataError

__all__ = ["FileColumns", "column_in_batch", "common_rates"]

#: What `datasets` calls columns that can be decoded, and what they hold.
_FEATURES = {"Audio": "audio", "Image": "image"}

#: First bytes of recordings; other files are tried as images.
_OF_AUDIO = (b"fLaC", b"OggS", b"ID3", b"\xff\xfb", b"\xff\xf3", b"\xff\xf2", b"FORM", b"RF64", b".snd")


def _files(array: Any) -> Iterator[bytes]:
    """Yield the bytes of the files of a column, without rows that have none."""
    return (raw.as_buffer().to_pybytes() for raw in stored(array) if raw.is_valid)


def _is_audio(raw: bytes) -> bool:
    """Return whether the first bytes of a file are those of a recording."""
    return raw.startswith(_OF_AUDIO) or (raw[:4] == b"RIFF" and raw[8:12] == b"WAVE")


def _no_files(key: str, got: str, where: str) -> DataError:
    """Return the DataError for a column of files that are neither recordings nor images."""
    return unusable(
        where,
        f'recordings or images in "{key}"',
        got,
        "Name the columns that can be read (columns = […]), or write the files into this one.",
    )


def _settled_lists(kind: ColumnKind, groups: Iterable[Any], where: str) -> ColumnKind:
    """Return the kind of a column of numbers with the lengths of inner lists, which the first rows tell.

    `groups` are the column's arrays, of which only as many are asked for as it takes. Raise a DataError if all inner
    lists are empty; errors of `groups` pass.
    """
    for array in groups if UNKNOWN in kind.inner else ():
        plain = stored(array)
        items = plain.flatten() if kind.ragged else plain
        kind = replace(kind, inner=found_lengths(items.flatten() if kind.cells else items, kind.inner))
        if UNKNOWN not in kind.inner:
            break
    if UNKNOWN in kind.inner:
        raise unusable(where, f'a row of "{kind.key}" that shows how long its inner lists are', "only empty ones")
    return kind


class FileColumns:
    """Looks at the files of columns, and decodes them.

    `colours` and `resize` say what becomes of images, `any_size` which of them and of lists in lists may differ along
    two axes, and `of_job` the most bytes that a sample may have once decoded.
    """

    def __init__(self, colours: str, resize: Sequence[int], of_job: OfJob, *, any_size: AnySize = False) -> None:
        self._of_job = of_job
        self._any_size = any_size
        self._how = colours, resize

    @cached_property
    def _images(self) -> Images:
        """Return what decodes images, made by the first; raise a SettingsError without Pillow."""
        return Images(*self._how, self._of_job.largest_sample)

    def settled(self, kind: ColumnKind, feature: str, groups: Iterable[Any], where: str) -> ColumnKind:
        """Return a kind with what only its rows tell: recordings or images, an image's shape, lengths of inner lists.

        `feature` is what `datasets` calls the column, or "", and `groups` its arrays, of which only as many are asked
        for as it takes. Raise a DataError if the column holds files of another kind, or if no row tells; a
        SettingsError for images without Pillow. Errors of `groups` pass.
        """
        any_size = has_any_size(self._any_size, kind.key, image=kind.is_file)
        if not kind.is_file:
            lists = kind.ragged and kind.holds == "numbers" and kind.inner
            return _settled_lists(
                replace(kind, inner=kind.inner[1:], cells=True) if lists and any_size else kind, groups, where
            )
        holds, got = _FEATURES.get(feature, ""), "no bytes in any row"
        if feature and not holds:
            raise _no_files(kind.key, f"a column of {feature}, as `datasets` calls it", where)
        for raw in (raw for array in groups if holds != "audio" for raw in _files(array)):
            if not holds and _is_audio(raw):
                holds = "audio"
                break
            try:
                pixels = self._images.shape_of(raw, where)
                return replace(kind, holds="image", pixels=(None, None, pixels[2]) if any_size else pixels)
            except SampleError as error:
                got = error.got  # its row will be a bad one; the next may tell
        if holds == "audio":
            return replace(kind, holds=holds)
        raise _no_files(kind.key, got, where)

    def look(
        self, array: Any, kind: ColumnKind, bad: Container[int]
    ) -> tuple[dict[str, NDArray[np.int64]], dict[int, tuple[str, str]]]:
        """Return the lengths of a column's rows by key, and for each row that cannot be used the reason and detail.

        Recordings have frames and a rate, images have rows of pixels, and columns if they differ in size; neither is
        decoded. Rows that are `bad` already are not looked at, and have lengths of 0, as all have that cannot be used.
        """
        second = ("_rate",) if kind.holds == "audio" else ("_width",) if kind.is_wide else ()
        keys = (kind.key, *(f"{kind.key}{name}" for name in second))
        lengths = {key: np.zeros(len(array), np.int64) for key in keys}
        faults: dict[int, tuple[str, str]] = {}
        for row, raw in enumerate(stored(array)):
            if row in bad or not raw.is_valid:
                continue
            try:
                found = self._measured(raw.as_buffer().to_pybytes(), kind)
            except SampleError as error:
                faults[row] = (
                    error.reason,
                    f'"{kind.key}": expected {error.expected}, got {error.got}. {error.remedy}',
                )
                continue
            for key, length in zip(keys, found, strict=True):
                lengths[key][row] = length
        return lengths, faults

    def _measured(self, raw: bytes, kind: ColumnKind) -> Sequence[int]:
        """Return a recording's frames and rate, or an image's rows, and its columns if they differ.

        Raise a SampleError if it cannot be used.
        """
        if kind.holds == "image":
            shape = self._images.shape_of(raw, kind.key)
            if kind.is_wide:
                return shape[:2]
            refuse_other_pixels(shape, kind.fixed_pixels, kind.key)
            return shape[:1]
        from loader_server.sources.audio.audio_files import audio_lengths  # needs soundfile

        return audio_lengths(raw, kind.key, self._of_job.largest_indexed)

    def decode(self, raw: bytes, kind: ColumnKind, frames: int, where: str, picture_key: str = "") -> dict[str, Any]:
        """Return the values of a file by key: a recording of so many frames, with its rate, or an image.

        An image under `picture_key` is a Picture.

        Raise a SampleError if it cannot be decoded, is too large, has another number of frames, or is an image of
        another shape than the first. Other errors of `decoded_audio` pass, such as a SettingsError for MP3.
        """
        if kind.holds == "image":
            picture = self._images.picture(raw, where, kind.fixed_pixels)
            return {kind.key: picture if kind.key == picture_key else picture.array()}
        from loader_server.sources.audio.audio_files import recording_of  # needs soundfile

        audio, rate = recording_of(raw, where, frames, self._of_job.largest_sample)
        return {kind.key: audio, f"{kind.key}_rate": rate}

    @staticmethod
    def versions(kinds: Iterable[ColumnKind]) -> dict[str, str]:
        """Return the versions of the libraries that decode these columns, by name; none if none holds files.

        Raise importlib's PackageNotFoundError for one that was not installed as a package, and a SettingsError for one
        that is missing.
        """
        holds = {kind.holds for kind in kinds}
        versions = image_versions() if "image" in holds else {}
        if "audio" in holds:
            from loader_server.sources.audio.audio_files import audio_versions  # needs soundfile

            versions |= audio_versions()
        return versions


def column_in_batch(kind: ColumnKind) -> tuple[str, str, tuple[int | None, ...], bool]:
    """Return a column's key, dtype, further axes, and whether its length varies, as its values are once decoded.

    Of values of any size, the first of these axes is None.
    """
    if kind.is_wide:
        return kind.key, kind.dtype, (None, *kind.inner) if kind.cells else kind.pixels[1:], True
    if kind.holds == "audio":
        return kind.key, "float32", (), True
    return kind.key, kind.dtype, kind.pixels or kind.inner, kind.ragged and not kind.pixels


def common_rates(kinds: Iterable[ColumnKind], numbers: Mapping[str, NDArray[np.int64]]) -> dict[str, int]:
    """Return for each column of recordings the rate that all of them have, or 0 if they differ.

    `numbers` are the columns of the index, of which there has to be a sample.
    """
    rates = {kind.key: numbers[f"length_{kind.key}_rate"] for kind in kinds if kind.holds == "audio"}
    return {key: int(column[0]) if (column == column[0]).all() else 0 for key, column in rates.items()}
