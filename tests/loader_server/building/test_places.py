"""Places of samples: the same bytes one by one and all at once, whatever was in the arrays before."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from loader_server.building.places import PackedPlaces, RowPlaces
from shared.wire.batch_layout import Field

FIELDS = (Field(key="x", dtype="int32", shape=(None,)), Field(key="y", dtype="int32", shape=(2,)))
SAMPLES = np.array([7, 3, 9])
VALUES = [
    {"x": np.array([1, 2]), "y": np.array([5, 6])},
    {"x": np.array([3]), "y": np.array([7, 8])},
    {"x": np.array([4, 5, 6]), "y": np.array([9, 9])},
]


class Source:
    """Gathers the values above."""

    def gather(self, samples, out):
        for row, sample in enumerate(samples.tolist()):
            values = VALUES[SAMPLES.tolist().index(sample)]
            for key in out.keys() & values.keys():
                out[key][row] = 0
                out[key][row, : len(values[key])] = values[key]
            out["x_length"][row] = len(values["x"])


def row_arrays() -> dict[str, Any]:
    shapes = {"x": (4, 3), "x_length": (4,), "y": (4, 2), "weight": (4,), "tag": (4,)}
    return {key: np.full(shape, 99, np.int64) for key, shape in shapes.items()}


def packed_arrays() -> dict[str, Any]:
    shapes = {"x": (3, 6), "x_segment": (3, 6), "x_position": (3, 6), "x_length": (3,), "weight": (3,), "tag": (3,)}
    return {key: np.full(shape, 99, np.int64) for key, shape in shapes.items()}


def in_rows(arrays, samples=SAMPLES):
    return RowPlaces(FIELDS, samples, arrays)


def packed(arrays, samples=SAMPLES):
    planned = SimpleNamespace(rows=np.array([0, 0, 1]), offsets=np.array([0, 3, 0]))
    return PackedPlaces("x", SimpleNamespace(planned=planned, samples=samples), arrays)


KINDS = pytest.mark.parametrize(("kind", "make"), [(in_rows, row_arrays), (packed, packed_arrays)])


def write_each(places, masked=()):
    places.begin()
    for at, values in enumerate(VALUES):
        places.mask(at) if at in masked else places.write(at, values)
    return places.finish(len(masked))


@KINDS
@pytest.mark.parametrize("masked", [[], [0], [1, 2], [0, 1, 2]])
def test_one_by_one_and_all_at_once_give_the_same_bytes(kind, make, masked):
    alone, together = make(), make()
    rows = write_each(kind(alone), masked)
    places = kind(together)
    places.begin()
    places.gather(Source(), masked)
    for at in masked:
        places.mask(at)
    assert places.finish(len(masked)) == rows
    assert {key: array.tolist() for key, array in together.items()} == {
        key: array.tolist() for key, array in alone.items()
    }


@KINDS
def test_what_was_written_and_is_cleared_is_as_if_it_had_been_masked(kind, make):
    cleared, masked = make(), make()
    places = kind(cleared)
    write_each(places)
    places.clear(1)
    write_each(kind(masked), [1])
    assert {key: array.tolist() for key, array in cleared.items()} == {
        key: array.tolist() for key, array in masked.items()
    }


@KINDS
def test_after_one_way_that_failed_another_leaves_no_trace_of_it(kind, make):
    again, fresh = make(), make()
    places = kind(again)
    write_each(places)
    assert write_each(places, [2]) == write_each(kind(fresh), [2])
    assert {key: array.tolist() for key, array in again.items()} == {
        key: array.tolist() for key, array in fresh.items()
    }


@KINDS
def test_a_batch_without_samples_has_empty_rows(kind, make):
    arrays = make()
    places = kind(arrays, SAMPLES[:0])
    places.begin()
    places.gather(Source(), [])
    assert places.finish(0) == 0
    assert set(arrays.pop("tag").tolist()) == {-1}
    assert not any(array.any() for array in arrays.values())


def test_rows_as_they_are():
    arrays = row_arrays()
    assert write_each(in_rows(arrays), [1]) == 2
    assert arrays["x"].tolist() == [[1, 2, 0], [0, 0, 0], [4, 5, 6], [0, 0, 0]]
    assert arrays["x_length"].tolist() == [2, 0, 3, 0]
    assert arrays["weight"].tolist() == [1, 0, 1, 0]
    assert arrays["tag"].tolist() == [7, 3, 9, -1]


def test_packed_rows_as_they_are():
    arrays = packed_arrays()
    places = packed(arrays)
    assert [places.room(at) for at in range(3)] == [{"x": 3}, {"x": 3}, {"x": 6}]
    assert write_each(places, [0]) == 2
    assert arrays["x"].tolist() == [[0, 0, 0, 3, 0, 0], [4, 5, 6, 0, 0, 0], [0] * 6]
    assert arrays["x_segment"].tolist() == [[0, 0, 0, 2, 0, 0], [1, 1, 1, 0, 0, 0], [0] * 6]
    assert arrays["x_length"].tolist() == [4, 3, 0]
    assert arrays["weight"].tolist() == [1, 1, 0]
    assert arrays["tag"].tolist() == [7, 9, -1]
