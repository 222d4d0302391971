"""Arrays in files: what is read, and what is refused without being loaded."""

from __future__ import annotations

import io
import pickle
import zipfile
from typing import Any

import numpy as np
import pytest

from loader_server.sources.array_files import HEAD_OF_ARRAY, UNREADABLE, array_of_file, form_of_npy

ARRAYS = {
    "floats": np.arange(6, dtype=np.float32).reshape(2, 3),
    "columns first": np.asfortranarray(np.arange(6).reshape(2, 3)),
    "none": np.zeros((0, 4), np.int16),
    "a number": np.array(7.5),
    "flags": np.array([True, False]),
}


def npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def npz(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def archive(**members: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as made:
        for name, content in members.items():
            made.writestr(name, content)
    return file.getvalue()


@pytest.mark.parametrize("name", ARRAYS)
def test_an_array_is_what_was_saved(name: str) -> None:
    array = ARRAYS[name]
    for raw in (npy(array), npz(x=array)):
        found = array_of_file(raw, 10**6)
        assert (found.dtype, found.shape, found.tolist()) == (array.dtype, array.shape, array.tolist())
        assert found.flags.writeable
        assert found.flags.c_contiguous
    assert form_of_npy(npy(array)[:HEAD_OF_ARRAY], len(npy(array))) == (array.dtype, array.shape)
    assert form_of_npy(npz(x=array), 0) is None


@pytest.mark.parametrize(
    ("raw", "complaint"),
    [
        (pickle.dumps([1, 2]), "a pickle, as torch.save and pickle write it, which would run code"),
        (archive(**{"x/data.pkl": b"", "x/data/0": b""}), r"a pickle, .* numpy.save\(\"name.npy\", tensor.numpy\(\)\)"),
        (npz(a=[1], b=[2]), "an archive of a, b, of which it needs one array"),
        (archive(), "EOF|magic"),
        (archive(**{"a.txt": b"x"}), "an archive of a.txt"),
        (npz(a=np.zeros(10**6)), "an archive whose array has 8000"),
        (npy(np.array([{}], object)), "an array of Python objects, which are never read"),
        (npy(np.ones(9))[:-8], "buffer is smaller than requested size"),
        (npz(a=np.ones(9))[:-30], "not a zip file"),
        (b"no array at all", "magic string is not correct"),
        (b"", "EOF: reading magic string"),
    ],
)
def test_anything_else_is_refused(raw: bytes, complaint: str) -> None:
    with pytest.raises(UNREADABLE, match=complaint):
        array_of_file(raw, 10**6)


@pytest.mark.parametrize("change", [-8, 8])
def test_a_file_of_another_size_than_its_header_says_is_refused(change: int) -> None:
    raw = npy(np.ones(9))
    with pytest.raises(ValueError, match=f"{len(raw) + change} bytes in place of {len(raw)}, as the header says"):
        form_of_npy(raw, len(raw) + change)
