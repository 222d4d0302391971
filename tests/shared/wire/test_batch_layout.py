"""Where tensors lie in a payload."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.wire.batch_layout import ALIGNMENT, DTYPES, BucketShape, Field, fields_of_batch, layout_of

FIELDS = st.lists(
    st.builds(
        Field,
        key=st.text("abcdefgh", min_size=1, max_size=4),
        dtype=st.sampled_from(sorted(DTYPES)),
        shape=st.tuples() | st.tuples(st.none() | st.integers(0, 5)) | st.tuples(st.none(), st.integers(1, 5)),
    ),
    min_size=1,
    max_size=6,
    unique_by=lambda field: field.key,
)


@settings(deadline=None)
@given(FIELDS, st.integers(1, 9), st.integers(0, 40))
def test_aligned_apart_and_found_again(fields, rows, length):
    batch = fields_of_batch(fields)
    layout = layout_of(batch, BucketShape(rows=rows, lengths={field.key: length for field in fields}))
    end = 0
    for tensor in layout.tensors:
        assert tensor.offset % ALIGNMENT == 0
        assert end <= tensor.offset < end + ALIGNMENT
        assert tensor.shape[0] == rows
        end = tensor.offset + tensor.nbytes
    assert end <= layout.nbytes < end + ALIGNMENT
    assert layout.nbytes % ALIGNMENT == 0

    payload = np.zeros(layout.nbytes, np.uint8)
    arrays = layout.arrays(payload)
    assert list(arrays) == [field.key for field in batch]
    for count, array in enumerate(arrays.values(), 1):
        array.view(np.uint8)[...] = count
    for count, (tensor, array) in enumerate(zip(layout.tensors, layout.arrays(payload).values(), strict=True), 1):
        assert (array.dtype, array.shape) == (np.dtype(tensor.dtype), tensor.shape)
        assert (array.view(np.uint8) == count).all()
        assert not array.size or np.shares_memory(array, payload)


def test_a_batch_has_lengths_weight_and_tag():
    batch = fields_of_batch(
        (Field(key="audio", dtype="float32", shape=(None, 80)), Field(key="id", dtype="int8", shape=()))
    )
    assert [(field.key, field.dtype, field.shape) for field in batch] == [
        ("audio", "float32", (None, 80)),
        ("id", "int8", ()),
        ("audio_length", "int32", ()),
        ("weight", "float32", ()),
        ("tag", "int64", ()),
    ]
    assert [field.padded for field in batch] == [True, False, False, False, False]


def test_offsets_are_what_they_were():
    batch = fields_of_batch((Field(key="audio", dtype="float32", shape=(None, 3)),))
    layout = layout_of(batch, BucketShape(rows=5, lengths={"audio": 7}))
    assert [(t.key, t.shape, t.offset) for t in layout.tensors] == [
        ("audio", (5, 7, 3), 0),
        ("audio_length", (5,), 448),
        ("weight", (5,), 512),
        ("tag", (5,), 576),
    ]
    assert layout.nbytes == 640


@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_dtypes_are_fixed_width(dtype):
    assert np.dtype(dtype).name == dtype
    assert not np.dtype(dtype).hasobject
