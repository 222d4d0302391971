"""`run_elastic` at a coordinator of the test's own."""

from __future__ import annotations

import threading

import pytest

import trainer_client
from shared.errors import LostError
from shared.wire import messages as m
from tests.support.ends import Ends
from tests.support.loaders import wait_until


def test_nobody_watches_for_the_next_world_at_a_feed_that_is_lost():
    def watchers():
        return [one for one in threading.enumerate() if one.name == "stoker-elastic"]

    def train(feed):
        assert watchers()
        feed._session.receiver._fail(LostError(expected="an answer", got="none", where="w1", remedy="Start it."))
        wait_until(lambda: not watchers(), "it has ended, although training goes on")

    with Ends() as ends:
        ends.answers[m.Join] = lambda said: [m.Placed(serial=said.serial, version=1, rank=0, world=1)]
        with pytest.raises(LostError):
            trainer_client.run_elastic(train, ends.endpoint, elastic=(1, 1), new_process=True)
