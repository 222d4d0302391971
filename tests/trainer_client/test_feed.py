"""What users call, against a coordinator and a worker in this process: what is refused, and how the cursor moves."""

from __future__ import annotations

import pytest

import trainer_client
from shared import messages as m
from shared.errors import SettingsError
from tests.support.ends import Ends
from tests.support.lone_core import BATCHES, DIGEST


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
    assert ends.wait_for(m.Attach, 2).cursor == m.Cursor(2, 8, 4, DIGEST)
    feed.rewind()
    assert (feed.epoch, feed.cursor) == (0, 0)
    assert ends.wait_for(m.Attach, 3).cursor == m.Cursor(0, 0, 4, DIGEST)


def test_a_consumer_that_keeps_batches_gets_copies(feed):
    kept = list(feed)
    assert [batch.number for batch in kept] == list(range(BATCHES))
    assert all((batch["audio"].view("uint8") == batch.number).all() for batch in kept)
    assert feed.copied > 0


def test_stacked_batches_lie_one_behind_another(feed):
    with feed.open() as reading:
        numbers = []
        while len(numbers) < 6:
            audio = reading.stacked(["audio"], 4)["audio"]
            assert 1 <= len(audio) <= 4
            numbers += [int(one.view("uint8").flat[0]) for one in audio]
        assert numbers == list(range(len(numbers)))


def test_a_sample_is_called_what_the_source_calls_it(feed):
    assert feed.tag(3) == "sample 3"
