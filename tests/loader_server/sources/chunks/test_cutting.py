"""Where samples are cut: nothing lost, nothing twice, in order, and the last chunk may be short."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader_server.sources.chunks.cutting import ChunkTable

LENGTHS = st.lists(st.integers(0, 60), min_size=1, max_size=30)


@given(LENGTHS, st.integers(1, 20))
def test_each_step_is_in_exactly_one_chunk_in_order(lengths, steps):
    table = ChunkTable(np.array(lengths), np.array(steps), np.array(steps))
    at = table.extents(np.arange(len(table)))
    for recording, length in enumerate(lengths):
        own = at.recordings == recording
        covered = np.concatenate([np.arange(*span) for span in zip(at.starts[own], at.stops[own], strict=True)])
        np.testing.assert_array_equal(covered, np.arange(length))
        assert at.last[own].tolist() == [False] * (own.sum() - 1) + [True]
        assert (at.stops[own][:-1] - at.starts[own][:-1] == steps).all()
    assert (np.diff(at.recordings) >= 0).all()


@given(LENGTHS, st.integers(1, 20), st.data())
def test_chunks_that_overlap_begin_each_so_many_steps_and_end_with_the_recording(lengths, steps, data):
    stride = data.draw(st.integers(1, steps))
    table = ChunkTable(np.array(lengths), np.array(steps), np.array(stride))
    at = table.extents(np.arange(len(table)))
    for recording, length in enumerate(lengths):
        starts, stops = at.starts[at.recordings == recording], at.stops[at.recordings == recording]
        np.testing.assert_array_equal(starts, np.arange(len(starts)) * stride)
        assert stops[-1] == length
        assert (stops[:-1] - starts[:-1] == steps).all()
        assert len(stops) == 1 or stops[-2] < length, "no chunk lies in the one before"


def test_chunks_may_differ_from_recording_to_recording():
    table = ChunkTable(np.array([10, 10]), np.array([4, 6]), np.array([4, 6]))
    at = table.extents(np.arange(len(table)))
    assert at.starts.tolist() == [0, 4, 8, 0, 6]
    assert at.stops.tolist() == [4, 8, 10, 6, 10]


@pytest.mark.parametrize("most", [1, 3, 7, 100])
def test_segments_are_small_and_cut_no_recording_in_two(most):
    table = ChunkTable(np.array([5, 1, 9, 2, 2, 30, 1]), np.array(2), np.array(2))
    segments = table.segments(np.array([0, 3, 7]), most)
    assert segments[0] == 0
    assert segments[-1] == len(table)
    assert set(segments) <= set(table.firsts)
    assert set(table.firsts[[0, 3, 7]]) <= set(segments), "where the recordings' own segments begin"
    assert (np.diff(segments) <= most + 15).all(), "the longest recording has 15 chunks"
