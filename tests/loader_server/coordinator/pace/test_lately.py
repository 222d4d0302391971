"""Sums of the last half minute, from counts in heartbeats."""

from __future__ import annotations

import random

import pytest

from loader_server.coordinator.pace.lately import Lately, lately_report


def noted(*entries, names=("built", "busy_us")):
    lately = Lately(names)
    for now_s, *counts in entries:
        lately.note(counts, now_s)
    return lately


def test_two_heartbeats_are_needed():
    assert noted().over(5) is None
    assert noted((1.0, 3)).over(5) is None
    assert lately_report(noted((1.0, 3))) is None
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
    assert lately_report(lately) == {
        "5": {"over_s": 5.0, "built": 100, "busy_us": 15.0},
        "30": {"over_s": 30.0, "built": 600, "busy_us": 90.0},
    }


@pytest.mark.parametrize("seconds", [0.0, 0.3, 0.5, 4.8, 5.0, 7.3, 29.9, 30.0, 1e9])
def test_a_time_begins_at_the_first_heartbeat_that_is_not_older(seconds):
    draw = random.Random(3)
    entries = [(at / 2 + draw.uniform(-0.2, 0.2), draw.randrange(9) + 9 * at) for at in range(200)]
    lately = noted(*entries, names=("built",))
    known = [entry for entry in entries if entry in [(at_s, counts[0]) for at_s, counts in lately._counts]]
    last_s, last = known[-1]
    first_s, first = next(entry for entry in known if entry[0] > last_s - seconds - 0.25)
    first_s, first = known[-2] if first_s == last_s else (first_s, first)
    assert lately.over(seconds) == (last_s - first_s, [last - first])


def test_a_rate_is_that_between_the_last_two_heartbeats():
    assert noted((0.0, 1, 0), (1.0, 9, 5)).rate("built") == 8
    assert noted((0.0, 1, 0), (1.0, 9, 5), (1.5, 9, 6)).rate("busy_us") == 2
    assert noted().rate("built") == noted((0.0, 1, 0)).rate("built") == 0
    assert noted((1.0, 1, 0), (1.0, 5, 0)).rate("built") == 0, "two that were heard in one turn"
    assert noted((0.0, 5, 0), (1.0, 9, 5), (1.5, 0, 0)).rate("built") == 0, "it began anew"


@pytest.mark.parametrize(
    ("since_s", "grown"), [(-1.0, 19), (0.0, 19), (0.9, 19), (1.0, 11), (1.9, 11), (2.0, 0), (9.0, 0)]
)
def test_what_heartbeats_after_a_moment_added(since_s, grown):
    assert noted((0.0, 1, 0), (1.0, 9, 5), (2.0, 20, 6)).since("built", since_s) == grown


def test_of_a_sender_that_is_new_only_growth_counts():
    assert noted().since("built", 0.0) == 0
    assert noted((1.0, 700, 0)).since("built", 0.0) == 0
    assert noted((1.0, 700, 0), (1.5, 702, 0)).since("built", 0.0) == 2
