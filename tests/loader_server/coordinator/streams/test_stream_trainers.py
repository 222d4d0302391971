"""The trainers of a stream: where the last of them stands, and how long they wait."""

from __future__ import annotations

import pytest

from loader_server.coordinator.streams.stream_trainers import AttachedTrainer, StreamTrainers
from shared.wire.message_parts import Cursor
from tests.support.coordinator import View, attach, progress


def trainer(rank: int = 0, trained: tuple[int, int] = (0, 0), heard_s: float = 0.0) -> AttachedTrainer:
    cursor = Cursor(*trained, 1, "plan-1")
    return AttachedTrainer(
        peer=b"", attach=attach(rank, 4), cursor=cursor, batches=100, heard_s=heard_s, trained=trained, read=trained
    )


def hear(one: AttachedTrainer, now_s: float, read: int, waited: int) -> float | None:
    one.hear(b"here", progress(0, 0, 0, read_number=read, waited_permille=waited), now_s)
    return one.waited_permille


class TestPlaces:
    def test_the_last_is_the_one_that_trained_least(self):
        stream = StreamTrainers(View())
        for rank, trained in enumerate([(1, 3), (0, 99), (1, 2)]):
            stream.add(trainer(rank, trained))
        assert stream.last() == (0, 99)
        stream.move(stream.trainers[1001], (1, 1))
        assert stream.last() == (1, 1)
        stream.remove(1001)
        assert stream.last() == (1, 2)

    def test_who_is_added_again_stands_where_it_is_now_only(self):
        stream = StreamTrainers(View())
        stream.add(trainer(0, (0, 5)))
        stream.add(trainer(0, (0, 9)))
        assert stream.last() == (0, 9)
        assert len(stream._positions) == 1

    def test_the_silent_are_given_up(self):
        stream = StreamTrainers(View())
        for rank in range(3):
            stream.add(trainer(rank, (0, rank), heard_s=float(rank)))
        stream.waiting_since_s = {7: 0.5, 8: 1.0}
        stream.remove_silent(1.0)
        assert sorted(stream.trainers) == [1001, 1002]
        assert stream.last() == (0, 1)
        assert stream.waiting_since_s == {8: 1.0}


class TestWaiting:
    def test_nothing_is_known_of_one_that_does_not_read(self):
        one = trainer()
        assert hear(one, 0.5, read=0, waited=0) is None
        assert hear(one, 1.0, read=1, waited=0) == 0.0

    def test_one_that_waits_for_its_first_batch_waits(self):
        assert hear(trainer(), 0.5, read=0, waited=1000) == 1000.0

    def test_it_is_of_all_the_time_that_is_known_at_first(self):
        one = trainer()
        hear(one, 1.0, read=1, waited=0)
        assert hear(one, 2.0, read=2, waited=1000) == pytest.approx(500)
        assert hear(one, 4.0, read=3, waited=1000) == pytest.approx(750)
        assert hear(one, 4.0, read=3, waited=0) == pytest.approx(750), "no time has passed"

    def test_then_it_looks_back_over_some_seconds(self):
        one = trainer()
        hear(one, 10.0, read=1, waited=1000)
        assert hear(one, 11.0, read=2, waited=0) == pytest.approx(900)
        assert hear(one, 13.0, read=3, waited=0) == pytest.approx(720)
        assert hear(one, 60.0, read=4, waited=30) == pytest.approx(30)

    def test_a_heartbeat_says_where_it_is(self):
        one = trainer()
        hear(one, 1.5, read=4, waited=0)
        assert (one.peer, one.heard_s, one.read) == (b"here", 1.5, (0, 4))
