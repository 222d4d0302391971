"""One pass over a feed: batch by batch, or small ones stacked."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

import trainer_client
from shared.hashing import digest64
from shared.wire import messages as m
from shared.wire.batch_layout import RESET
from shared.wire.message_parts import WireField, WireShape
from tests.support.ends import Ends
from tests.support.loaders import wait_until
from tests.support.lone_core import BATCHES, FIELDS, SHAPE, pushed

WIDE = WireShape(2, (("audio", 32),))


def test_stacked_batches_lie_one_behind_another(feed):
    with feed._session.open() as reading:
        numbers = []
        while len(numbers) < 6:
            audio = reading.take_stacked(["audio"], 4)["audio"]
            assert 1 <= len(audio) <= 4
            numbers += [int(one.view("uint8").flat[0]) for one in audio]
        assert numbers == list(range(len(numbers)))


def _in_threes(want):
    """A worker whose batches come in two shapes, three of each in a row."""
    shape = (SHAPE, WIDE)[want.number // 3 % 2]
    nbytes = 4 * shape.rows * dict(shape.lengths)["audio"]
    payload = np.full(nbytes, want.number, np.uint8)
    return [pushed(want, shape=shape, nbytes=nbytes, digest=digest64(payload.data)), payload.tobytes()]


def test_only_batches_of_one_shape_are_stacked():
    with Ends(shapes=(SHAPE, WIDE)) as ends:
        ends.answers[m.Want] = _in_threes
        with trainer_client.connect(ends.endpoint, prefetch=16) as feed, feed._session.open() as reading:
            numbers = []
            while len(numbers) < BATCHES:
                audio = reading.take_stacked(["audio"], 8)["audio"]
                several = [int(one.view("uint8").flat[0]) for one in audio]
                assert all((one.view("uint8") == number).all() for one, number in zip(audio, several, strict=True))
                assert len({number // 3 for number in several}) == 1
                assert audio.shape[1:] == (2, 32 if several[0] // 3 % 2 else 8)
                numbers += several
            assert numbers == list(range(BATCHES))
            assert reading.taken == BATCHES


def test_no_more_are_stacked_than_asked_for():
    with Ends() as ends, trainer_client.connect(ends.endpoint, prefetch=8) as feed, feed._session.open() as batches:
        next(batches)
        wait_until(lambda: len(feed._session.receiver.outbox._inbox) >= 5, "five batches are there")
        assert [len(batches.take_stacked(["audio"], most)["audio"]) for most in (3, 1)] == [3, 1]
        assert batches.taken == 5


def test_a_single_one_stays_where_it_lies_and_several_are_copied():
    with Ends() as ends, trainer_client.connect(ends.endpoint, prefetch=8) as feed, feed._session.open() as batches:
        receiver = feed._session.receiver
        single = batches.take_stacked(["audio"], 1)["audio"]
        assert np.shares_memory(single, receiver.memory._bytes)
        assert single.flags.c_contiguous
        wait_until(lambda: len(receiver.outbox._inbox) >= 5, "five batches are there")
        assert not np.shares_memory(batches.take_stacked(["audio"], 3)["audio"], receiver.memory._bytes)
        assert receiver.outbox.holds_more_than(0)
        del single
        assert not receiver.outbox.holds_more_than(0)


def _no_reset(want):
    """A worker whose rows all go on."""
    payload = np.zeros(128, np.uint8)
    return [pushed(want, nbytes=len(payload), digest=digest64(payload.data)), payload.tobytes()]


@pytest.fixture
def carried():
    """From a number on: a feed of two ranks, whose rows carry state."""

    with contextlib.ExitStack() as opened:

        def connect(number):
            ends = opened.enter_context(Ends(fields=(*FIELDS, WireField.of(RESET))))
            ends.answers[m.Want] = _no_reset
            feed = opened.enter_context(trainer_client.connect(ends.endpoint, rank=0, world=2, replicas=2))
            feed.restore(feed.state() | {"number": number})
            return feed

        yield connect


@pytest.mark.parametrize(("number", "forgotten"), [(0, 0), (8, 2)])
def test_where_a_pass_begins_in_mid_epoch_each_rank_forgets_its_state_once(carried, number, forgotten):
    """At the beginning the plan says so, and the batch is what the worker built."""
    with carried(number)._session.open() as reading:
        resets = [next(reading)["reset"].tolist() for _ in range(4)]
    assert resets == [[True, True]] * forgotten + [[False, False]] * (4 - forgotten)


@pytest.mark.parametrize("most", [1, 3])
def test_batches_that_are_stacked_forget_as_single_ones_do(carried, most):
    with carried(8)._session.open() as reading:
        resets = []
        while len(resets) < 4:
            resets += reading.take_stacked(["audio", "reset"], most)["reset"].tolist()
    assert resets[:2] == [[True, True]] * 2
    assert resets[2:] == [[False, False]] * (len(resets) - 2)


def test_who_does_not_look_at_resets_gets_none(carried):
    with carried(8)._session.open() as reading:
        assert set(reading.take_stacked(["audio"], 2)) == {"audio"}
