"""How many batches epochs have: found out aside, once, and told to all who asked."""

from __future__ import annotations

import threading
from queue import SimpleQueue

import pytest

from loader_server.worker.epoch_counts import EpochCounts, EpochQuestion
from shared.logs import Log


class Planner:
    """Counts when it is let to; what it was asked is in `asked`."""

    def __init__(self):
        self.asked = []
        self.go = threading.Semaphore(0)
        self.woken = SimpleQueue()
        self.counts = EpochCounts({"train": self.count}, Log("worker"), lambda: self.woken.put(None))

    def count(self, epoch, group):
        assert self.go.acquire(timeout=60)
        self.asked.append((epoch, group))
        if epoch == 13:
            raise ValueError("unlucky")
        return 100 * epoch + group

    def found(self, times=1):
        for _ in range(times):
            self.go.release()
            self.woken.get(timeout=60)
        return self.counts.take_answers()


@pytest.fixture
def planner():
    planner = Planner()
    yield planner
    planner.counts.close()
    planner.go.release(9)  # what is still being counted is not left to fail in the midst of another test


def epoch(number, group=1):
    return EpochQuestion("train", number, group)


def test_nobody_waits_and_the_answer_comes_later(planner):
    assert planner.counts.ask(7, epoch(2)) is None
    assert planner.counts.take_answers() == []
    assert planner.found() == [(7, epoch(2), 201)]
    assert planner.counts.take_answers() == []
    assert planner.counts.ask(8, epoch(2)) == 201
    assert planner.asked == [(2, 1)]


def test_what_is_being_counted_is_not_begun_again_and_all_are_told(planner):
    for trainer in (9, 7, 9, 8):
        assert planner.counts.ask(trainer, epoch(2)) is None
    planner.counts.ask(7, epoch(3))
    assert planner.found() == [(trainer, epoch(2), 201) for trainer in (7, 8, 9)]
    assert planner.found() == [(7, epoch(3), 301)]
    assert planner.asked == [(2, 1), (3, 1)]


@pytest.mark.fault(42)
def test_a_trainer_has_four_open_questions_at_most(planner):
    for number in range(10):
        planner.counts.ask(7, epoch(number))
    planner.counts.ask(8, epoch(9))
    assert planner.found(5) == [
        *((7, epoch(number), 100 * number + 1) for number in range(4)),
        (8, epoch(9), 901),
    ]
    planner.counts.ask(7, epoch(6))
    assert planner.found() == [(7, epoch(6), 601)]


def test_a_failure_is_logged_once_and_counted_and_whoever_asked_may_ask_again(planner, caplog):
    planner.counts.ask(7, epoch(13))
    assert planner.found() == []
    assert "batches of an epoch cannot be counted" in caplog.text
    assert "unlucky" in caplog.text
    planner.counts.ask(7, epoch(13))
    assert planner.found() == []
    assert planner.asked == [(13, 1)] * 2
    assert planner.counts.failed == {"train": 2}
    assert len(caplog.records) == 1


def test_its_thread_ends_with_it_and_holds_nobody_up_before():
    before = set(threading.enumerate())
    planner = Planner()
    (thread,) = set(threading.enumerate()) - before
    assert thread.daemon
    planner.counts.close()
    thread.join(60)
    assert not thread.is_alive()


def test_only_so_many_answers_are_kept(planner):
    for number in range(14, 14 + 257):
        planner.counts.ask(7, epoch(number))
        planner.found()
    assert planner.counts.ask(7, epoch(15)) == 1501
    assert planner.counts.ask(7, epoch(14)) is None


@pytest.mark.fault(58)
def test_trainers_of_ever_new_names_have_few_questions_open_together(planner):
    for trainer in range(200):
        assert planner.counts.ask(trainer, EpochQuestion("train", trainer, 1)) is None
    assert len(planner.counts._askers) == 64
    assert [asked.epoch for _, asked, _ in planner.found()] == [0]
    assert planner.counts.ask(500, EpochQuestion("train", 100, 1)) is None
    assert len(planner.counts._askers) == 64
    planner.go.release(100)
