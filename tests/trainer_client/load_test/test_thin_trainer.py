"""A thin trainer over a feed without sockets and a clock that only moves when somebody sleeps or waits."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import numpy as np
import pytest

from shared.errors import LostError
from shared.wire import messages as m
from trainer_client.core.heard_limits import HeardLimits
from trainer_client.load_test import thin_trainer
from trainer_client.load_test.delivery_audit import Discrepancies, audited
from trainer_client.load_test.thin_trainer import ThinRun, ThinTrainer


class Clock:
    """Stands in for the module `time`."""

    def __init__(self):
        self.now_s = 1000.0

    def sleep(self, duration_s):
        self.now_s += duration_s

    def monotonic(self):
        return self.now_s

    perf_counter = monotonic


class Batch(dict):
    def __init__(self, number, empty):
        super().__init__(weight=np.ones(4, np.float32))
        self.number, self.empty, self.rows = number, empty, 0 if empty else 4


class Feed:
    """Two ranks share epochs of four batches in groups of two; each batch takes `late_s(step)` to come."""

    def __init__(self, clock, rank, late_s, fail_at=None):
        self.clock, self.rank, self.late_s, self.fail_at = clock, rank, late_s, fail_at
        self.steps = 0
        self.counted = 0
        self.error = None
        self.closed = False
        self.limits = HeardLimits(2.0)
        stream = SimpleNamespace(limits=self.limits)
        self._session = SimpleNamespace(receiver=SimpleNamespace(stream=stream))

    def state(self):
        return {"group": 2}

    def rounds_left(self):
        return 2

    def trained(self):
        self.counted += 1

    def open(self):
        return Reading(self)

    def interrupt(self, error):
        self.error = error

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.closed = True


class Reading:
    def __init__(self, feed):
        self.feed, self.rounds = feed, iter(range(2))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def __next__(self):
        if self.feed.error:
            raise self.feed.error
        turn = next(self.rounds)
        if self.feed.steps == self.feed.fail_at:
            raise LostError(expected="a live worker", got="none", where="feed", remedy="Start one.")
        self.feed.clock.sleep(self.feed.late_s(self.feed.steps))
        self.feed.steps += 1
        return Batch(turn * 2 + self.feed.rank, empty=False)


@pytest.fixture
def trained(monkeypatch):
    def run(*, rank=0, step_s=0.25, seconds=2.0, stopped=False, late_s=lambda _: 0.0, fail_at=None):
        clock = Clock()
        feed = Feed(clock, rank, late_s, fail_at)
        monkeypatch.setattr(thin_trainer, "time", clock)
        monkeypatch.setattr(thin_trainer, "connect", lambda *_args, **how: feed if how["world"] == 2 else None)
        how = {"endpoint": "", "stream": "train", "prefetch": 8, "shared_memory": True, "keys": ""}
        plan = ThinRun(world=2, step_s=step_s, seconds=seconds, **how)
        trainer = ThinTrainer(plan, rank, threading.Semaphore(0))
        trainer.begin(1000.5)
        if stopped:
            trainer.stop()
        trainer.run()
        return trainer, feed

    return run


def test_a_trainer_that_never_waits_is_fully_utilised(trained):
    trainer, feed = trained()
    assert trainer.tally.steps == 8
    assert trainer.tally.compute_s == trainer.tally.total_s == 1.75  # the first step is not counted
    assert trainer.tally.waits.total == 7
    assert trainer.tally.waits.max_us == 0
    assert feed.counted == 8
    assert feed.closed


def test_waiting_counts_against_utilisation_and_the_first_wait_does_not(trained):
    trainer, _ = trained(seconds=2.5, late_s=lambda step: 0.8 if step == 0 else 0.25)
    assert trainer.tally.compute_s / trainer.tally.total_s == 0.5
    assert trainer.tally.waits.max_us == 250_000
    assert {second: one.total for second, one in trainer.tally.by_second.items()} == {1: 2, 2: 1}


def test_laps_say_what_came_and_where_time_ran_out(trained):
    laps = [lap for rank in (0, 1) for lap in trained(rank=rank, seconds=1.3)[0].laps]
    assert [(lap.rank, lap.lap, lap.numbers, lap.ended) for lap in laps[:3]] == [
        (0, 0, (0, 2), True),
        (0, 1, (0, 2), True),
        (0, 2, (0, 2), False),
    ]
    assert {(lap.batches, lap.group) for lap in laps} == {(4, 2)}
    assert audited(laps, world=2) == Discrepancies(lost=0, repeated=0)


def test_a_drain_computes_nothing(trained):
    trainer, _ = trained(step_s=0.0, late_s=lambda _: 0.125)
    assert trainer.tally.compute_s == 0
    assert trainer.tally.steps == 16


def test_what_stops_a_feed_is_said_with_the_rank(trained):
    trainer, feed = trained(rank=1, fail_at=3)
    assert trainer.error.startswith("rank 1: feed: expected a live worker")
    assert trainer.result()["steps"] == 3
    assert feed.closed


def test_what_the_coordinator_said_of_the_limit_is_in_the_result(trained):
    trainer, feed = trained()
    assert trainer.result()["limits"] == {}
    for at, gain in enumerate((100, 200, 300)):
        feed.limits.hear(m.Limited(limit="wire", who="", loaders_gain=gain, worker_gain=0, window_gain=0), float(at))
    text = "the connections to trainers; twice the window +0 %, endless loaders +30 %"
    assert trainer.result()["limits"] == {"wire": (4.0, text)}


def test_a_stopped_trainer_leaves_without_a_word(trained):
    trainer, feed = trained(stopped=True)
    assert (trainer.tally.steps, trainer.error, feed.closed) == (0, "", True)
