"""What users call, against a coordinator and a worker in this process: what is refused, and how the cursor moves."""

from __future__ import annotations

from dataclasses import replace

import pytest

import trainer_client
from shared.errors import ClosedError, EndedError, LostError, SettingsError
from shared.wire import messages as m
from shared.wire.message_parts import Cursor, WireShape
from tests.support.ends import Ends
from tests.support.loaders import wait_until
from tests.support.lone_core import BATCHES, DIGEST, SHAPE


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
    assert (feed.epoch, feed.number, feed.rounds_left()) == (0, 0, BATCHES)
    feed.trained(2)
    assert (feed.epoch, feed.number, feed.rounds_left()) == (0, 2, BATCHES - 2)
    assert feed._session.receiver.standing.trained_to == (0, 2)
    with feed.open() as reading:
        assert [batch.number for batch in reading] == list(range(2, BATCHES))
    feed.trained(BATCHES - 2)
    assert (feed.epoch, feed.number) == (1, 0)


def test_an_iterator_that_came_to_its_end_was_trained_on(feed):
    assert [batch.number for batch in feed] == list(range(BATCHES))
    assert (feed.epoch, feed.number) == (1, 0)
    feed.trained()  # nothing to add
    assert (feed.epoch, feed.number) == (1, 0)
    with feed.open() as reading:
        next(reading)
        feed.trained()
    assert (feed.epoch, feed.number) == (1, 1)


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
    assert (feed.epoch, feed.number) == (2, 8)
    assert ends.wait_for(m.Attach, 2).cursor == Cursor(2, 8, 4, DIGEST)
    feed._session.cursor.rewind()
    assert (feed.epoch, feed.number) == (0, 0)
    assert ends.wait_for(m.Attach, 3).cursor == Cursor(0, 0, 4, DIGEST)


def test_who_reads_is_interrupted_and_an_answered_interrupt_is_forgotten(feed):
    feed.interrupt(KeyboardInterrupt("stop"))
    assert isinstance(feed._session.error, KeyboardInterrupt)
    with feed.open() as reading:
        assert next(reading).number == 0
        feed.interrupt(KeyboardInterrupt("again"))
        with pytest.raises(KeyboardInterrupt, match="again"):
            next(reading)


WIDE = WireShape(2, (("audio", 32),))


def test_its_shapes_are_those_of_the_stream():
    with Ends(shapes=(SHAPE, WIDE)) as ends, trainer_client.connect(ends.endpoint) as feed:
        assert [(one.rows, dict(one.lengths)) for one in feed.shapes] == [(2, {"audio": 8}), (2, {"audio": 32})]


def test_a_feed_of_two_ranks_counts_in_rounds():
    with Ends() as ends, trainer_client.connect(ends.endpoint, replicas=2) as feed:
        assert (feed.rounds_left(), feed._session.cursor.most_rounds()) == (BATCHES // 2, BATCHES // 2)
        asked = ends.wait_for(m.Attach)
        assert (asked.rank, asked.replicas, asked.world) == (0, 2, 2)
        with feed.open() as reading:
            assert [next(reading).number for _ in range(6)] == list(range(6))
            assert reading.rounds == 3
        feed.trained(3)
        assert feed.number == 6
        assert [batch.number for batch in feed] == list(range(6, BATCHES))
        assert (feed.epoch, feed.number) == (1, 0)
        assert feed._session.accounts.counts.rounds == BATCHES // 2


def test_a_rank_among_others_reads_its_part_of_each_round():
    with Ends() as ends, trainer_client.connect(ends.endpoint, rank=1, world=2) as feed:
        with feed.open() as reading:
            assert [next(reading).number for _ in range(3)] == [1, 3, 5]
        assert ends.wait_for(m.Attach, 2).cursor == Cursor(0, 0, 4, DIGEST), "it says where it stands before it reads"
        feed.trained(2)
        assert (feed.number, feed.rounds_left()) == (4, BATCHES // 2 - 2)
        with feed.open() as reading:
            assert next(reading).number == 5
        assert len([one for one in ends.heard if isinstance(one, m.Attach)]) == 2, "it was said"


def test_a_rank_whose_restore_was_refused_still_says_where_it_stands():
    with Ends() as ends, trainer_client.connect(ends.endpoint, rank=1, world=2) as feed:
        with pytest.raises(SettingsError, match="restore: expected cursor"):
            feed.restore({**feed.state(), "epoch": 2**31 + 1})
        with feed.open() as reading:
            assert next(reading).number == 1
        assert ends.wait_for(m.Attach, 2).cursor == Cursor(0, 0, 4, DIGEST)


def test_an_evaluation_feed_gives_its_epoch_again_and_again():
    with Ends(evaluation=True) as ends, trainer_client.connect(ends.endpoint) as feed:
        assert feed._session.spec.evaluation
        with feed.open() as reading:
            assert [next(reading).number for _ in range(3)] == [0, 1, 2]
        feed.trained(3)
        for _ in range(2):
            assert [(batch.epoch, batch.number) for batch in feed] == [(0, number) for number in range(BATCHES)]
            assert (feed.epoch, feed.number, feed.rounds_left()) == (0, 0, BATCHES)


def test_what_was_read_before_going_elsewhere_counts_for_no_epoch(feed):
    with feed.open() as reading:
        assert next(reading).number == 0
    feed.restore(feed.state())
    assert feed._session.accounts.close(0) is None


def test_the_group_of_later_epochs_is_what_the_coordinator_said_last():
    with Ends() as ends, trainer_client.connect(ends.endpoint) as feed:
        assert feed.state()["group"] == 4
        ends.facts["next_group"] = 2
        feed.restore({**feed.state(), "epoch": 1})
        with feed.open() as reading:
            batches = list(reading)
        feed.trained(len(batches))
        assert (feed.epoch, feed.state()["group"]) == (2, 2)


def test_a_reading_that_was_closed_gives_no_more(feed):
    with feed.open() as reading:
        next(reading)
    with pytest.raises(ClosedError):
        next(reading)
    assert (feed.epoch, feed.number) == (0, 0)


def test_a_sample_is_called_what_the_source_calls_it(feed):
    assert feed.tag(3) == "sample 3"


class TestWhetherServed:
    def test_it_is_while_the_coordinator_answers(self, feed):
        feed._session.ask_whether_served()
        assert [batch.number for batch in feed] == list(range(BATCHES))

    def test_it_is_not_once_nobody_answers(self):
        with Ends() as ends, trainer_client.connect(ends.endpoint, connect_timeout_s=60.0) as feed:
            feed._session.receiver.settings = replace(feed._session.receiver.settings, connect_timeout_s=0.2)
            ends.answers[m.Attach] = lambda _: []
            with pytest.raises(LostError, match=r"a coordinator that answers within 0\.2 s"):
                feed._session.ask_whether_served()

    def test_what_stopped_the_feed_is_raised(self, feed):
        feed.interrupt(ValueError("meanwhile"))
        with pytest.raises(ValueError, match="meanwhile"):
            feed._session.ask_whether_served()

    def test_the_end_of_the_job_is_raised(self):
        with Ends() as ends:
            ends.answers[m.Progress] = lambda _: [m.JobEnds(drains=True, last=None)]
            with trainer_client.connect(ends.endpoint) as feed:
                wait_until(lambda: feed._session.ended, "the feed was told")
                with pytest.raises(EndedError, match="the job was ended"):
                    feed._session.ask_whether_served()
