"""What users call, against a coordinator and a worker in this process: what is refused, and how the cursor moves."""

from __future__ import annotations

import logging
import threading

import numpy as np
import pytest

import trainer_client
from shared.errors import SettingsError
from shared.hashing import digest64
from shared.wire import messages as m
from shared.wire.parts import Cursor, WireShape
from tests.support.ends import Ends
from tests.support.lone_core import BATCHES, DIGEST, SHAPE, pushed
from trainer_client import feed as module
from trainer_client.core.upcoming import Position
from trainer_client.network.outbox import Reader


@pytest.fixture(scope="module")
def ends():
    with Ends() as both:
        yield both


@pytest.fixture
def feed(ends):
    ends.heard.clear()
    with trainer_client.connect(ends.endpoint, prefetch=4) as one:
        yield one


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"rank": -1}, "connect: expected rank >= 0 and rank + replicas <= world, got rank -1, replicas 1, world 1."),
        ({"rank": 1}, "got rank 1, replicas 1, world 1. Ranks count from 0; world counts all ranks."),
        ({"rank": 3, "replicas": 2, "world": 4}, "got rank 3, replicas 2, world 4."),
        ({"replicas": 0, "world": 1}, "got rank 0, replicas 0, world 1."),
        ({"prefetch": 0}, "connect: expected prefetch from 1 to 1024, got 0. Leave it out: 8 is usual."),
        ({"prefetch": 1025}, "got 1025."),
        ({"workers": 0}, "connect: expected workers from 1 to 32, got 0. Leave it out: 16 is usual."),
        ({"workers": 33}, "got 33."),
    ],
)
def test_nonsense_is_refused_before_anything_is_opened(how, words):
    with pytest.raises(SettingsError) as caught:
        trainer_client.connect("tcp://127.0.0.1:1", **how)
    assert words in str(caught.value)


def test_the_cursor_moves_by_what_was_trained_on(feed):
    with feed.open() as reading:
        assert [next(reading).number for _ in range(3)] == [0, 1, 2]
    assert (feed.epoch, feed.cursor, feed.rounds_left()) == (0, 0, BATCHES)
    feed.trained(2)
    assert (feed.epoch, feed.cursor, feed.rounds_left()) == (0, 2, BATCHES - 2)
    assert feed._receiver.standing.trained_to == (0, 2)
    with feed.open() as reading:
        assert next(reading).number == 2
    feed.trained(BATCHES - 2)
    assert (feed.epoch, feed.cursor) == (1, 0)


def test_an_iterator_that_came_to_its_end_was_trained_on(feed):
    assert [batch.number for batch in feed] == list(range(BATCHES))
    assert (feed.epoch, feed.cursor) == (1, 0)
    feed.trained()  # nothing to add
    assert (feed.epoch, feed.cursor) == (1, 0)
    with feed.open():
        feed.trained()
    assert (feed.epoch, feed.cursor) == (1, 1)


def test_a_cursor_of_another_plan_is_refused(feed):
    state = feed.state()
    assert state == {
        "job": "digits", "stream": "train", "plan_digest": DIGEST, "epoch": 0, "number": 0, "group": 4,
    }  # fmt: skip
    for name in ("job", "stream", "plan_digest"):
        with pytest.raises(SettingsError, match=rf"restore: expected a cursor of {name} {state[name]}, got other"):
            feed.restore({**state, name: "other"})


def test_it_goes_where_it_is_told_and_back_to_the_beginning(ends, feed):
    feed.restore({**feed.state(), "epoch": 2, "number": 8})
    assert (feed.epoch, feed.cursor) == (2, 8)
    assert ends.wait_for(m.Attach, 2).cursor == Cursor(2, 8, 4, DIGEST)
    feed.rewind()
    assert (feed.epoch, feed.cursor) == (0, 0)
    assert ends.wait_for(m.Attach, 3).cursor == Cursor(0, 0, 4, DIGEST)


def test_a_consumer_that_keeps_batches_gets_copies(feed):
    kept = list(feed)
    assert [batch.number for batch in kept] == list(range(BATCHES))
    assert all((batch["audio"].view("uint8") == batch.number).all() for batch in kept)
    assert feed.copied > 0


def test_the_consumer_is_asked_to_let_go_before_batches_are_copied_out(feed):
    most = feed._receiver.line.slots.slots - 2
    kept = []
    feed.on_short_of_slots = lambda: kept.pop(0)
    for batch in feed:
        kept.append(batch)
        assert len(kept) <= most
    assert len(kept) == most
    assert feed.copied == 0


def test_what_it_lets_go_in_another_thread_is_waited_for(feed, monkeypatch):
    monkeypatch.setattr(module, "_PATIENCE_S", 20.0)
    kept = []
    feed.on_short_of_slots = lambda: threading.Thread(target=kept.pop, args=(0,)).start()
    for number, batch in enumerate(feed):
        assert batch.number == number
        kept.append(batch)
    assert feed.copied == 0


def test_one_that_lets_nothing_go_is_told_once_that_it_gets_copies(feed, caplog):
    asked = []
    feed.on_short_of_slots = lambda: asked.append(1)
    kept = list(feed)
    most = feed._receiver.line.slots.slots - 2
    assert feed.copied == len(asked) == BATCHES - most
    assert [np.shares_memory(batch["audio"], feed._receiver.memory._bytes) for batch in kept].count(True) == most
    (record,) = [one for one in caplog.records if one.levelno == logging.WARNING]
    assert (record.event, record.fields["kept"]) == ("batches are copied out, because the consumer keeps many", most)


