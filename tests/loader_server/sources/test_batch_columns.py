"""Columns of a batch's samples: lists of numbers as one column, and several columns joined into one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader_server.sources.batch_columns import Ragged, interleaved, ragged

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
