"""Lives of batches joined from stamps of several processes."""

from __future__ import annotations

from itertools import pairwise

import pytest

from loader_server.tracing.lives import READY, lives_of
from shared.tracing.ring import StampKind
from tests.support.stamped_jobs import MS, StampedProcess, plain_life


def trainer_and_worker(**of_worker):
    return StampedProcess("gpu-1:7", 100, "train"), StampedProcess("worker-3", 200, **of_worker)


def lives(*processes):
    return lives_of([process.gathered() if isinstance(process, StampedProcess) else process for process in processes])


def names(life):
    return [(part.name, round(part.ns / MS, 3), round(part.waited_ns / MS, 3)) for part in life.parts]


def test_the_parts_of_a_plain_life():
    trainer, worker = trainer_and_worker()
    plain_life(trainer, worker)
    (life,) = lives(trainer, worker)
    assert names(life) == [
        ("on the way to worker-3", 1, 0),
        ("its samples being read by worker-3", 5, 0),
        ("waiting for its turn at worker-3", 15, 6),
        ("being built by worker-3", 18, 18),
        ("being encoded by worker-3", 1, 1),
        ("built, and not sent yet by worker-3", 2, 2),
        ("on the way from worker-3", 1, 1),
        ("being checked and put on offer", 1, 1),
        (READY, 1, 1),
    ]
    assert life.longest.name == "being built by worker-3"
    assert life.missing == []
    assert (life.trained_ns - life.taken_ns) / MS == 55
    assert life.answered.worker_name == "worker-3"


def check_sums(life):
    parts = life.parts
    assert all(before.end_ns == after.begin_ns for before, after in pairwise(parts))
    assert all(part.ns >= 0 for part in parts)
    assert sum(part.waited_ns for part in parts) == life.waited_ns
    assert parts[-1].end_ns == life.taken_ns


@pytest.mark.parametrize("waited_ms", [0, 0.5, 1, 20, 45, 200])
def test_the_parts_sum_to_the_wait_however_long_it_was(waited_ms):
    trainer, worker = trainer_and_worker()
    plain_life(trainer, worker)
    (life,) = lives(trainer, worker)
    life.waited_ns = int(waited_ms * MS)
    check_sums(life)
    assert (life.parts[0].name == "not asked for yet") == (waited_ms > 45)


def test_a_batch_that_nobody_waited_for_has_a_longest_gap_that_is_not_its_lying_ready():
    trainer, worker = trainer_and_worker()
    plain_life(trainer, worker)
    trainer.at(StampKind.TAKEN, 1999, 8)
    (life, lone) = lives(trainer, worker)
    life.waited_ns, life.taken_ns = 0, 99_000 * MS
    assert life.longest.name == "being built by worker-3"
    assert lone.longest is None
    assert lone.missing[0].startswith("when it was asked for")


def test_a_worker_that_died_is_named_and_the_time_until_the_next_attempt_is_its_part():
    trainer, worker = trainer_and_worker()
    trainer.at(StampKind.ASKED, 500, peer=999, slot=2)
    plain_life(trainer, worker, attempt=1)
    (life,) = lives(trainer, worker)
    assert [ask.attempt for ask in life.asks] == [0, 1]
    assert names(life)[0] == ("no answer from a worker that is gone", 500, 0)
    assert life.missing == ["stamps of a worker that is gone: it is gone, or was not asked"]
    check_sums(life)


def test_a_worker_that_stands_still_is_named():
    trainer, worker = trainer_and_worker()
    still = StampedProcess("worker-1", 201)
    trainer.at(StampKind.ASKED, 990, peer=201, slot=2)
    plain_life(trainer, worker)
    (life,) = lives_of([trainer.gathered(), worker.gathered(), still.gathered("no answer within 5 s")])
    assert names(life)[0] == ("no answer from worker-1", 10, 0)
    assert life.missing == ["stamps of worker-1: no answer within 5 s"]


def test_of_two_attempts_the_one_that_was_put_on_offer_counts():
    """The first worker was only slow: its answer comes first, after the second was asked."""
    trainer, worker = trainer_and_worker()
    other = StampedProcess("worker-1", 201)
    plain_life(trainer, worker)
    trainer.at(StampKind.ASKED, 1010, peer=201, slot=2)
    other.at(StampKind.RECEIVED, 1011, peer=100, slot=2)
    other.at(StampKind.GIVEN_UP, 1050, peer=100, slot=2)
    (life,) = lives(trainer, worker, other)
    assert len(life.asks) == 2
    assert life.answered.worker_name == "worker-3"
    assert life.parts[0].name == "on the way to worker-3"
    check_sums(life)


def test_the_second_attempt_that_answers_first_counts():
    trainer, worker = trainer_and_worker()
    trainer.at(StampKind.ASKED, 900, peer=201, slot=2)
    plain_life(trainer, worker)
    trainer.at(StampKind.ARRIVED, 1500, slot=2)
    (first,) = lives(trainer, worker, StampedProcess("worker-1", 201))
    assert first.answered.worker_name == "worker-3"
    assert names(first)[0] == ("no answer from worker-1", 100, 0)
    assert first.asks[0].arrived_ns == 1500 * MS


