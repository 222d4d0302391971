"""The pace of a worker and how many wants it works on at a time, from what one want takes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.stations.service_times import READ_AT_A_TIME, pace_s, wants_at_a_time


@pytest.mark.parametrize(
    ("read_s", "build_s", "pace", "wants"),
    [
        (0.0, 0.05, 0.05, 1.0),
        (0.4, 0.0, 0.1, 4.0),
        (0.4, 0.1, 0.1, 5.0),
        (0.4, 0.05, 0.1, 4.5),
        (0.04, 0.05, 0.05, 1.8),
        (0.0, 0.0, 0.0, 1.0),
    ],
)
def test_the_slower_of_reading_and_building_gives_the_pace(read_s, build_s, pace, wants):
    assert pace_s(read_s, build_s) == pytest.approx(pace)
    assert wants_at_a_time(read_s, build_s) == pytest.approx(wants)


@given(st.floats(0, 1e3), st.floats(0, 1e3))
def test_a_worker_works_on_one_more_than_it_reads_at_most(read_s, build_s):
    assert 1 <= wants_at_a_time(read_s, build_s) <= (READ_AT_A_TIME + 1) * (1 + 1e-9)
