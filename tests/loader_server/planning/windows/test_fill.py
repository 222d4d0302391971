"""Filling buckets by counts: spill upward, complete what would overfill, lose nothing."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader_server.planning.windows.fill import groups_needed, samples_taken


def filled(counts, rows, group):
    counts, rows = np.array([counts]), np.array(rows)
    groups = groups_needed(counts, rows, group)
    return groups[0].tolist(), samples_taken(counts, groups * rows * group)[0].tolist()


@pytest.mark.heritage("R6")
def test_leftovers_spill_into_the_next_bucket_and_end_in_the_last():
    assert filled([13, 7, 3], [10, 8, 4], 1) == ([1, 1, 2], [10, 8, 5])


def test_a_leftover_that_would_overfill_the_next_bucket_is_completed():
    assert filled([19, 1], [10, 4], 1) == ([2, 1], [19, 1])


def test_a_leftover_that_just_fills_a_group_of_the_next_bucket_spills():
    assert filled([14, 4], [10, 4], 1) == ([1, 2], [10, 8])


def test_groups_are_completed_as_a_whole():
    assert filled([40, 10], [10, 8], 2) == ([2, 1], [40, 10])


@given(
    st.lists(st.lists(st.integers(0, 500), min_size=4, max_size=4), min_size=1, max_size=5),
    st.lists(st.integers(1, 60), min_size=4, max_size=4),
    st.integers(1, 16),
)
def test_no_sample_is_lost_and_no_group_is_empty(counts, rows, group):
    given_counts, falling = np.array(counts), np.array(sorted(rows, reverse=True))
    groups = groups_needed(given_counts, falling, group)
    sizes = samples_taken(given_counts, groups * falling * group)
    assert (sizes.sum(axis=1) == given_counts.sum(axis=1)).all()
    # Samples only move up: the first k buckets never take more than belongs there.
    assert (np.cumsum(sizes, axis=1) <= np.cumsum(given_counts, axis=1)).all()
    assert (sizes > (groups - 1) * falling * group).all()


@given(
    st.lists(st.lists(st.integers(0, 90), min_size=6, max_size=6), min_size=2, max_size=2),
    st.lists(st.integers(1, 30), min_size=6, max_size=6),
    st.integers(1, 8),
    st.sampled_from([1, 2, 3]),
)
def test_windows_together_need_no_more_groups_than_apart(counts, rows, group, subs):
    apart, falling = np.array(counts), np.array(sorted(rows, reverse=True))
    together = groups_needed(apart.sum(axis=0, keepdims=True), falling, group, subs).sum()
    alone = groups_needed(apart, falling, group, subs).sum(axis=1)
    assert alone.max() <= together <= alone.sum()