def test_stamps_of_a_worker_that_were_overwritten_leave_one_longer_part():
    _, worker = trainer_and_worker()
    trainer_only, _ = trainer_and_worker()
    plain_life(trainer_only, worker)
    busy = StampedProcess("worker-3", 200)
    busy.at(StampKind.RECEIVED, 3000, 99, peer=100, slot=5)
    (life,) = lives(trainer_only, busy)
    assert names(life)[0] == ("at worker-3", 43, 28)
    assert life.missing == ["stamps of worker-3: overwritten"]
    check_sums(life)


def test_a_want_that_never_came_is_told_from_one_that_is_overwritten():
    trainer, worker = trainer_and_worker()
    worker.at(StampKind.RECEIVED, 10, 1, peer=100, slot=5)
    trainer.at(StampKind.ASKED, 1000, peer=200)
    (life,) = lives(trainer, worker)
    assert life.missing == ["stamps of worker-3: the want did not reach it", "it has not arrived yet"]


def test_stamps_of_a_trainer_that_were_overwritten_are_said_to_be():
    trainer, _ = trainer_and_worker()
    trainer.at(StampKind.OFFERED, 1000)
    trainer.at(StampKind.TAKEN, 1005, extra=2 * MS)
    (life,) = lives(trainer)
    assert names(life) == [(READY, 5, 2)]
    assert life.missing[0] == "when it was asked for: stamps of the trainer are overwritten"


@pytest.mark.parametrize("ahead_ms", [-50.0, 0.4, 86_400_000.0])
def test_clocks_of_two_hosts_are_joined_and_stay_between_the_trainers_stamps(ahead_ms):
    trainer, worker = trainer_and_worker(boot="other", ahead_ms=ahead_ms)
    trainer.ping(StampKind.PINGED, 100, 1)
    worker.ping(StampKind.PING_CAME, 102, 1, peer=100)
    trainer.ping(StampKind.PONGED, 102.5, 1)
    plain_life(trainer, worker)
    (life,) = lives(trainer, worker)
    assert life.missing == []
    assert life.answered.error_ns == 1.25 * MS
    check_sums(life)
    by_name = {part.name: part.ns / MS for part in life.parts}
    assert by_name["being built by worker-3"] == 18
    assert abs(by_name["on the way to worker-3"] - 1) <= 1.25


def test_a_clock_that_cannot_be_compared_leaves_one_part():
    trainer, worker = trainer_and_worker(boot="other", ahead_ms=3)
    plain_life(trainer, worker)
    (life,) = lives(trainer, worker)
    assert life.parts[0].name == "at worker-3"
    assert life.missing == ["stamps of worker-3: its clock could not be compared: no Ping is kept"]
    check_sums(life)


def test_a_batch_that_is_read_again_has_a_life_each_time():
    """An evaluation stream: the second lap's want goes out before the first lap's batch is taken."""
    trainer, worker = StampedProcess("gpu-1:7", 100, "train"), StampedProcess("worker-3", 200)
    trainer.at(StampKind.ASKED, 1000, peer=200, generation=1)
    trainer.at(StampKind.ARRIVED, 1010, generation=1)
    trainer.at(StampKind.OFFERED, 1011, generation=1)
    trainer.at(StampKind.ASKED, 1012, peer=200, slot=2)
    trainer.at(StampKind.TAKEN, 1013, generation=1)
    trainer.at(StampKind.ARRIVED, 1020, slot=2)
    trainer.at(StampKind.OFFERED, 1021, slot=2)
    trainer.at(StampKind.TAKEN, 1030, slot=2)
    first, second = lives(trainer, worker)
    assert [ask.time_ns / MS for ask in first.asks] == [1000]
    assert [ask.time_ns / MS for ask in second.asks] == [1012]
    for life in (first, second):
        check_sums(life)
        assert "whether it was trained on: no step has counted it yet" in life.missing


def test_a_round_trains_on_its_batches_alone():
    trainer, worker = trainer_and_worker()
    for number in (6, 7, 8):
        plain_life(trainer, worker, number=number, slot=number, begin_ms=1000.0 + number)
    trained = {life.number: life.trained_ns / MS for life in lives(trainer, worker)}
    assert trained == {6: 1106, 7: 1107, 8: 1108}


def test_two_trainers_have_lives_of_their_own():
    first, worker = trainer_and_worker()
    second = StampedProcess("gpu-2:7", 101, "train", rank=1)
    plain_life(first, worker, number=7)
    plain_life(second, worker, number=8)
    found = lives(first, second, worker)
    assert [(life.trainer.name, life.number) for life in found] == [("gpu-1:7", 7), ("gpu-2:7", 8)]
    assert all(life.missing == [] for life in found)
