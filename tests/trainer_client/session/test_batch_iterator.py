"""One pass over a feed: batch by batch, or small ones stacked."""

from __future__ import annotations

import numpy as np

import trainer_client
from shared.hashing import digest64
from shared.wire import messages as m
from shared.wire.parts import WireShape
from tests.support.ends import Ends
from tests.support.loaders import wait_until
from tests.support.lone_core import BATCHES, SHAPE, pushed

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
