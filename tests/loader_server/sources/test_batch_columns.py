"""Columns of a batch's samples: lists of numbers as one column, and several columns joined into one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader_server.sources.batch_columns import Ragged, interleaved, joined_parts, parted, ragged, write_padded

INT32 = np.dtype(np.int32)


@given(st.lists(st.tuples(st.integers(0, 2), st.lists(st.integers(0, 99), max_size=4)), min_size=1, max_size=9))
def test_columns_of_several_members_come_into_one_in_the_samples_order(samples: list[tuple[int, list[int]]]) -> None:
    members = sorted({member for member, _ in samples})
    places = [np.array([at for at, (member, _) in enumerate(samples) if member == one]) for one in members]
    rows = [[samples[at][1] for at in own] for own in places]
    joined = interleaved([ragged(own, INT32) for own in rows], places)
    assert isinstance(joined, Ragged)
    assert joined.values.tolist() == [value for _, row in samples for value in row]
    assert joined.lengths.tolist() == [len(row) for _, row in samples]
    assert interleaved([[str(row) for row in own] for own in rows], places) == [str(row) for _, row in samples]
    numbers = interleaved([np.array([len(row) for row in own]) for own in rows], places)
    assert isinstance(numbers, np.ndarray)
    assert numbers.tolist() == [len(row) for _, row in samples]


def test_columns_of_different_kinds_do_not_come_into_one() -> None:
    with pytest.raises((TypeError, ValueError)):
        interleaved([["a"], ragged([[1]], INT32)], [np.array([0]), np.array([1])])


@pytest.mark.parametrize("number", [2**31, -(2**31) - 1, 2**70])
def test_a_number_that_the_dtype_cannot_hold_is_refused(number: int) -> None:
    with pytest.raises(OverflowError):
        ragged([[1], [number]], INT32)


@given(
    lengths=st.lists(st.integers(0, 5), min_size=1, max_size=8),
    inner=st.sampled_from([(), (3,), (2, 2)]),
    longer=st.integers(0, 2),
    data=st.data(),
)
def test_rows_hold_their_values_and_zeros_behind_them(
    lengths: list[int], inner: tuple[int, ...], longer: int, data: st.DataObject
) -> None:
    starts = np.append(0, np.cumsum(lengths))
    values = np.arange(1, 1 + starts[-1] * int(np.prod(inner)), dtype=np.int32).reshape(-1, *inner)
    rows = np.array(data.draw(st.lists(st.integers(0, len(lengths) - 1), min_size=1)))
    out = np.full((len(rows), max(lengths) + longer, *inner), -1, np.int32)
    write_padded(values, starts[rows], np.array(lengths)[rows], out)
    for row, one in zip(rows.tolist(), out, strict=True):
        expected = values[starts[row] : starts[row + 1]]
        assert np.array_equal(one[: len(expected)], expected)
        assert not one[len(expected) :].any()


@given(st.lists(st.binary(max_size=5), max_size=5))
def test_parts_of_a_sample_are_taken_apart_again(parts: list[bytes]) -> None:
    assert [bytes(part) for part in parted(joined_parts(parts), len(parts))] == parts
