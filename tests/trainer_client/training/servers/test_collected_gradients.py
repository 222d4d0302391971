"""Gradients of rows: merged, and cut to a part."""

from __future__ import annotations

import numpy as np

from trainer_client.training.servers.collected_gradients import merge_rows, rows_between


def test_a_row_that_is_named_several_times_has_the_sum():
    numbers, values = merge_rows(np.array([7, 2, 7, 0, 7], np.int32), np.arange(10, dtype=np.float32).reshape(5, 2))
    assert (numbers.tolist(), numbers.dtype) == ([0, 2, 7], np.int64)
    assert values.tolist() == [[6, 7], [2, 3], [12, 15]]


def test_no_rows_stay_none():
    numbers, values = merge_rows(np.zeros(0, np.int64), np.zeros((0, 3), np.float32))
    assert (numbers.shape, values.shape) == ((0,), (0, 3))


def test_a_part_has_its_rows_counted_from_its_first():
    rows = merge_rows(np.array([1, 4, 5, 9]), np.array([[1.0], [4.0], [5.0], [9.0]]))
    numbers, values = rows_between(rows, 4, 9)
    assert (numbers.tolist(), values.tolist()) == ([0, 1], [[4.0], [5.0]])
