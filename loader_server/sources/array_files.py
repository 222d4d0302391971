"""Arrays in files: `.npy`, and `.npz` archives of one array, without ever loading a pickle.

Rules: the bytes say what a file is, not its name. A file that its header does not fit is refused before memory is taken
for its values. ValueError, or another error of `UNREADABLE`, says what is wrong; the caller knows where.
"""

from __future__ import annotations

import functools
import io
import zipfile
from tokenize import TokenError
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["HEAD_OF_ARRAY", "UNREADABLE", "array_of_file", "array_of_npy", "form_of_npy"]

#: What numpy's parsers, and zipfile, raise for malformed bytes.
UNREADABLE = (ValueError, TypeError, SyntaxError, EOFError, OverflowError, TokenError, KeyError, zipfile.BadZipFile)

#: As many bytes from the beginning of a `.npy` file as its header has at most.
HEAD_OF_ARRAY = 2**16

_READERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}

#: First bytes of `.npy` files, zip archives, and pickles.
_NPY, _ZIP, _PICKLE = b"\x93NUMPY", b"PK\x03\x04", b"\x80"

_PICKLED = (
    "a pickle, as torch.save and pickle write it, which would run code when it is loaded: save the array by "
    'numpy.save("name.npy", tensor.numpy())'
)


def array_of_file(raw: bytes, largest: int = 0) -> NDArray[Any]:
    """Return a copy of the array in a `.npy` file, or of the only one in a `.npz` archive.

    Raise a ValueError if the bytes are something else, such as a pickle or a file of torch.save, if an archive has
    another number of arrays, or if one would unpack to more than `largest` bytes (0: no limit); other errors of
    `UNREADABLE` pass for a broken file.
    """
    if raw.startswith(_ZIP):
        return array_of_npy(_only_member(raw, largest))
    if raw.startswith(_PICKLE):
        raise ValueError(_PICKLED)
    return array_of_npy(raw)


def _only_member(raw: bytes, largest: int) -> bytes:
    """Return the bytes of the only `.npy` file in an archive; raise as `array_of_file` does."""
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        members = archive.infolist()
        if any(member.filename.endswith("data.pkl") for member in members):
            raise ValueError(_PICKLED)
        if len(members) != 1 or not members[0].filename.endswith(".npy"):
            names = ", ".join(member.filename.removesuffix(".npy") for member in members[:9]) or "nothing"
            raise ValueError(f"an archive of {names}, of which it needs one array: save each as a file of its own")
        # Before it is unpacked: a small archive may claim any size.
        if largest and members[0].file_size > largest:
            raise ValueError(f"an archive whose array has {members[0].file_size} bytes, of {largest} at most")
        return archive.read(members[0])


def form_of_npy(head: bytes, size: int) -> tuple[np.dtype[Any], tuple[int, ...]] | None:
    """Return dtype and shape of a `.npy` file of so many bytes, by its beginning; None for any other file.

    Raise a ValueError if the file is not as long as its header says, or another error of `UNREADABLE`.
    """
    if not head.startswith(_NPY):
        return None
    begin = _begin_of_values(head)
    dtype, shape, _ = _header(head[:begin])
    promised = begin + dtype.itemsize * int(np.prod(shape, dtype=object))
    if size != promised:
        raise ValueError(f"{size} bytes in place of {promised}, as the header says")
    return dtype, shape


def _begin_of_values(raw: bytes) -> int:
    # After the magic string and two bytes of version: the header's length, 2 bytes in version 1, 4 later.
    width = 2 if raw[6:7] == b"\1" else 4
    return 8 + width + int.from_bytes(raw[8 : 8 + width], "little")


def array_of_npy(raw: bytes) -> NDArray[Any]:
    """Return a copy of the array in a `.npy` file; raise a ValueError if the bytes are none, or fewer than it claims.

    Raise it too for an unsupported version and for arrays of Python objects; errors of `_header` pass. `numpy.load`
    takes three times as long, mostly for the header, and allocates what a header claims before it looks for the values,
    so that a damaged header could take all memory.
    """
    begin = _begin_of_values(raw)
    dtype, shape, order = _header(raw[:begin])
    view = np.frombuffer(raw, dtype, int(np.prod(shape)), begin).reshape(shape, order=order)
    return np.array(view, order="C")  # a view would be read-only, and keep all the file's bytes


@functools.lru_cache(maxsize=4096)
def _header(header: bytes) -> tuple[np.dtype[Any], tuple[int, ...], Any]:
    """Return dtype, shape and order from a `.npy` header, cached because the arrays of a data set share few headers.

    Raise a ValueError for a version that is not supported, and for arrays of Python objects, whose loading runs code;
    for a malformed header a ValueError too, or another error of numpy's parser, such as tokenize's TokenError.
    """
    file = io.BytesIO(header)
    version = np.lib.format.read_magic(file)
    if version not in _READERS:
        raise ValueError(
            f"an array in version {version[0]}.{version[1]} of the format, which only names of fields need"
        )
    shape, fortran, dtype = _READERS[version](file)
    if dtype.hasobject:
        raise ValueError("an array of Python objects, which are never read")
    return dtype, shape, "F" if fortran else "C"
