"""How far ahead a trainer asks: a job of readers and a consumer is played, and what comes of its prefetch is looked at.

The job is played here with a clock that is a number: batches are served at a rate that grows with those asked for, up
to what the workers can.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer_client.core.asking.prefetch import Prefetch

TURN_S = 0.01


class PlayedJob:
    """Wants that take `takes_s` each, of which workers serve at most `could_serve` a second, and a consumer."""

    def __init__(self, prefetch: Prefetch, *, takes_s=0.1, could_serve=200.0, consumes=1e9, wire=1e9):
        self.prefetch = prefetch
        self.takes_s, self.could_serve, self.consumes, self.wire = takes_s, could_serve, consumes, wire
        self.now_s = 0.0
        self.served = self.taken = 0.0
        self.sizes = [prefetch.size]

    def play(self, seconds):
        """Play so many seconds on; return the rate over the last fifth of them."""
        until_s, late_s = self.now_s + seconds, self.now_s + 0.8 * seconds
        late = None
        while self.now_s < until_s - 1e-9:
            self._turn()
            if late is None and self.now_s >= late_s:
                late, late_s = self.taken, self.now_s
        return (self.taken - late) / (self.now_s - late_s)

    def _turn(self):
        self.now_s += TURN_S
        room = max(0.0, self.prefetch.size - (self.served - self.taken))
        rate = min(room / self.takes_s, self.could_serve, self.wire)
        self.taken = min(self.served, self.taken + TURN_S * self.consumes)
        left = self.served - self.taken
        self.served += TURN_S * rate
        if self.prefetch.see(int(self.served), int(left), self.now_s, is_full=True):
            self.prefetch.decide(int(self.served), self.could_serve, self.now_s)
        if self.prefetch.size != self.sizes[-1]:
            self.sizes.append(self.prefetch.size)


def test_it_grows_until_the_workers_serve_all_that_they_can_and_no_further():
    job = PlayedJob(Prefetch(8, 64))
    assert job.play(20) == pytest.approx(200, rel=0.1)
    assert job.sizes[0] == 8
    assert 19 <= job.prefetch.size <= 27, "200 a second that take 0.1 s each are 20 at a time"
    settled = job.prefetch.size
    job.play(60)
    assert job.prefetch.size == settled


def test_not_beyond_its_bound():
    job = PlayedJob(Prefetch(8, 11))
    assert job.play(20) == pytest.approx(11 / (0.1 + TURN_S), rel=0.05)
    assert job.sizes == [8, 11]


@pytest.mark.parametrize(
    ("job", "limit"),
    [
        ({"could_serve": 70.0}, "workers serve all that they can"),
        ({"consumes": 50.0}, "the consumer is slower than they are"),
    ],
)
def test_it_stays_where_more_would_be_of_no_use(job, limit):
    played = PlayedJob(Prefetch(8, 64), **job)
    played.play(60)
    assert played.sizes == [8], limit


def test_growth_that_brings_nothing_is_taken_back_and_tried_again_later_and_later():
    job = PlayedJob(Prefetch(8, 64), wire=60.0)
    job.play(100)
    tries = job.sizes.count(12)
    assert job.sizes == [8, *[12, 8] * tries]
    assert 2 <= tries <= 4
    job.play(600)
    assert job.sizes.count(12) - tries <= 4, "pauses are up to five minutes"


def test_what_brought_a_little_stays():
    job = PlayedJob(Prefetch(8, 64), wire=90.0)
    assert job.play(20) == pytest.approx(90, rel=0.05)
    assert job.prefetch.size == 12


def test_it_shrinks_to_what_was_needed_but_not_below_its_start():
    job = PlayedJob(Prefetch(8, 64))
    job.play(20)
    grown = job.prefetch.size
    job.consumes = 60.0
    job.play(9)
    assert job.prefetch.size == grown, "not before it was too many for ten seconds"
    job.play(90)
    assert 8 <= job.prefetch.size <= 12, "6 are needed, and twice as many are kept"
    assert job.play(20) == pytest.approx(60, rel=0.05), "the consumer does not wait"
    job.consumes = 1e9
    assert job.play(30) == pytest.approx(200, rel=0.1), "and it grows again"


def test_a_reader_that_pauses_gives_room_back():
    prefetch = Prefetch(4, 32)
    job = PlayedJob(prefetch)
    job.play(20)
    assert prefetch.size > 16
    now_s, arrived = job.now_s, int(job.served)
    for turn in range(400):
        prefetch.see(arrived, prefetch.size, now_s + turn / 4, is_full=True)
    assert prefetch.size == 4


def test_nothing_is_concluded_while_not_everything_is_asked_for():
    prefetch = Prefetch(8, 64)
    for turn in range(2000):
        if prefetch.see(turn, 0, turn * TURN_S, is_full=False):
            prefetch.decide(turn, 1e9, turn * TURN_S)
    assert prefetch.size == 8


def test_after_a_stall_a_look_begins_anew():
    prefetch = Prefetch(8, 64)
    for turn in range(50):
        prefetch.see(turn, 0, turn * TURN_S, is_full=True)
    prefetch.excuse()
    assert not prefetch.see(50, 0, 100.0, is_full=True)
    assert not prefetch.see(80, 0, 100.9, is_full=True)
    assert prefetch.see(81, 0, 101.0, is_full=True)


@pytest.mark.parametrize("most", [1, 8])
def test_a_bound_at_or_below_the_start_keeps_it(most):
    job = PlayedJob(Prefetch(8, most))
    job.play(30)
    assert job.sizes == [8]


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 32),
    st.integers(1, 256),
    st.floats(0.005, 1.0),
    st.floats(1.0, 500.0),
    st.lists(st.floats(1.0, 1000.0), min_size=1, max_size=4),
)
def test_whatever_comes_it_stays_within_its_bounds(start, most, takes_s, could_serve, consumers):
    job = PlayedJob(Prefetch(start, most), takes_s=takes_s, could_serve=could_serve)
    for job.consumes in consumers:
        job.play(8)
    assert all(start <= size <= max(start, most) for size in job.sizes)
