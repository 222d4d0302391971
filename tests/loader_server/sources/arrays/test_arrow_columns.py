"""Arrow's arrays as plain ones, slices of arrays too, and which of their rows hold a null."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from loader_server.sources.arrays.arrow_columns import lengths_and_faults, value_of, values_of
from loader_server.sources.arrays.arrow_types import kind_of

ROWS: dict[str, tuple[Any, list[Any]]] = {
    "number": (pa.int16(), [1, 2, 3, 4]),
    "flag": (pa.bool_(), [True, False, True, True]),
    "vector": (pa.list_(pa.float32(), 2), [[1, 2], [3, 4], [5, 6], [7, 8]]),
    "list": (pa.list_(pa.int64()), [[1], [2, 3], [], [4]]),
    "large list": (pa.large_list(pa.uint8()), [[1], [2, 3], [], [4]]),
    "list of vectors": (pa.list_(pa.list_(pa.int32(), 2)), [[[1, 2]], [[3, 4], [5, 6]], [], [[7, 8]]]),
    "text": (pa.string(), ["a", "běž", "", "d"]),
    "large text": (pa.large_string(), ["a", "běž", "", "d"]),
    "bytes": (pa.binary(), [b"a", b"\xff\x00", b"", b"d"]),
    "category": (pa.dictionary(pa.int8(), pa.string()), ["a", "b", "b", "a"]),
}


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize(("start", "stop"), [(0, 4), (1, 4), (1, 3), (2, 2)])
def test_rows_hold_what_they_held_in_slices_too(name: str, start: int, stop: int) -> None:
    arrow, rows = ROWS[name]
    array = pa.array(rows, arrow).slice(start, stop - start)
    kind = kind_of("x", arrow)
    assert kind is not None
    found = values_of(array, kind)
    ends = found.offsets if found.offsets is not None else np.arange(stop - start + 1)
    for place, row in enumerate(rows[start:stop]):
        value = value_of(memoryview(found.values[ends[place] : ends[place + 1]].tobytes()), kind)
        assert (value if isinstance(value, str | bytes) else value.tolist()) == row
    lengths, faults = lengths_and_faults([array], [kind], set())
    assert faults == {}
    ragged = isinstance(rows[0], str | bytes) or "list" in name
    assert {key: each.tolist() for key, each in lengths.items()} == (
        {"x": [len(row) for row in rows[start:stop]]} if ragged else {}
    )


@pytest.mark.parametrize(
    ("arrow", "rows", "bad"),
    [
        (pa.list_(pa.int32()), [[0], [], [None, 3], [4, None], None, [5]], [2, 3, 4]),
        (pa.list_(pa.int32(), 2), [[1, 2], [None, 3], None, [4, None], [5, 6]], [1, 2, 3]),
        (pa.list_(pa.list_(pa.int32(), 2)), [[[1, 2]], [[1, 2], [3, None]], [None], []], [1, 2]),
        (pa.int32(), [1, None, 3], [1]),
        (pa.string(), [None, "a", ""], [0]),
    ],
)
def test_a_null_anywhere_makes_its_row_a_bad_one(arrow: Any, rows: list[Any], bad: list[int]) -> None:
    kind = kind_of("x", arrow)
    assert kind is not None
    for start in range(len(rows)):
        _, faults = lengths_and_faults([pa.array(rows, arrow).slice(start)], [kind], set())
        assert sorted(faults) == [row - start for row in bad if row >= start]
        assert {reason for reason, _ in faults.values()} <= {"null"}
