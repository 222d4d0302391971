"""The marks of packed rows: segment ids count within a row, positions within a sample."""

import numpy as np

from loader_server.building.packed_rows import PlaceInRow, places_in_rows, write_marks


def test_samples_are_counted_in_each_row_and_have_room_up_to_the_next() -> None:
    places = list(places_in_rows(np.array([0, 0, 2]), np.array([0, 2, 0]), 7))
    assert places == [PlaceInRow(0, 0, 1, 2), PlaceInRow(0, 2, 2, 5), PlaceInRow(2, 0, 1, 7)]


def test_segment_ids_and_positions() -> None:
    segments, positions = np.zeros((2, 2, 4), np.int32)
    places = places_in_rows(np.array([0, 0, 1]), np.array([0, 2, 0]), 4)
    for place, length in zip(places, (2, 1, 3), strict=True):
        write_marks(segments, positions, place, length)
    assert segments.tolist() == [[1, 1, 2, 0], [1, 1, 1, 0]]
    assert positions.tolist() == [[0, 1, 0, 0], [0, 1, 2, 0]]
