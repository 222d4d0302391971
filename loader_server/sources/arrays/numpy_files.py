"""Arrays in `.npy` and `.npz` files, mapped into memory, and which of them belong together.

Rules: an array `<key>` has a sample a row; `<key>_values` with `<key>_offsets` (or just `values` with `offsets`) is a
ragged one, whose sample i has the values from offset i to before offset i + 1. Of a key of any size these are the cells
of a table, whose rows and columns `<key>_shapes` has. Arrays are mapped and not read, except
compressed members of an `.npz`, which are unpacked into memory. Pickles are never loaded.
"""

from __future__ import annotations

import zipfile
import zlib
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np

from loader_server.sources.batch_columns import selected
from shared.errors import DataError
from shared.wire.batch_layout import DTYPES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from loader_server.sources.files.opening import Files

__all__ = ["ArrayColumn", "open_columns"]

#: How many files a message names at most.
_MOST_NAMED = 3

#: In a local header of a zip file: where the sizes of name and extra field stand, and where the name begins.
_NAME_SIZE_AT, _NAME_AT = 26, 30


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayColumn:
    """One key of all samples: a row of `values` each, or, if there are offsets, the values between two of them.

    `shapes` has the rows and columns of each sample whose values are cells.
    """

    key: str
    values: NDArray[Any]
    offsets: NDArray[np.integer] | None = None
    shapes: NDArray[np.integer] | None = None

    @property
    def samples(self) -> int:
        """Return how many samples the column has: one fewer than there are offsets, or one for each value."""
        return len(self.values) if self.offsets is None else len(self.offsets) - 1


def open_columns(
    files: Files, paths: Sequence[str], wanted: Sequence[str], any_size: Sequence[str] = ()
) -> list[ArrayColumn]:
    """Return the columns of the wanted keys, in that order, or of all keys if none is named.

    Those of `any_size` have shapes.

    Raise a DataError if there is no array, if a file is missing, broken or holds pickles, if a key is missing or there
    twice, or if columns differ in length, have no usable dtype, or have offsets that do not fit their values; a
    ReadError if a remote file cannot be fetched. Other errors of `_arrays_of` pass through.
    """
    arrays: dict[str, NDArray[Any]] = {}
    for path in paths:
        for name, array in _arrays_of(files, path).items():
            if name in arrays:
                raise _unusable(files.where(path), f'one array "{name}"', "another one", "Keys are called like arrays.")
            arrays[name] = array
    where = ", ".join(map(files.where, paths[:_MOST_NAMED]))
    if not arrays:
        raise _unusable(where, "at least one array", "none", "Write the file again, with numpy.savez.")
    columns = {column.key: column for column in _paired(arrays, any_size, where)}
    chosen = selected(columns, wanted, "an array", where, "Mend `keys`.")
    for column in chosen:
        _refuse_unusable(column, where)
        if column.samples != chosen[0].samples:
            raise _unusable(
                where,
                f'{chosen[0].samples} samples of "{column.key}", as of "{chosen[0].key}"',
                str(column.samples),
                "Arrays of one data set are equally long.",
            )
    return chosen


def _arrays_of(files: Files, path: str) -> Mapping[str, NDArray[Any]]:
    """Return the arrays of a file by name, mapped, but for compressed members, which are read into memory.

    Raise a DataError if it is missing, or not a whole file of plain arrays, or the disk fails; a ReadError if a remote
    file cannot be fetched. SettingsError of `facts`, MachineError of `keep_local`, and a RuntimeError of zipfile, as
    for an encrypted member, pass through.
    """
    files.facts(path)
    try:
        name, file = PurePosixPath(path), files.keep_local(path)
        # Plain arrays over the mapping: indexing costs several times as much with numpy's memmap class.
        if name.suffix != ".npz":
            return {name.stem: np.load(file, mmap_mode="r", allow_pickle=False).view(np.ndarray)}
        with zipfile.ZipFile(file) as archive:
            members = [member for member in archive.infolist() if member.filename.endswith(".npy")]
            return {member.filename.removesuffix(".npy"): _member(file, archive, member) for member in members}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        # numpy's message advises allow_pickle=True, which would run whatever the file holds, so it is not passed on.
        raise _unusable(
            files.where(path),
            "a whole file of plain arrays, no pickles",
            "pickled objects, or no arrays at all" if "allow_pickle" in str(error) else str(error),
        ) from None


