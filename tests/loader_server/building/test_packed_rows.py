"""The marks of packed rows: segment ids count within a row, positions within a sample."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from loader_server.building.packed_rows import PackedRows, PlaceInRow, write_marks


def test_samples_are_counted_in_each_row_and_have_room_up_to_the_next() -> None:
    places = PackedRows(np.array([0, 0, 2]), np.array([0, 2, 0]), 7).places
    assert places == [PlaceInRow(0, 0, 1, 2), PlaceInRow(0, 2, 2, 5), PlaceInRow(2, 0, 1, 7)]


def test_segment_ids_and_positions() -> None:
    segments, positions = np.zeros((2, 2, 4), np.int32)
    places = PackedRows(np.array([0, 0, 1]), np.array([0, 2, 0]), 4).places
    for place, length in zip(places, (2, 1, 3), strict=True):
        write_marks(segments, positions, place, length)
    assert segments.tolist() == [[1, 1, 2, 0], [1, 1, 1, 0]]
    assert positions.tolist() == [[0, 1, 0, 0], [0, 1, 2, 0]]


@given(st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=4), min_size=1, max_size=4), st.data())
def test_all_samples_at_once_lie_where_they_do_one_by_one(rows_of: list[list[int]], data: st.DataObject) -> None:
    length = max(map(sum, rows_of))
    lengths = np.array([one for row in rows_of for one in row])
    rows = np.repeat(np.arange(len(rows_of)), list(map(len, rows_of)))
    offsets = np.concatenate([np.cumsum([0, *row[:-1]]) for row in rows_of])
    places = PackedRows(rows, offsets, length)
    one_by_one = places.places
    ends = [*(offsets[at + 1] if rows[at] == rows[at + 1] else length for at in range(len(rows) - 1)), length]
    assert [place.room for place in one_by_one] == (np.array(ends) - offsets).tolist()
    assert places.most_room == max(place.room for place in one_by_one)
    assert places.firsts.tolist() == [place.segment == 1 for place in one_by_one]
    kept = np.array(data.draw(st.lists(st.sampled_from(range(len(rows))), unique=True)), np.int64)
    values = np.zeros((len(kept), places.most_room), np.int32)
    expected = np.zeros((3, len(rows_of), length), np.int32)
    for at, sample in enumerate(kept.tolist()):
        place, own = one_by_one[sample], np.arange(1, lengths[sample] + 1) + 10 * sample
        values[at, : len(own)] = own
        expected[0, place.row, place.offset : place.offset + len(own)] = own
        write_marks(expected[1], expected[2], place, len(own))
    got = np.zeros_like(expected)
    places.write(kept, lengths[kept], values, (got[0], got[1], got[2]))
    assert np.array_equal(got, expected)
