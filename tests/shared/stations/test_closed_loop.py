"""The closed loop: rates that can be worked out by hand, bounds that hold for any times, and what a look costs."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.stations.closed_loop import TrainerTimes, WorkerTimes, play
from shared.stations.service_times import READ_AT_A_TIME

QUICK = TrainerTimes(step_s=0.001, window=8)


def rate(workers, trainers, *, in_step=False):
    return play(workers, trainers, in_step=in_step).rate


# --- by hand ---


@pytest.mark.parametrize(
    ("workers", "trainer", "expected"),
    [
        pytest.param([WorkerTimes(0, 0.05)] * 2, QUICK, 40, id="two builders of 50 ms"),
        pytest.param([WorkerTimes(0, 0.05)] * 3, QUICK, 60, id="three"),
        pytest.param([WorkerTimes(0, 0.001)] * 3, TrainerTimes(0.02, 8), 50, id="steps of 20 ms"),
        pytest.param([WorkerTimes(0.2, 0.001)], QUICK, 20, id="four readers of 200 ms"),
        pytest.param([WorkerTimes(0.2, 0.001)] * 3, QUICK, 40, id="eight wants for twelve readers"),
        pytest.param([WorkerTimes(0.2, 0.001)] * 3, TrainerTimes(0.001, 24), 60, id="enough wants for all"),
        pytest.param([WorkerTimes(0, 0.001)] * 3, TrainerTimes(0.001, 8, wire_s=0.05), 20, id="a connection of 50 ms"),
        pytest.param([WorkerTimes(0, 0.001)] * 8, TrainerTimes(0.001, 8, delay_s=0.1), 80, id="a far host"),
        pytest.param([WorkerTimes(0, 0.02)], TrainerTimes(0.02, 1), 50, id="one ahead builds while one is trained on"),
        pytest.param([WorkerTimes(0, 0.05)] * 3 + [WorkerTimes(0, 0.2)], QUICK, 65, id="one of four is slow"),
    ],
)
def test_the_rate_is_what_follows_from_the_times(workers, trainer, expected):
    assert rate(workers, [trainer]) == pytest.approx(expected, rel=0.08)


def test_trainers_in_step_go_at_the_pace_of_the_slowest():
    trainers = [TrainerTimes(0.02, 8)] * 3 + [TrainerTimes(0.05, 8)]
    workers = [WorkerTimes(0, 0.001)] * 3
    assert rate(workers, trainers, in_step=True) == pytest.approx(4 / 0.05, rel=0.02)
    assert rate(workers, trainers) == pytest.approx(3 / 0.02 + 1 / 0.05, rel=0.02)


def test_waiting_is_what_steps_leave():
    played = play([WorkerTimes(0, 0.04)], [TrainerTimes(0.01, 8)], in_step=False)
    assert played.waited == pytest.approx(0.75, abs=0.02)
    assert play([WorkerTimes(0, 0.001)], [TrainerTimes(0.01, 8)], in_step=False).waited < 0.01


@pytest.mark.parametrize(("workers", "trainers"), [([], [QUICK]), ([WorkerTimes(0, 0.1)], []), ([], [])])
def test_without_workers_or_trainers_nothing_is_read(workers, trainers):
    assert rate(workers, trainers) == 0


def test_what_takes_no_time_has_no_bound():
    assert rate([WorkerTimes(0, 0)], [TrainerTimes(0, 8)]) == float("inf")


# --- by rule ---

SECONDS = st.floats(0.001, 0.2)
WORKERS = st.lists(st.builds(WorkerTimes, read_s=SECONDS, build_s=SECONDS), min_size=1, max_size=6)
TRAINERS = st.lists(
    st.builds(TrainerTimes, step_s=SECONDS, window=st.integers(1, 24), wire_s=SECONDS, delay_s=SECONDS),
    min_size=1,
    max_size=4,
)


@settings(max_examples=60, deadline=None)
@given(WORKERS, TRAINERS, st.booleans())
def test_no_station_lets_more_through_than_it_can(workers, trainers, in_step):
    played = rate(workers, trainers, in_step=in_step)
    slack = 1.25  # at either end of the time that is looked at a batch may be counted or not
    assert 0 < played <= slack * sum(1 / worker.build_s for worker in workers)
    assert played <= slack * sum(READ_AT_A_TIME / worker.read_s for worker in workers)
    assert played <= slack * sum(1 / max(one.step_s, one.wire_s) for one in trainers)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.builds(WorkerTimes, read_s=SECONDS, build_s=SECONDS), min_size=1, max_size=1), SECONDS)
def test_twice_the_workers_and_trainers_read_twice_as_much(one, step_s):
    trainer = TrainerTimes(step_s, 8)
    assert rate(one * 24, [trainer] * 12) == pytest.approx(12 * rate(one * 2, [trainer]), rel=0.1)


def test_a_large_job_costs_no_more_than_a_small_one():
    """Ten plays are a look; 20 ms are what it may cost."""
    workers, trainers = [WorkerTimes(0.004, 0.05)] * 1000, [TrainerTimes(0.02, 8)] * 500

    def cost_s() -> float:
        began_s = time.process_time()
        play(workers, trainers, in_step=True)
        return time.process_time() - began_s

    assert min(cost_s() for _ in range(7)) < 0.004
