"""Sums of the last half minute, from counts in heartbeats."""

from __future__ import annotations

import pytest

from loader_server.coordinator.lately import Lately, lately_report


def noted(*entries):
    lately = Lately()
    for now_s, *counts in entries:
        lately.note(counts, now_s)
    return lately


def test_two_heartbeats_are_needed():
    assert noted().over(5) is None
    assert noted((1.0, 3)).over(5) is None
    assert lately_report(noted((1.0, 3)), ["built"]) is None
    assert noted((1.0, 3), (1.5, 5)).over(5) == (0.5, [2])


def test_a_time_goes_back_from_the_last_heartbeat():
    lately = noted(*((at / 2, 10 * at, at) for at in range(100)))
    assert lately.over(5) == (5.0, [100, 10])
    assert lately.over(30) == (30.0, [600, 60])


def test_heartbeats_that_come_a_little_late_still_count():
    lately = noted(*((0.51 * at, at) for at in range(100)))
    assert lately.over(5) == (pytest.approx(5.1), [10])


def test_seldom_heartbeats_cover_at_least_the_last_interval():
    assert noted((0.0, 1), (20.0, 4), (40.0, 9)).over(5) == (20.0, [5])


def test_what_is_older_is_forgotten():
    lately = noted(*((at / 2, at) for at in range(10_000)))
    assert len(lately._counts) <= 128
    assert lately.over(1e9) == (30.0, [60])


def test_a_lower_count_begins_anew():
    lately = noted((0.0, 5, 9), (1.0, 8, 12), (2.0, 0, 13))
    assert lately.over(5) is None
    lately.note([4, 14], 3.0)
    assert lately.over(5) == (1.0, [4, 1])


def test_a_report_has_both_times():
    lately = noted(*((at / 2, 10 * at, 1.5 * at) for at in range(100)))
    assert lately_report(lately, ["built", "busy_us"]) == {
        "5": {"over_s": 5.0, "built": 100, "busy_us": 15.0},
        "30": {"over_s": 30.0, "built": 600, "busy_us": 90.0},
    }
