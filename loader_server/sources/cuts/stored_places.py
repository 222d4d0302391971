"""Arrays that Lhotse stored, found while an index is made: features, and arrays of custom fields.

A manifest says how an array is stored, and where. Rules: an array, or the chunks of it that a sample needs, is one run
of bytes of a file, which is read later without Lhotse, and without HDF5's library. Shapes and dtypes are those of the
files where their headers tell, and compared with the manifest; compressed arrays are compared when they are decoded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from decimal import ROUND_HALF_UP, Decimal
from typing import TYPE_CHECKING, Any

import numpy as np

from loader_server.sources.array_files import HEAD_OF_ARRAY, UNREADABLE, form_of_npy
from loader_server.sources.cuts.plain_cuts import UnusableCut, refused_if_malformed
from loader_server.sources.files.archived_parts import ArchiveFacts
from loader_server.sources.remote.urls import is_url, joined
from loader_server.sources.sample_limits import OVER_LARGEST, size_texts
from shared.errors import DataError, ReadError
from shared.extras import library
from shared.wire.batch_layout import DTYPES

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from loader_server.sources.files.opening import FileFacts, Files

__all__ = [
    "PACKINGS",
    "SHAR",
    "ArrayPlaces",
    "RootedPaths",
    "StoredArray",
    "frames_in",
    "refuse_placeholder",
]

#: How the bytes of an array are packed: a .npy file, an array compressed by lilcom, several of them one after another,
#: or the values alone.
PACKINGS = ("npy", "lilcom", "chunks", "raw")

#: The storage type, and type of audio source, of what lies in a tar file of a Shar folder.
SHAR = "shar"

#: More rows than any array has.
_ALL_ROWS = 2**62
#: As many bytes from the beginning of a compressed array as tell its shape.
_HEAD_OF_LILCOM = 64

#: Frames of a chunk of storage type "lilcom_chunky".
_CHUNK_FRAMES = 500

#: How far a cut may begin before its features, or an array of a custom field, as in Lhotse.
_BEFORE_FEATURES_S, _BEFORE_ARRAY_S = 1e-3, 1e-5

_COPY = "copy them by cuts.copy_feats(NumpyFilesWriter(…)), or as arrays of such a type"
#: Remedies for storage types that are not read here; others get `_COPY`.
_REMEDIES = {"kaldiio": 'read Kaldi\'s archives by source = "kaldi"'}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredArray:
    """The part of an array that a sample needs: the run of bytes that has it, and what these hold.

    `content` is the digest of a local file, or 0. `shape` is that of the array in the run of bytes. The sample is
    `rows` of it from `first` on; if there is one fewer, the last is repeated, as Lhotse does for features.
    """

    path: str
    facts: FileFacts
    content: int
    offset: int
    nbytes: int
    packing: str
    dtype: str
    shape: tuple[int, ...]
    #: Bytes of each compressed chunk, if there are several.
    chunks: tuple[int, ...] = ()
    first: int = 0
    rows: int = 0


@dataclass(frozen=True, slots=True)
class RootedPaths:
    """How paths in manifests are meant: relative to a root, which is relative to the job file's folder, or URLs."""

    base: Path
    root: str

    def below_root(self, path: str) -> str:
        """Return a path of a manifest, relative to the job file, or its URL."""
        return joined(self.root, path)

    def here(self, path: str) -> str:
        """Return a path of a manifest on this machine, or its URL."""
        below = self.below_root(path)
        return below if is_url(below) else str(self.base / below)


