"""The limit, by situation: which station it is, who it lies at, and what would be gained."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shared.stations.closed_loop import TrainerTimes, WorkerTimes, play
from shared.stations.limit import LIMITS, JobLimit, JobTimes, TrainerStation, WorkerStation, find_limit, sentence

QUICK, SLOW = WorkerTimes(0.001, 0.005), WorkerTimes(0.001, 0.05)
FAST = TrainerTimes(0.002, 8)


def job(workers, trainers, *, in_step=False, held_up=0.0, computed_s=None):
    """A job whose rate and waiting are what its times come to."""
    played = play(workers, trainers, in_step=in_step)
    return JobTimes(
        workers=[WorkerStation(f"w{at}", times, held_up) for at, times in enumerate(workers)],
        trainers=[
            TrainerStation(f"t{at}", times, computed_s[at] if computed_s else None) for at, times in enumerate(trainers)
        ],
        in_step=in_step,
        rate=played.rate,
        waited=played.waited,
    )


SITUATIONS = {
    "transforms": job([SLOW] * 2, [FAST]),
    "transforms of ranks": job([SLOW] * 3, [FAST] * 4, in_step=True),
    "reads": job([WorkerTimes(0.2, 0.005)] * 2, [FAST]),
    "window of readers": job([WorkerTimes(0.2, 0.005)] * 3, [FAST]),
    "wire": job([QUICK] * 3, [TrainerTimes(0.002, 8, wire_s=0.05)]),
    "window": job([QUICK] * 3, [TrainerTimes(0.002, 8, delay_s=0.1)]),
    "trainers": job([QUICK] * 2, [TrainerTimes(0.02, 8)]),
    "worker w3": job([*[SLOW] * 3, WorkerTimes(0.001, 0.2)], [FAST]),
    "worker w1": job([SLOW, WorkerTimes(0.001, 0.2)], [FAST]),
    "worker w2 that reads slowly": job(
        [*[WorkerTimes(0.1, 0.005)] * 2, WorkerTimes(0.5, 0.005)], [TrainerTimes(0.002, 24)]
    ),
    "host": job([SLOW] * 2, [FAST], held_up=0.5),
    "rank t1": job([QUICK] * 3, [TrainerTimes(0.05, 8)] * 3, in_step=True, computed_s=[0.02, 0.05, 0.02]),
    "rank t2 without a collective": job([QUICK] * 3, [*[TrainerTimes(0.02, 8)] * 2, TrainerTimes(0.05, 8)]),
    "trainers in step, nobody knows which": job([QUICK] * 3, [TrainerTimes(0.05, 8)] * 3, in_step=True),
}


@pytest.mark.parametrize("situation", SITUATIONS)
def test_the_limit_is_named(situation):
    verdict = find_limit(SITUATIONS[situation])
    assert verdict.limit == situation.split()[0].rstrip(",")
    assert verdict.who == (situation.split()[1] if verdict.limit in ("worker", "rank") else "")
    assert (verdict.gains is None) == (verdict.limit == "host"), "the loop comes to its own rate, and knows no CPUs"


def test_every_limit_has_a_situation_or_is_nobody():
    assert {situation.split()[0] for situation in SITUATIONS} == set(LIMITS) - {"nobody"}


def test_nobody_is_the_limit_of_a_job_that_nobody_reads():
    idle = replace(SITUATIONS["trainers"], rate=0.0, waited=0.0)
    assert find_limit(idle) == find_limit(replace(idle, trainers=[])) == JobLimit("nobody")


def test_trainers_that_wait_without_any_worker_lack_workers():
    alone = replace(SITUATIONS["transforms"], workers=[], rate=0.0, waited=1.0)
    assert find_limit(alone) == JobLimit("worker", busy=1.0)


def test_a_slow_worker_that_costs_nothing_is_not_named():
    waiting = job([*[QUICK] * 8, WorkerTimes(0.001, 0.02)], [TrainerTimes(0.002, 8, wire_s=0.05)])
    assert find_limit(waiting).limit == "wire"


@pytest.mark.parametrize(
    ("situation", "gain", "expected"),
    [
        ("transforms", "worker_more", 0.5),
        ("transforms", "twice_the_window", 0.0),
        ("transforms", "endless_loaders", 11.5),
        ("window", "twice_the_window", 1.0),
        ("window", "worker_more", 0.0),
        ("window of readers", "twice_the_window", 0.5),
        ("wire", "worker_more", 0.0),
        ("reads", "worker_more", 0.0),
        ("trainers", "endless_loaders", 0.0),
        ("worker w3", "worker_more", 0.31),
    ],
)
def test_gains_are_those_of_the_job_with_more(situation, gain, expected):
    gains = find_limit(SITUATIONS[situation]).gains
    assert getattr(gains, gain) == pytest.approx(expected, abs=0.06 + 0.1 * expected)


def test_gains_are_unknown_where_the_loop_does_not_come_to_the_rate():
    transforms = SITUATIONS["transforms"]
    near, far = (replace(transforms, rate=transforms.rate * part) for part in (0.93, 0.85))
    assert find_limit(near).gains is not None
    assert find_limit(far).gains is None
    assert find_limit(far).limit == "transforms"


@pytest.mark.parametrize(
    ("situation", "expected"),
    [
        ("transforms", "limit: transforms in workers (100 % busy); 1 more worker +50 %, endless loaders 12 times"),
        ("trainers", "limit: trainers (100 % of their time in steps); endless loaders would gain nothing"),
        ("worker w3", "limit: worker w3, far slower than the others; 1 more worker +33 %, endless loaders 8 times"),
    ],
)
def test_a_sentence_for_people(situation, expected):
    words = sentence(find_limit(SITUATIONS[situation]))
    assert [part for part in words.split() if not part[1:2].isdigit()] == [
        part for part in expected.split() if not part[1:2].isdigit()
    ]
    assert len(words) <= 118


def test_trainers_in_step_that_do_not_all_tell_their_computation_leave_the_rank_unknown():
    verdict = find_limit(SITUATIONS["trainers in step, nobody knows which"])
    assert not verdict.is_rank_known
    assert sentence(verdict).startswith("limit: trainers (100 % of their time in steps; rank unknown); ")
    half = replace(SITUATIONS["rank t1"], trainers=list(SITUATIONS["rank t1"].trainers))
    half.trainers[0] = replace(half.trainers[0], computed_s=None)
    assert find_limit(half).limit == "trainers"
    assert find_limit(SITUATIONS["trainers"]).is_rank_known


def test_reads_that_differ_by_chance_make_no_slow_worker():
    reading = [WorkerTimes(0.2, 0.005), WorkerTimes(0.4, 0.005)]
    assert find_limit(job(reading, [TrainerTimes(0.002, 24)])).limit == "reads"


def test_other_sentences():
    assert sentence(JobLimit("worker")) == "limit: workers, of which none builds a batch"
    assert sentence(JobLimit("nobody")) == "limit: nobody, no trainer reads"
    assert sentence(JobLimit("wire", busy=0.97)) == "limit: the connections to trainers (97 % busy); gain unknown"
    for limit in LIMITS:
        assert sentence(JobLimit(limit, who="gpu3")).startswith("limit: ")
