"""Padding a batch at once gives what padding sample after sample gives."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from loader_server.sources.arrays.gathering import joined_parts, parted, write_padded


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
