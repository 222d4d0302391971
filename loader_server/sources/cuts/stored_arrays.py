"""Arrays that Lhotse stored, once there is an index: its columns, and the reading and decoding of what they name.

Rules: each array is a run of bytes of a file, read from its place; a file that has changed since indexing is a
ReadError. Nothing is unpickled.
"""

from __future__ import annotations

from functools import partial
from importlib.metadata import PackageNotFoundError
from operator import attrgetter
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from loader_server.installed import version_of
from loader_server.sources.array_files import UNREADABLE, array_of_npy
from loader_server.sources.cuts.stored_places import PACKINGS, StoredArray
from loader_server.sources.files.archived_parts import ArchivedParts
from shared.errors import SampleError
from shared.extras import library

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from loader_server.sources.files.opening import Files
    from loader_server.sources.manifest.cell_forms import CellForm
    from loader_server.sources.source import Indexed

__all__ = ["StoredColumn", "array_columns", "array_strings", "array_versions", "unpacked"]

#: Numbers of the index for each array, and where a StoredArray has them. The place of the array among those of a sample
#: follows the name, as does its length under `length_<key>`.
_NUMBERS = {
    "bytes": "facts.bytes",
    "mtime_ns": "facts.version",
    "content": "content",
    "offset": "offset",
    "nbytes": "nbytes",
    "first": "first",
}


def array_columns(form: CellForm, place: int, arrays: Sequence[StoredArray]) -> dict[str, list[int]]:
    """Return the index's numbers of the arrays of a key, which is the one at `place` among those of a sample."""
    numbers = {f"{name}_{place}": list(map(attrgetter(fact), arrays)) for name, fact in _NUMBERS.items()}
    numbers[f"packing_{place}"] = [PACKINGS.index(array.packing) for array in arrays]
    # Rows of the array that the bytes hold, of which the sample is a part.
    numbers[f"held_{place}"] = [array.shape[0] if array.shape else 0 for array in arrays]
    return numbers | {f"length_{key}": [array.rows for array in arrays] for key in form.lengths}


def array_strings(place: int, arrays: Sequence[StoredArray]) -> dict[str, list[str]]:
    """Return the index's strings of the arrays at `place` among those of a sample: files, and sizes of chunks."""
    return {
        f"file_{place}": [array.path for array in arrays],
        f"chunks_{place}": [",".join(map(str, array.chunks)) for array in arrays],
    }


class StoredColumn(ArchivedParts):
    """The arrays of all samples under one key; `place` is that of the key among those of a sample.

    `where` is how messages name a sample.
    """

    def __init__(self, files: Files, indexed: Indexed, form: CellForm, place: int, where: Callable[[int], str]) -> None:
        numbers = {name: indexed.numbers[f"{name}_{place}"] for name in (*_NUMBERS, "packing", "held")}
        paths = indexed.strings[f"file_{place}"]
        super().__init__(files, numbers, partial(_entry, paths))
        self._chunks = indexed.strings[f"chunks_{place}"]
        self._form = form
        self._lengths = indexed.numbers[f"length_{form.key}"] if form.lengths else None
        self._where = where

    def decode(self, sample: int, raw: bytes) -> Any:
        """Return the sample's array, a new one that may be changed, or its number if it has no axes.

        Raise a SampleError if the bytes are not the array that the index promises; a SettingsError if the library that
        decompresses it is missing.
        """
        form, numbers = self._form, self._numbers
        # Manifests state all axes of an array, so that none but the first varies.
        inner = cast("tuple[int, ...]", form.shape)
        shape = () if form.shape is None else (int(numbers["held"][sample]), *inner)
        packing = PACKINGS[numbers["packing"][sample]]
        array = unpacked(raw, packing, (form.dtype, shape), self._chunks[sample], self._where(sample))
        if self._lengths is None:
            return array[()]
        first, rows = int(numbers["first"][sample]), int(self._lengths[sample])
        cut = array[first : first + rows]
        # One frame fewer than the cut has is forgiven, as by Lhotse.
        return cut if len(cut) == rows else np.concatenate([cut, cut[-1:]])


def array_versions() -> dict[str, str]:
    """Return the version of the library that decompresses arrays, by its name; none if it is not installed."""
    try:
        return {"lilcom": version_of("lilcom")}
    except PackageNotFoundError:
        return {}


def unpacked(raw: bytes, packing: str, form: tuple[str, tuple[int, ...]], chunks: str, where: str) -> NDArray[Any]:
    """Return the array that a run of bytes holds, of this dtype and shape, as a new one.

    `chunks` are the sizes of compressed chunks, with commas between. Raise a SampleError if the bytes cannot be
    unpacked or hold another array; a SettingsError if the library that decompresses them is missing.
    """
    try:
        array = _unpacked(raw, packing, form, chunks)
    except UNREADABLE as error:
        raise _unusable("undecodable", "an array as Lhotse stores it", str(error), where) from None
    except RuntimeError as error:  # of lilcom, for bytes that it did not write
        raise _unusable("undecodable", "an array as Lhotse stores it", str(error), where) from None
    if (str(array.dtype), array.shape) != form:
        expected = f"{form[0]} {list(form[1])}, as the manifest says"
        raise _unusable("other_array", expected, f"{array.dtype} {list(array.shape)}", where)
    return array


def _unpacked(raw: bytes, packing: str, form: tuple[str, tuple[int, ...]], chunks: str) -> NDArray[Any]:
    """Return the array that a run of bytes holds; raise a ValueError or another error if it cannot be unpacked."""
    if packing == "npy":
        return array_of_npy(raw)
    if packing == "raw":
        bare: NDArray[Any] = np.frombuffer(raw, form[0]).reshape(form[1]).copy()
        return bare
    lilcom = library("lilcom", extra="lilcom", use="which decompresses features of Lhotse")
    if packing == "lilcom":
        return _of_numbers(lilcom.decompress(raw))
    ends = np.cumsum([int(size) for size in chunks.split(",")]).tolist()
    parts = [raw[start:end] for start, end in zip((0, *ends), ends, strict=False)]
    return np.concatenate([_of_numbers(lilcom.decompress(part)) for part in parts])


def _of_numbers(array: Any) -> NDArray[Any]:
    """Return a decompressed array; raise a ValueError if there is none, as for bytes that lilcom did not write."""
    if not isinstance(array, np.ndarray):
        raise ValueError("bytes that lilcom cannot decompress")
    return array


def _entry(column: Any, sample: int) -> str:
    return str(column[sample])


def _unusable(reason: str, expected: str, got: str, where: str) -> SampleError:
    """Return the SampleError by which a sample is masked."""
    return SampleError(
        reason=reason,
        expected=expected,
        got=got,
        where=where,
        remedy="Mend or remove the array, then run loader-server index.",
    )
