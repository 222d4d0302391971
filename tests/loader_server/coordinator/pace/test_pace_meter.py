"""What the number of workers is derived from: differences of what heartbeats count, and means over the last seconds."""

from __future__ import annotations

import math
import random

import pytest

from loader_server.coordinator.pace.pace_meter import PaceMeter
from loader_server.coordinator.pace.pace_record import JobPace, PaceRecord
from loader_server.coordinator.streams.stream_trainers import AttachedTrainer, StreamTrainers
from loader_server.coordinator.workers import Workers
from shared.wire.message_parts import Cursor
from tests.support.coordinator import attach, beat, progress, register


class _View:
    """What a stream is like, as far as the pace goes by it."""

    def __init__(self, *, evaluation: bool = False, leases: object = None) -> None:
        self.evaluation = evaluation
        self.leases = leases


class _Job:
    """Streams and workers whose heartbeats a test draws up."""

    def __init__(self, **streams: _View) -> None:
        self.streams = {name: StreamTrainers(view) for name, view in streams.items()}  # type: ignore[arg-type]
        self.workers = Workers(1)
        self.meter = PaceMeter()

    def trainer(self, stream: str, rank: int) -> AttachedTrainer:
        asked = attach(rank, 8)
        trainer = AttachedTrainer(
            peer=b"",
            attach=asked,
            cursor=Cursor(0, 0, 8, "plan-1"),
            batches=9,
            heard_s=0.0,
            trained=(0, 0),
            read=(0, 0),
        )
        self.streams[stream].add(trainer)
        return trainer

    def worker(self, incarnation: int) -> None:
        self.workers.register(b"%d" % incarnation, register(f"w{incarnation}", incarnation), 0.0)

    def beat(self, incarnation: int, busy_s: float, now_s: float) -> None:
        worker = self.workers.get(incarnation)
        assert worker is not None
        worker.hear(beat(incarnation=incarnation, busy_us=int(1e6 * busy_s)), now_s)

    def look(self, now_s: float, timeout_s: float = 2.0) -> JobPace:
        return self.meter.look(self.streams.values(), self.workers.sorted(), now_s - timeout_s, now_s)


def say(trainer: AttachedTrainer, read: int, permille: int, now_s: float) -> None:
    trainer.hear(b"", progress(0, 0, 0, batches_read=read, waited_permille=permille), now_s)


def test_nobody_is_there() -> None:
    assert _Job(train=_View()).look(1.0) == JobPace(workers=0, busy=0.0, trainers=0, read=0, waited=0.0)


def test_workers_are_as_busy_as_between_their_last_two_heartbeats() -> None:
    job = _Job(train=_View())
    for incarnation in (1, 2, 3):
        job.worker(incarnation)
    assert job.look(0.0).workers == 0, "none has sent a heartbeat"
    for incarnation, busy_s in ((1, 5.0), (2, 0.0), (3, 1.0)):
        job.beat(incarnation, busy_s, 1.0)
    assert job.look(1.0) == JobPace(workers=3, busy=0.0, trainers=0, read=0, waited=0.0)
    for incarnation, busy_s in ((1, 5.5), (2, 0.1), (3, 1.25)):
        job.beat(incarnation, busy_s, 1.5)
    assert job.look(1.5).busy == pytest.approx(1 + 0.2 + 0.5)
    job.beat(1, 6.5, 2.0)
    assert job.look(2.0).busy == pytest.approx(2 + 0.2 + 0.5), "a late one evens out over the next"
    job.beat(1, 6.0, 4.0)
    pace = job.look(4.0)
    assert (pace.workers, pace.busy) == (1, 0.0), "the others are silent, and this one's count began anew"


def test_batches_are_counted_from_a_trainers_first_heartbeat_on() -> None:
    job = _Job(train=_View())
    first, second = job.trainer("train", 0), job.trainer("train", 1)
    say(first, 10, 0, 1.0)
    assert job.look(1.0).read == 0
    say(first, 14, 0, 1.5)
    say(second, 3, 0, 1.5)
    assert job.look(1.5) == JobPace(workers=0, busy=0.0, trainers=2, read=4, waited=0.0), "the second was new"
    assert job.look(2.0).read == 0
    say(first, 2, 0, 2.5)
    assert job.look(2.5).read == 0, "it was attached anew"


def test_in_lockstep_all_wait_as_long_as_the_rank_that_waits_longest() -> None:
    job = _Job(train=_View())
    for rank, permille in enumerate((0, 100, 500)):
        say(job.trainer("train", rank), 1, permille, 1.0)
    job.look(1.0)
    for trainer, permille in zip(job.streams["train"].trainers.values(), (0, 100, 500), strict=True):
        say(trainer, 2, permille, 1.5)
    assert job.look(1.5).waited == 0.5