def test_what_lies_in_the_reserve_is_copied_for_the_next_head_may_need_it(feed):
    memory, reserve = feed._receiver.memory, feed._receiver.line.slots.reserve
    item = feed._receiver.outbox.take(Reader(Position(0, 0, 4)))
    assert np.shares_memory(feed._batch(item)["audio"], memory.slot(item.slot))
    memory.slot(reserve)[:] = 7
    item.slot = reserve
    batch = feed._batch(item)
    memory.slot(reserve)[:] = 8
    assert (batch["audio"].view("uint8") == 7).all()
    assert feed.copied == 0, "the consumer did nothing to cause it"


def test_stacked_batches_lie_one_behind_another(feed):
    with feed.open() as reading:
        numbers = []
        while len(numbers) < 6:
            audio = reading.stacked(["audio"], 4)["audio"]
            assert 1 <= len(audio) <= 4
            numbers += [int(one.view("uint8").flat[0]) for one in audio]
        assert numbers == list(range(len(numbers)))


def test_who_reads_is_interrupted_and_an_answered_interrupt_is_forgotten(feed):
    feed.interrupt(KeyboardInterrupt("stop"))
    assert isinstance(feed.error, KeyboardInterrupt)
    with feed.open() as reading:
        assert next(reading).number == 0
        feed.interrupt(KeyboardInterrupt("again"))
        with pytest.raises(KeyboardInterrupt, match="again"):
            next(reading)


def test_a_nudge_makes_whoever_waits_look_up(feed, monkeypatch):
    rung = []
    monkeypatch.setattr(feed._receiver.outbox._waiting, "ring", lambda: rung.append(1))
    feed.nudge()
    assert rung


WIDE = WireShape(2, (("audio", 32),))


def _in_threes(want):
    """A worker whose batches come in two shapes, three of each in a row."""
    shape = (SHAPE, WIDE)[want.number // 3 % 2]
    nbytes = 4 * shape.rows * dict(shape.lengths)["audio"]
    payload = np.full(nbytes, want.number, np.uint8)
    return [pushed(want, shape=shape, nbytes=nbytes, digest=digest64(payload.data)), payload.tobytes()]


def test_only_batches_of_one_shape_are_stacked():
    with Ends(shapes=(SHAPE, WIDE)) as ends:
        ends.answers[m.Want] = _in_threes
        with trainer_client.connect(ends.endpoint, prefetch=16) as feed, feed.open() as reading:
            numbers = []
            while len(numbers) < BATCHES:
                audio = reading.stacked(["audio"], 8)["audio"]
                several = [int(one.view("uint8").flat[0]) for one in audio]
                assert all((one.view("uint8") == number).all() for one, number in zip(audio, several, strict=True))
                assert len({number // 3 for number in several}) == 1
                assert audio.shape[1:] == (2, 32 if several[0] // 3 % 2 else 8)
                numbers += several
            assert numbers == list(range(BATCHES))
            assert reading.rounds == BATCHES


def test_its_shapes_are_those_of_the_stream():
    with Ends(shapes=(SHAPE, WIDE)) as ends, trainer_client.connect(ends.endpoint) as feed:
        assert [(one.rows, dict(one.lengths)) for one in feed.shapes] == [(2, {"audio": 8}), (2, {"audio": 32})]


def test_a_feed_of_two_ranks_counts_in_rounds():
    with Ends() as ends, trainer_client.connect(ends.endpoint, replicas=2) as feed:
        assert (feed.replicas, feed.rounds_left(), feed.most_rounds()) == (2, BATCHES // 2, BATCHES // 2)
        asked = ends.wait_for(m.Attach)
        assert (asked.rank, asked.replicas, asked.world) == (0, 2, 2)
        with feed.open() as reading:
            assert [next(reading).number for _ in range(6)] == list(range(6))
            assert reading.rounds == 3
        feed.trained(3)
        assert feed.cursor == 6
        assert [batch.number for batch in feed] == list(range(6, BATCHES))
        assert (feed.epoch, feed.cursor) == (1, 0)


def test_a_rank_among_others_reads_its_part_of_each_round():
    with Ends() as ends, trainer_client.connect(ends.endpoint, rank=1, world=2) as feed:
        with feed.open() as reading:
            assert [next(reading).number for _ in range(3)] == [1, 3, 5]
        assert ends.wait_for(m.Attach, 2).cursor == Cursor(0, 0, 4, DIGEST), "it says where it stands before it reads"
        feed.trained(2)
        assert (feed.cursor, feed.rounds_left()) == (4, BATCHES // 2 - 2)
        with feed.open() as reading:
            assert next(reading).number == 5
        assert len([one for one in ends.heard if isinstance(one, m.Attach)]) == 2, "it was said"


def test_an_evaluation_feed_gives_its_epoch_again_and_again():
    with Ends(evaluation=True) as ends, trainer_client.connect(ends.endpoint) as feed:
        assert feed.evaluation
        with feed.open() as reading:
            assert [next(reading).number for _ in range(3)] == [0, 1, 2]
        feed.trained(3)
        for _ in range(2):
            assert [(batch.epoch, batch.number) for batch in feed] == [(0, number) for number in range(BATCHES)]
            assert (feed.epoch, feed.cursor, feed.rounds_left()) == (0, 0, BATCHES)


def test_a_sample_is_called_what_the_source_calls_it(feed):
    assert feed.tag(3) == "sample 3"
