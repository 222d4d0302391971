"""What transforms made, as bytes and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as own

from loader_server.feature_cache.values import as_bytes, from_bytes

_DTYPES = st.sampled_from(["float32", "float64", "int16", "int32", "int64", "uint8", "bool", "complex64"])
_ARRAYS = own.arrays(_DTYPES, own.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5))
_PLAIN = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.binary()
_VALUES = _ARRAYS | _PLAIN | st.text(st.characters(exclude_categories=["Cs"])) | st.just(np.float32(0.5))


@given(st.dictionaries(st.text("abc"), _VALUES, max_size=5))
def test_values_come_back_as_they_were(values: dict[str, Any]) -> None:
    blob = as_bytes(values)
    assert blob is not None
    back = from_bytes(bytearray(blob))
    assert list(back) == list(values)
    for key, value in values.items():
        assert type(back[key]) is type(value)
        if isinstance(value, np.ndarray):
            assert (back[key].dtype, back[key].shape) == (value.dtype, value.shape)
            assert back[key].tobytes() == value.tobytes()
            assert back[key].flags.writeable
            assert back[key].flags.aligned
        else:
            assert back[key] == value


@pytest.mark.parametrize(
    "value",
    [[1, 2], {"a": 1}, object(), np.array([None]), np.ma.array([1]), 2**70, "\ud800", float],
    ids=lambda value: type(value).__name__,
)
def test_what_has_no_bytes_is_not_kept(value: object) -> None:
    assert as_bytes({"good": 1, "other": value}) is None
