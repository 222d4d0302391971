"""Columns of a batch's samples: refused where they are not as declared, written as padding one by one does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader_server.sources.batch_columns import Ragged, ragged
from loader_server.transforms.on_columns import ColumnsOfBatch, column_of
from shared.wire.batch_layout import Field

INT32 = np.dtype(np.int32)
TOKENS = Field(key="tokens", dtype="int32", shape=(None,))


@given(st.lists(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=5), max_size=6), st.integers(0, 3))
def test_ragged_lists_are_written_a_row_each_and_zeros_behind(rows: list[list[int]], more: int) -> None:
    column = ragged(rows, INT32)
    assert (column.values.dtype, column.lengths.tolist()) == (INT32, [len(row) for row in rows])
    width = max(map(len, rows), default=0) + more
    out = {"tokens": np.full((len(rows), width), 9, np.int32), "tokens_length": np.full(len(rows), 9, np.int32)}
    ColumnsOfBatch({"tokens": column}).gather(np.arange(len(rows)), out)
    assert out["tokens"].tolist() == [row + [0] * (width - len(row)) for row in rows]
    assert out["tokens_length"].tolist() == [len(row) for row in rows]


@given(st.lists(st.integers(0, 4), max_size=5), st.integers(0, 3))
def test_an_array_a_sample_is_written_into_a_row_and_zeros_behind(lengths: list[int], more: int) -> None:
    column = [np.arange(3 * length, dtype=np.float32).reshape(length, 3) + 1 for length in lengths]
    width = max(lengths, default=0) + more
    out = {
        "audio": np.full((len(lengths), width, 3), 9, np.float32),
        "audio_length": np.full(len(lengths), 9, np.int32),
    }
    ColumnsOfBatch({"audio": column}).gather(np.arange(len(lengths)), out)
    assert out["audio_length"].tolist() == lengths
    for row, value in zip(out["audio"], column, strict=True):
        assert row[: len(value)].tolist() == value.tolist()
        assert not row[len(value) :].any()


def test_a_value_a_sample_is_written_as_it_is() -> None:
    out = {"third": np.zeros(3, np.float32)}
    ColumnsOfBatch({"third": np.array([1, 2, 4], np.float32)}).gather(np.arange(3), out)
    assert out["third"].tolist() == [1, 2, 4]


@pytest.mark.parametrize(("samples", "width"), [(2, 1), (3, 2)])
def test_what_has_no_room_or_is_too_few_is_refused(samples: int, width: int) -> None:
    out = {"tokens": np.zeros((samples, width), np.int32), "tokens_length": np.zeros(samples, np.int32)}
    with pytest.raises(ValueError, match='"tokens": 2 samples, at most 2 steps'):
        ColumnsOfBatch({"tokens": ragged([[1, 2], [3]], INT32)}).gather(np.arange(samples), out)


def test_a_column_is_as_its_field_says() -> None:
    column, one = ragged([[1]], INT32), np.zeros(1, np.float32)
    assert column_of(TOKENS, {"tokens": column}) is column
    assert column_of(Field(key="third", dtype="float32", shape=()), {"third": one}) is one


@pytest.mark.parametrize(
    ("field", "column"),
    [
        (TOKENS, None),
        (TOKENS, ["a text"]),
        (TOKENS, [np.zeros(1, np.int64)]),
        (TOKENS, [np.zeros(1, np.int32), np.zeros((1, 1), np.int32)]),
        (Field(key="tokens", dtype="int32", shape=()), [np.zeros((), np.int32)]),
        (TOKENS, np.zeros(1, np.int32)),
        (TOKENS, ragged([[1]], np.dtype(np.int64))),
        (Field(key="tokens", dtype="int32", shape=()), ragged([[1]], INT32)),
        (Field(key="tokens", dtype="int32", shape=(None, 80)), ragged([[1]], INT32)),
        (Field(key="tokens", dtype="float32", shape=()), np.zeros(1)),
    ],
)
def test_a_column_of_another_dtype_or_shape_is_refused(field: Field, column: list[Any] | Ragged | None) -> None:
    with pytest.raises(TypeError, match='"tokens" is no column of'):
        column_of(field, {} if column is None else {"tokens": column})
