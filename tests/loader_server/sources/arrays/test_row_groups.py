"""Row groups in memory of a fixed size: whatever is evicted when, what is gathered is right."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader_server.sources.arrays.arrow_columns import ColumnValues
from loader_server.sources.arrays.arrow_types import ColumnKind
from loader_server.sources.arrays.row_groups import RowGroups
from shared.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Sequence

KINDS = (
    ColumnKind(key="tokens", dtype="int32", ragged=True),
    ColumnKind(key="frames", dtype="float32", ragged=True, inner=(3,)),
    ColumnKind(key="speaker", dtype="float64", inner=(2,)),
    ColumnKind(key="label", dtype="bool"),
)


class Data:
    """Groups of these sizes, of random content."""

    def __init__(self, sizes: Sequence[int]) -> None:
        random = np.random.default_rng(1)
        self.firsts = np.append(0, np.cumsum(sizes))
        self.rows = [
            {
                "tokens": random.integers(1, 99, random.integers(0, 6), np.int32),
                "frames": random.random((random.integers(0, 3), 3), np.float32),
                "speaker": random.random(2),
                "label": random.random() < 0.5,
            }
            for _ in range(self.firsts[-1])
        ]
        self.asked: list[int] = []

    def decode(self, group: int) -> list[ColumnValues]:
        self.asked.append(group)
        rows = self.rows[self.firsts[group] : self.firsts[group + 1]]
        columns = []
        for kind in KINDS:
            values = [row[kind.key] for row in rows]
            if kind.ragged:
                offsets = np.append(0, np.cumsum([len(one) for one in values]))
                columns.append(ColumnValues(values=np.concatenate(values), offsets=offsets))
            else:
                columns.append(ColumnValues(values=np.array(values)))
        return columns

    def groups(self, most_bytes: int) -> RowGroups:
        return RowGroups(KINDS, self.firsts, most_bytes, self.decode)

    def check(self, groups: RowGroups, rows: Sequence[int]) -> None:
        """Gather these rows, and look at each."""
        out = {
            "tokens": np.full((len(rows), 6), 9, np.int32), "tokens_length": np.full(len(rows), 9, np.int32),
            "frames": np.full((len(rows), 4, 3), 9, np.float32), "frames_length": np.full(len(rows), 9, np.int32),
            "speaker": np.zeros((len(rows), 2)), "label": np.zeros(len(rows), np.bool_),
        }  # fmt: skip
        groups.gather(np.array(rows), out)
        for place, row in enumerate(rows):
            for key, value in self.rows[row].items():
                length = len(value) if f"{key}_length" in out else None
                assert np.array_equal(out[key][place][slice(length) if length is not None else ...], value)
                assert length is None or (not out[key][place][length:].any() and out[f"{key}_length"][place] == length)
            assert groups.values(row) == [np.asarray(value).tobytes() for value in self.rows[row].values()]


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=8),
    most_bytes=st.integers(1200, 5000),
    data=st.data(),
)
def test_batches_are_right_whatever_has_to_make_room(sizes: list[int], most_bytes: int, data: st.DataObject) -> None:
    made = Data(sizes)
    groups = made.groups(most_bytes)
    for _ in range(4):
        rows = data.draw(st.lists(st.integers(0, sum(sizes) - 1), min_size=1, max_size=12))
        made.check(groups, rows)


def test_what_fits_is_decoded_once_and_one_row_of_each_group_is_missing_before() -> None:
    made = Data([5] * 4)
    groups = made.groups(100_000)
    rows = np.array([19, 0, 7, 1, 18, 8])
    assert groups.missing(rows).tolist() == [1, 2, 0]
    for _ in range(3):
        made.check(groups, rows.tolist())
    assert (sorted(made.asked), groups.decoded) == ([0, 1, 3], 3)
    assert groups.missing(rows).tolist() == []
    assert groups.missing(np.array([12])).tolist() == [0]


def test_groups_that_came_first_make_room() -> None:
    made = Data([4] * 6)
    sizes = [sum(column.values.nbytes for column in made.decode(group)) for group in range(6)]
    groups = made.groups(3 * max(sizes) + 1000)
    made.asked.clear()
    for group in range(6):
        groups.bring(group)
    here = [group for group in range(6) if not len(groups.missing(np.array([4 * group])))]
    assert here == list(range(here[0], 6))
    assert 2 <= len(here) < 6


def test_threads_that_want_one_group_decode_it_once() -> None:
    made, begun, gate = Data([5] * 2), threading.Event(), threading.Event()

    def decode(group: int) -> list[ColumnValues]:
        begun.set()
        assert gate.wait(60)
        return made.decode(group)

    groups = RowGroups(KINDS, made.firsts, 100_000, decode)
    threads = [threading.Thread(target=groups.bring, args=(1,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert begun.wait(60)
    gate.set()
    for thread in threads:
        thread.join()
    assert made.asked == [1]


def test_a_group_that_never_fits_is_refused_with_the_setting_that_helps() -> None:
    with pytest.raises(
        DataError, match=r"row groups of at most 100 bytes, as `cache` allows, got a group of \d+ bytes.*Raise"
    ):
        Data([9]).groups(100).bring(0)


def test_somebody_is_told_once_if_groups_are_decoded_again_and_again(caplog: pytest.LogCaptureFixture) -> None:
    made = Data([4] * 6)
    groups = made.groups(1000)
    for round_ in range(40):
        made.check(groups, [0, 5, 10, 15, 20])
        assert round_ or groups.decoded >= 5
    assert caplog.text.count("row groups are decoded again and again") == 1