class ArrayPlaces:
    """Finds arrays by their manifests; each file's size and content are noted once. Close it after use.

    What has to be unpacked for a sample may have `largest` bytes at most (0: no limit).
    """

    def __init__(self, files: Files, paths: RootedPaths, largest: int) -> None:
        self._files = files
        self._paths = paths
        self._largest = largest
        self._archives = ArchiveFacts(files)
        #: Open HDF5 files by path.
        self._hdf5: dict[str, Any] = {}

    def close(self) -> None:
        """Close the HDF5 files that are open."""
        for file in self._hdf5.values():
            file.close()
        self._hdf5.clear()

    def features(self, manifest: Mapping[str, Any], start_s: float, duration_s: float) -> StoredArray:
        """Return the features of a part of a recording, of as many frames as Lhotse gives.

        Raise an UnusableCut if they cannot be read, are others than the manifest says, or have no frames there; a
        ReadError if a remote file cannot be fetched, an OSError if a local one cannot be read. SettingsError of
        `facts`, and for a library that is missing, and MachineError of reading pass through.
        """
        with refused_if_malformed():
            shape = int(manifest["num_frames"]), int(manifest["num_features"])
            shift, rate = manifest["frame_shift"], manifest["sampling_rate"]
            before_s = start_s - manifest["start"]
            if before_s < -_BEFORE_FEATURES_S:
                _refuse_outside(start_s, duration_s, manifest["start"])
            first = 0 if math.isclose(start_s, manifest["start"]) else frames_in(before_s, shift, rate)
            rows = frames_in(duration_s, shift, rate)
            found = self._found(manifest, shape, (first, first + rows))
            if rows - found.rows > 1:  # Lhotse forgives one, and gives fewer than it promises otherwise
                _refuse_outside(start_s, duration_s, manifest["start"], first + found.rows)
            return replace(found, rows=rows)

    def array(self, manifest: Mapping[str, Any], start_s: float, duration_s: float) -> StoredArray:
        """Return the array of a custom field, or the part of it that belongs to a part of a recording.

        Raise what `features` raises.
        """
        with refused_if_malformed():
            if "array" not in manifest:
                shape = tuple(map(int, manifest["shape"]))
                return self._found(manifest, shape, (0, shape[0] if shape else 0))
            if manifest["temporal_dim"] != 0:
                axis = manifest["temporal_dim"]
                raise UnusableCut("other_axis", f"expected an array whose first axis is time, got axis {axis}")
            shape = tuple(map(int, manifest["array"]["shape"]))
            before_s = start_s - manifest["start"]
            if before_s < -_BEFORE_ARRAY_S:
                _refuse_outside(start_s, duration_s, manifest["start"])
            shift = manifest["frame_shift"]
            first = 0 if math.isclose(start_s, manifest["start"]) else min(_steps_in(before_s, shift), shape[0])
            return self._found(manifest["array"], shape, (first, first + _steps_in(duration_s, shift)))

    def whole(self, manifest: Mapping[str, Any]) -> StoredArray:
        """Return all of the features that a manifest names, however much of them a cut needs.

        Raise what `features` raises.
        """
        with refused_if_malformed():
            shape = int(manifest["num_frames"]), int(manifest["num_features"])
            return self._found(manifest, shape, (0, _ALL_ROWS))

    def _found(self, manifest: Mapping[str, Any], shape: tuple[int, ...], wanted: tuple[int, int]) -> StoredArray:
        """Return the rows from the first to before the last of `wanted` of an array, which has this shape.

        Rows beyond its end are left out. Raise an UnusableCut if there are none, or the file cannot be used; raise
        besides what `features` raises, and an error of Python's if the manifest has another shape.
        """
        kind = manifest["storage_type"]
        if kind not in _FINDERS:
            remedy = _REMEDIES.get(kind, _COPY)
            expected = ", ".join(name for name in _FINDERS if name != SHAR)
            raise UnusableCut("storage_type", f'expected one of {expected}, got "{kind}": {remedy}')
        try:
            found: StoredArray = getattr(self, _FINDERS[kind])(manifest, shape, wanted)
        except ReadError:  # the store cannot be reached: that says nothing about the row
            raise
        except DataError as error:
            path = manifest["storage_path"]
            raise UnusableCut("missing_file", f"expected {error.expected}, got {error.got}: {path}") from None
        if found.offset + found.nbytes > found.facts.bytes:
            detail = f"expected {found.nbytes} bytes from byte {found.offset} of {found.path} on"
            raise UnusableCut("truncated", f"{detail}, got {max(0, found.facts.bytes - found.offset)}")
        if found.dtype not in DTYPES:
            raise UnusableCut("wrong_type", f"expected an array of numbers, got {found.dtype}: {found.path}")
        nbytes = np.dtype(found.dtype).itemsize * math.prod(found.shape)
        if self._largest and nbytes > self._largest and found.packing != "raw":
            raise UnusableCut(OVER_LARGEST, "expected {}, got {}".format(*size_texts(nbytes, self._largest)))
        if not found.shape:
            return found
        rows = min(found.first + wanted[1] - wanted[0], found.shape[0]) - found.first
        if rows <= 0:
            raise UnusableCut("empty_array", f"expected rows of {found.path} from {wanted[0]} on, got none")
        found = replace(found, rows=rows)
        return _narrowed(found) if found.packing == "raw" else found

    # --- storage types: each method returns the run of bytes with the wanted rows, `first` counted in it ---

    def _in_own_file(self, manifest: Mapping[str, Any], shape: tuple[int, ...], wanted: tuple[int, int]) -> StoredArray:
        """Return the array in a file of its own: .npy, or compressed."""
        path = self._paths.below_root(joined(manifest["storage_path"], manifest["storage_key"].lstrip("/")))
        facts, content = self._archives.of(path)
        packing = "npy" if manifest["storage_type"] == "numpy_files" else "lilcom"
        found = self._of_form(path, (facts, content), (0, facts.bytes), packing, wanted[0])
        _refuse_other_shape(shape, found.shape, path)
        return found

    def _in_shard(self, manifest: Mapping[str, Any], shape: tuple[int, ...], wanted: tuple[int, int]) -> StoredArray:
        """Return the array in a member of a tar file of a Shar folder."""
        path = manifest["storage_path"]
        refuse_placeholder(manifest["storage_key"])
        offset, nbytes, suffix = manifest["storage_key"].split(":")
        packing = {".npy": "npy", ".llc": "lilcom"}[suffix]
        found = self._of_form(path, self._archives.of(path), (int(offset), int(nbytes)), packing, wanted[0])
        # The manifest in a shard counts the rows that the whole recording had.
        _refuse_other_shape((*found.shape[:1], *shape[1:]), found.shape, path)
        return found

    def _of_form(
        self, path: str, file: tuple[FileFacts, int], place: tuple[int, int], packing: str, first: int
    ) -> StoredArray:
        """Return the array at a place of a file, by its header; raise an UnusableCut if there is none."""
        offset, nbytes = place
        head = self._files.read(path, offset, max(0, min(nbytes, HEAD_OF_ARRAY, file[0].bytes - offset)))
        dtype, found = _form_of(head, nbytes, packing, path)
        return StoredArray(
            path=path,
            facts=file[0],
            content=file[1],
            offset=offset,
            nbytes=nbytes,
            packing=packing,
            dtype=dtype,
            shape=found,
            first=first,
        )

    def _in_chunks(self, manifest: Mapping[str, Any], shape: tuple[int, ...], wanted: tuple[int, int]) -> StoredArray:
        """Return the chunks with the wanted rows, of an array that was compressed in chunks of 500 rows."""
        _lilcom()
        path = self._paths.below_root(manifest["storage_path"])
        facts, content = self._archives.of(path)
        begin, *sizes = map(int, manifest["storage_key"].split(","))
        if len(sizes) != -(-shape[0] // _CHUNK_FRAMES):
            got = f"{len(sizes)} chunks: {path}"
            raise UnusableCut("other_array", f"expected chunks of {shape[0]} rows, 500 each, got {got}")
        low = min(wanted[0] // _CHUNK_FRAMES, len(sizes) - 1)
        high = max(low + 1, min(-(-wanted[1] // _CHUNK_FRAMES), len(sizes)))
        read = min(high * _CHUNK_FRAMES, shape[0]) - low * _CHUNK_FRAMES
        return StoredArray(
            path=path,
            facts=facts,
            content=content,
            offset=begin + sum(sizes[:low]),
            nbytes=sum(sizes[low:high]),
            packing="chunks",
            dtype="float32",
            shape=(read, *shape[1:]),
            chunks=tuple(sizes[low:high]),
            first=wanted[0] - low * _CHUNK_FRAMES,
        )

    def _in_hdf5(self, manifest: Mapping[str, Any], shape: tuple[int, ...], wanted: tuple[int, int]) -> StoredArray:
        """Return the array in a dataset of an HDF5 file, whose values lie in one piece."""
        path = self._paths.below_root(manifest["storage_path"])
        facts, content = self._archives.of(path)
        dataset = self._dataset(path, manifest["storage_key"])
        offset = dataset.id.get_offset()
        if offset is None:
            raise UnusableCut("other_array", f"expected values in one piece, got chunks or others: {path}")
        place = int(offset), int(dataset.id.get_storage_size())
        if manifest["storage_type"] == "lilcom_hdf5":
            found = self._of_form(path, (facts, content), place, "lilcom", wanted[0])
        else:
            found = StoredArray(
                path=path,
                facts=facts,
                content=content,
                offset=place[0],
                nbytes=place[1],
                packing="raw",
                dtype=dataset.dtype.name if dataset.dtype.isnative else str(dataset.dtype),
                shape=dataset.shape,
                first=wanted[0],
            )
        _refuse_other_shape(shape, found.shape, path)
        return found

    def _dataset(self, path: str, key: str) -> Any:
        """Return a dataset of an HDF5 file; raise an UnusableCut if the file is none, or has no such dataset."""
        h5py = library("h5py", extra="hdf5", use="which finds arrays in HDF5 files")
        try:
            if path not in self._hdf5:
                with self._files.local(path) as place:
                    self._hdf5[path] = h5py.File(place, "r")
            dataset = self._hdf5[path][key]
        except (OSError, KeyError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # of the disk
            raise UnusableCut("undecodable", f'expected "{key}" in an HDF5 file, got {error}: {path}') from None
        if not isinstance(dataset, h5py.Dataset) or dataset.external or dataset.is_virtual:
            raise UnusableCut("other_array", f'expected an array "{key}" in the file itself, got another thing: {path}')
        return dataset


#: How arrays of each storage type are found.
_FINDERS: Mapping[str, str] = {
    "numpy_files": "_in_own_file",
    "numpy_hdf5": "_in_hdf5",
    "lilcom_files": "_in_own_file",
    "lilcom_url": "_in_own_file",
    "lilcom_chunky": "_in_chunks",
    "lilcom_hdf5": "_in_hdf5",
    SHAR: "_in_shard",
}


def frames_in(duration_s: float, frame_shift_s: float, rate: int) -> int:
    """Return how many frames of features a duration has, rounded as Lhotse does: by way of samples.

    Raise a ZeroDivisionError if a frame has no samples, and a TypeError if a value is no number.
    """
    hop = round(frame_shift_s * rate)
    return int((round(duration_s * rate) + hop // 2) // hop)


def _steps_in(duration_s: float, frame_shift_s: float) -> int:
    """Return how many steps of an array with time a duration has, rounded as Lhotse does: halves up.

    Raise a ZeroDivisionError if a step takes no time, and a TypeError if a value is no number.
    """
    return int(Decimal(round(duration_s / frame_shift_s, ndigits=8)).quantize(Decimal(0), rounding=ROUND_HALF_UP))


def _narrowed(found: StoredArray) -> StoredArray:
    """Return bare values reduced to the rows that the sample needs, which are all of its bytes then."""
    row_bytes = found.nbytes // found.shape[0]
    return replace(
        found,
        offset=found.offset + found.first * row_bytes,
        nbytes=found.rows * row_bytes,
        shape=(found.rows, *found.shape[1:]),
        first=0,
    )


def _form_of(head: bytes, nbytes: int, packing: str, path: str) -> tuple[str, tuple[int, ...]]:
    """Return dtype and shape of an array of so many bytes, by its beginning; raise an UnusableCut if it is none."""
    try:
        if packing == "lilcom":
            return "float32", tuple(_lilcom().get_shape(head[:_HEAD_OF_LILCOM]))
        form = form_of_npy(head, nbytes)
    except UNREADABLE as error:
        raise UnusableCut("undecodable", f"expected an array as Lhotse stores it, got {error}: {path}") from None
    if form is None:
        raise UnusableCut("undecodable", f"expected an array in .npy, got {head[:6]!r}: {path}")
    return str(form[0]), form[1]


def _lilcom() -> Any:
    """Return the library that decompresses features; raise a SettingsError if it is missing."""
    return library("lilcom", extra="lilcom", use="which decompresses features of Lhotse")


def refuse_placeholder(place: str) -> None:
    """Raise an UnusableCut if a manifest of a Shar folder stands for data that its tar files lack."""
    if not place:
        raise UnusableCut("no_data", "expected data in the tar files of the Shar folder, got none for this cut")


def _refuse_outside(start_s: float, duration_s: float, begin_s: float, frames: int | None = None) -> None:
    """Raise an UnusableCut for a part that lies outside of its features; `frames` is how many these have."""
    has = "" if frames is None else f", {frames} frames"
    raise UnusableCut(
        "outside_features",
        f"expected a part within features from {begin_s:g} s on{has}, got {duration_s:g} s from {start_s:g} s on",
    )


def _refuse_other_shape(promised: tuple[int, ...], found: tuple[int, ...], path: str) -> None:
    """Raise an UnusableCut if an array has another shape than its manifest says."""
    if tuple(found) != promised:
        expected = f"an array of shape {list(promised)}, as the manifest says"
        raise UnusableCut("other_array", f"expected {expected}, got {list(found)}: {path}")