def _member(file: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> NDArray[Any]:
    """Return an array of an `.npz`: mapped if it is stored, read into memory if it is compressed.

    Raise a ValueError if it holds Python objects or is no array; an OSError, EOFError, BadZipFile or zlib's error if it
    is damaged or cannot be read; a RuntimeError if it is encrypted or compressed in an unknown way.
    """
    with archive.open(member) as stream:
        # A compressed member has no bytes that could be mapped.
        if member.compress_type != zipfile.ZIP_STORED:
            return np.lib.format.read_array(stream, allow_pickle=False)
        # The header tells where the values lie, so that they can be mapped; numpy itself would read them.
        version = np.lib.format.read_magic(stream)
        header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = header(stream)
        skipped = stream.tell()
    if dtype.hasobject:
        raise ValueError("Python objects, which only unpickling could load")
    # mmap refuses an empty range.
    if 0 in shape:
        return np.zeros(shape, dtype)
    start, order = _start_of(file, member) + skipped, "F" if fortran else "C"
    return np.memmap(file, dtype, "r", start, shape, order).view(np.ndarray)  # type: ignore[call-overload,no-any-return]


def _start_of(file: Path, member: zipfile.ZipInfo) -> int:
    """Return at which byte of the file a member's content begins, by its local header.

    Raise an OSError if the file cannot be read, or a ValueError if it ends within that header.
    """
    with file.open("rb") as stream:
        stream.seek(member.header_offset)
        header = stream.read(_NAME_AT)
    # The local header may have another extra field than the central directory, which zipfile reads: its own sizes
    # count.
    return member.header_offset + _NAME_AT + int(np.frombuffer(header, "<u2", 2, _NAME_SIZE_AT).sum())


def _paired(arrays: Mapping[str, NDArray[Any]], any_size: Sequence[str], where: str) -> list[ArrayColumn]:
    """Return the columns that these arrays make, ragged ones of values and offsets, of any size with shapes.

    Raise a DataError for a single number, which has no rows, or if a key of any size lacks one of the three arrays.
    """
    columns = []
    shapes = {key: _shapes_of(arrays, key, where) for key in any_size}
    for name, array in arrays.items():
        stem = name.removesuffix("values")
        offsets = arrays.get(f"{stem}offsets") if name.endswith("values") else None
        if offsets is not None:
            # An array that is called just `values` has no name in front of that: it is its own key.
            key = stem.rstrip("_") or name
            columns.append(ArrayColumn(key=key, values=array, offsets=offsets, shapes=shapes.get(key)))
        elif not any(array is other for other in shapes.values()) and not (
            name.endswith("offsets") and f"{name.removesuffix('offsets')}values" in arrays
        ):
            columns.append(ArrayColumn(key=name, values=array))
    for column in columns:
        if not column.values.ndim:
            raise _unusable(where, f'an array "{column.key}" with a row a sample', "a single number")
    return columns


def _shapes_of(arrays: Mapping[str, NDArray[Any]], key: str, where: str) -> NDArray[Any]:
    """Return the rows and columns of each sample of a key of any size; raise a DataError if an array for it lacks."""
    # An array that is called just `values` has no name in front, and so have the two beside it.
    stem = "" if key == "values" else f"{key}_"
    needed = [f"{stem}{name}" for name in ("values", "offsets", "shapes")]
    lacking = [name for name in needed if name not in arrays]
    if lacking:
        raise _unusable(
            where,
            f'arrays {", ".join(needed)} of "{key}", as any_size says',
            f"no {lacking[0]}",
            "Write the cells of all samples, where those of each begin, and the rows and columns of each; or mend "
            "any_size.",
        )
    return arrays[needed[-1]]


def _refuse_unusable(column: ArrayColumn, where: str) -> None:
    """Raise a DataError if a column's dtype is not supported, or its offsets or shapes do not fit its values."""
    if str(column.values.dtype) not in DTYPES:
        expected = f'"{column.key}" of a dtype of {", ".join(sorted(DTYPES))}'
        raise _unusable(where, expected, str(column.values.dtype), "Convert it by astype, or leave it out by `keys`.")
    offsets = column.offsets
    if offsets is None:
        return
    if offsets.ndim != 1 or offsets.dtype.kind not in "iu" or not len(offsets):
        expected = f'offsets of "{column.key}": whole numbers in one axis, one more than there are samples'
        raise _unusable(where, expected, f"{offsets.dtype} {list(offsets.shape)}")
    shapes = column.shapes
    if shapes is not None and (shapes.shape != (column.samples, 2) or shapes.dtype.kind not in "iu"):
        expected = f'shapes of "{column.key}": rows and columns of each of {column.samples} samples'
        raise _unusable(where, expected, f"{shapes.dtype} {list(shapes.shape)}")
    # Only both ends: that offsets never fall is checked where lengths are measured, which reads all of them.
    if (int(offsets[0]), int(offsets[-1])) != (0, len(column.values)):
        expected = f'offsets of "{column.key}" from 0 to its {len(column.values)} values'
        raise _unusable(
            where,
            expected,
            f"from {offsets[0]} to {offsets[-1]}",
            "Values and offsets are of different data: write both anew.",
        )


def _unusable(where: str, expected: str, got: str, remedy: str = "") -> DataError:
    """Return the DataError for files whose arrays cannot be used."""
    remedy = (
        remedy or "Write it anew by numpy.save or numpy.savez, or mend `paths`, which are relative to the job file."
    )
    return DataError(expected=expected, got=got, where=where, remedy=remedy)