@pytest.mark.parametrize("view", [_View(leases=object()), _View(evaluation=True)], ids=["queue", "evaluation"])
def test_elsewhere_each_waits_for_itself(view: _View) -> None:
    job = _Job(stream=view)
    trainers = [job.trainer("stream", rank) for rank in range(4)]
    for trainer, permille in zip(trainers, (0, 100, 500, 0), strict=True):
        say(trainer, 1, permille, 1.0)
    job.look(1.0)
    for trainer, permille in zip(trainers[:3], (0, 100, 500), strict=True):
        say(trainer, 2, permille, 1.5)
    assert job.look(1.5).waited == pytest.approx(0.2), "the fourth has not read anything yet"


def test_one_that_has_done_something_else_for_ten_seconds_is_not_asked_whether_it_waits() -> None:
    job = _Job(stream=_View(leases=object()))
    idle, busy = job.trainer("stream", 0), job.trainer("stream", 1)
    say(idle, 0, 0, 0.0)
    say(busy, 0, 0, 0.0)
    job.look(0.0)
    for at in range(1, 24):
        say(busy, at, 400, at / 2)
        if at == 1:
            say(idle, 1, 0, 0.5)
        waited = job.look(at / 2).waited
        assert waited == pytest.approx(0.2 if at / 2 < 10.5 else 0.4), at


def test_readers_of_evaluation_streams_count_only_if_nobody_trains() -> None:
    job = _Job(train=_View(), dev=_View(evaluation=True))
    evaluates = job.trainer("dev", 0)
    say(evaluates, 0, 0, 0.0)
    job.look(0.0)
    say(evaluates, 5, 300, 0.5)
    assert job.look(0.5) == JobPace(workers=0, busy=0.0, trainers=1, read=5, waited=0.3)
    say(job.trainer("train", 1), 0, 0, 1.0)
    say(evaluates, 9, 300, 1.0)
    assert job.look(1.0) == JobPace(workers=0, busy=0.0, trainers=1, read=0, waited=0.0)


# --- means ---


def test_means_are_those_of_the_last_seconds_however_long_the_record() -> None:
    draw = random.Random(7)
    record, paces = PaceRecord(), []
    for _ in range(1000):
        pace = JobPace(4, draw.uniform(0, 4), 1, draw.randrange(9), draw.random())
        over_s = draw.choice((0.25, 0.5, 1.0))
        record.add(pace, over_s)
        paces.append((pace, over_s))
        means = record.means(5.0)
        if means is None:
            assert record.over_s < 5
            continue
        last, seconds = [], 0.0
        while seconds < 5:
            last.append(paces[-1 - len(last)])
            seconds += last[-1][1]
        assert means.over_s == pytest.approx(seconds)
        assert means.workers == pytest.approx(4)
        assert means.busy == pytest.approx(sum(pace.busy * over_s for pace, over_s in last) / seconds)
        assert means.rate == pytest.approx(sum(pace.read for pace, _ in last) / seconds)
        assert means.waited == pytest.approx(sum(pace.waited * over_s for pace, over_s in last) / seconds)
        owed = sum(pace.waited * pace.busy / 4 * over_s for pace, over_s in last) / seconds
        assert means.owed == pytest.approx(owed)
        assert means.load == pytest.approx(means.busy / (1 - owed))
        assert means.fullness == pytest.approx(means.busy / 4)
        spread = sum((pace.read - means.rate * over_s) ** 2 for pace, over_s in last)
        assert means.error == pytest.approx(math.sqrt(spread) / seconds, abs=1e-6)


def test_what_is_not_recorded_has_no_means() -> None:
    record = PaceRecord()
    assert record.means(0.0) is None
    assert record.waited(5.0, 0.0) == 0.0
    record.add(JobPace(1, 1.0, 1, 1, 1.0), 0.5)
    assert record.means(0.5) is not None
    assert record.means(0.6) is None
    record.clear()
    assert record.means(0.5) is None


def test_workers_that_are_waited_for_all_the_time_are_too_few_by_any_number() -> None:
    record = PaceRecord()
    record.add(JobPace(2, 2.0, 1, 0, 1.0), 5.0)
    means = record.means(5.0)
    assert means is not None
    assert means.load == math.inf


def test_waiting_between_two_times() -> None:
    record = PaceRecord()
    for waited in (0.0, 0.2, 0.4, 0.6):
        record.add(JobPace(1, 1.0, 1, 1, waited), 1.0)
    assert record.waited(4.0, 2.0) == pytest.approx(0.1)
    assert record.waited(2.0, 0.0) == pytest.approx(0.5)


def test_messages_between_heartbeats_do_not_shorten_the_time_that_was_waited() -> None:
    """In queue mode reports of leases come several times a second, and each counts as hearing the trainer."""
    job = _Job(stream=_View(leases=object()))
    trainer = job.trainer("stream", 0)
    for at in range(1, 21):
        trainer.heard_s = at / 2 - 0.01
        say(trainer, at, 500, at / 2)
    seconds, sums = trainer.lately.over(5.0) or (0.0, [])
    assert sums[1] / 1e6 == pytest.approx(0.5 * seconds)
    assert trainer.waited_permille == pytest.approx(500)
