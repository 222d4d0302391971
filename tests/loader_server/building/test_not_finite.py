from __future__ import annotations

import numpy as np
import pytest

from loader_server.building.not_finite import (
    float_keys,
    is_all_finite,
    mask_row,
    mask_stretch,
    not_finite,
    rows_not_finite,
)
from shared.wire.batch_layout import Field

VALUES = (np.nan, -np.nan, np.inf, -np.inf)
DTYPES = ("float16", "float32", "float64")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(6, 5), (6,), (6, 2, 3)])
def test_rows_with_such_a_value_anywhere_are_found(dtype: str, shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(3).standard_normal(shape).astype(dtype)
    assert rows_not_finite(values).tolist() == []
    for row, bad in ((0, np.nan), (2, np.inf), (5, -np.inf)):
        values.reshape(6, -1)[row, -1] = bad
    assert rows_not_finite(values).tolist() == [0, 2, 5]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", VALUES)
def test_each_such_value_is_found_alone(dtype: str, value: float) -> None:
    values = np.zeros((3, 4), dtype)
    values[1, 2] = value
    assert rows_not_finite(values).tolist() == [1]
    assert not is_all_finite(values)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_largest_numbers_are_finite_although_their_squares_are_not(dtype: str) -> None:
    most = np.finfo(dtype).max
    assert rows_not_finite(np.array([[most, -most], [0, most]], dtype)).tolist() == []
    assert rows_not_finite(np.array([[most, -most], [np.inf, most]], dtype)).tolist() == [1]


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_array_without_values_has_none(dtype: str) -> None:
    assert rows_not_finite(np.zeros((0, 4), dtype)).tolist() == []
    assert rows_not_finite(np.zeros((4, 0), dtype)).tolist() == []


def test_only_keys_of_floats_are_looked_at() -> None:
    fields = [Field(key=dtype, dtype=dtype, shape=()) for dtype in (*DTYPES, "int32", "bool", "uint8")]
    assert float_keys(fields) == DTYPES


def test_a_masked_row_keeps_its_number_alone() -> None:
    arrays = {"x": np.ones((2, 3)), "weight": np.ones(2), "tag": np.array([4, 5])}
    mask_row(arrays, 1, 5)
    assert arrays["x"].tolist() == [[1, 1, 1], [0, 0, 0]]
    assert (arrays["weight"].tolist(), arrays["tag"].tolist()) == ([1, 0], [4, 5])


def test_a_packed_row_ends_with_the_last_sample_that_is_left() -> None:
    arrays = {
        "x": np.arange(1.0, 7)[None],
        "x_segment": np.array([[1, 1, 2, 2, 2, 0]]),
        "x_position": np.array([[0, 1, 0, 1, 2, 0]]),
        "x_length": np.array([5]),
        "weight": np.ones(1),
    }
    mask_stretch(arrays, "x", 0, slice(2, 6))
    assert arrays["x"].tolist() == [[1, 2, 0, 0, 0, 0]]
    assert arrays["x_segment"].tolist() == [[1, 1, 0, 0, 0, 0]]
    assert arrays["x_position"].tolist() == [[0, 1, 0, 0, 0, 0]]
    assert (arrays["x_length"].tolist(), arrays["weight"].tolist()) == ([2], [1])
    mask_stretch(arrays, "x", 0, slice(0, 2))
    assert (arrays["x_length"].tolist(), arrays["weight"].tolist()) == ([0], [0])


def test_the_error_names_key_and_setting() -> None:
    error = not_finite("audio", "a.wav")
    assert error.reason == "not_finite"
    assert 'a.wav: expected "audio" of finite numbers, as not_finite = "mask" asks for, got NaN' in str(error)
