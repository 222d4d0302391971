"""Quantiles are at most 1 in 32 too high and never too low, however the times were collected."""

from __future__ import annotations

import json
import math

from hypothesis import given
from hypothesis import strategies as st

from trainer_client.load_test.report.histogram import Histogram

TIMES = st.lists(st.integers(0, 2**40) | st.integers(0, 200), max_size=60)


def filled(times: list[int]) -> Histogram:
    histogram = Histogram()
    for time_us in times:
        histogram.record(time_us)
    return histogram


@given(TIMES.filter(bool), st.floats(0.001, 1))
def test_a_quantile_is_close_above_the_true_one(times, share):
    true_us = sorted(times)[max(0, math.ceil(share * len(times)) - 1)]
    got_us = filled(times).quantile_us(share)
    assert true_us <= got_us <= true_us + true_us // 32


@given(TIMES, TIMES)
def test_merging_is_counting_all_in_one(some, others):
    merged = filled(some)
    merged.merge(filled(others))
    assert merged.plain() == filled(some + others).plain()
    assert merged.total == len(some) + len(others)


@given(TIMES)
def test_it_survives_a_message(times):
    back = Histogram.of(json.loads(json.dumps(filled(times).plain())))
    assert (back.total, back.max_us) == (len(times), max(times, default=0))
    assert [back.quantile_us(n / 7) for n in range(8)] == [filled(times).quantile_us(n / 7) for n in range(8)]


def test_small_times_are_exact():
    assert [filled([time_us] * 3 + [10**6]).quantile_us(0.5) for time_us in range(64)] == list(range(64))


def test_nothing_counted_has_no_times():
    assert Histogram().quantile_us(0.99) == 0
    assert Histogram().curve() == [(0.0, 0)]


@given(TIMES.filter(bool))
def test_the_curve_rises_to_the_longest(times):
    curve = filled(times).curve()
    assert [height for _, height in curve] == sorted(height for _, height in curve)
    assert curve[-1][1] == max(times)
    assert curve[0][0] == 0
