"""`run_elastic` at a coordinator of the test's own."""

from __future__ import annotations

import itertools
import threading
import time

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
        feed._session.receiver.fail(LostError(expected="an answer", got="none", where="w1", remedy="Start it."))
        wait_until(lambda: not watchers(), "it has ended, although training goes on")

    with Ends() as ends:
        ends.answers[m.Join] = lambda said: [m.Placed(serial=said.serial, version=1, rank=0, world=1)]
        with pytest.raises(LostError):
            trainer_client.run_elastic(train, ends.endpoint, elastic=(1, 1), new_process=True)


@pytest.mark.parametrize("error", [RuntimeError("Connection closed by peer"), ConnectionError("reset")])
def test_an_exchange_that_fails_is_the_worlds_end_once_the_coordinator_knows(error):
    """Gloo's, NCCL's, Horovod's and JAX's errors are RuntimeErrors, and come before the coordinator's word."""
    calls, versions = [], itertools.count(1)

    def train(feed):
        calls.append(feed.world)
        if len(calls) == 1:
            ends.answers[m.Progress] = lambda _: [m.WorldOver(version=1, reason="a trainer is gone")]
            raise error
        ends.answers.pop(m.Progress)
        return "trained"

    with Ends(heartbeat_timeout_ms=2000) as ends:  # eight of them are waited for the word
        ends.answers[m.Join] = lambda said: [m.Placed(serial=said.serial, version=next(versions), rank=0, world=1)]
        ends.answers[m.Results] = lambda said: [m.Aggregate(serial=said.serial, whole=True, rows=0, values=())]
        assert trainer_client.run_elastic(train, ends.endpoint, elastic=(1, 1)) == "trained"
    assert calls == [1, 1]


def test_an_error_of_training_itself_is_raised_and_not_waited_out():
    def train(feed):
        raise KeyError("audio")

    began_s = time.monotonic()
    with Ends(heartbeat_timeout_ms=20_000) as ends:
        ends.answers[m.Join] = lambda said: [m.Placed(serial=said.serial, version=1, rank=0, world=1)]
        with pytest.raises(KeyError, match="audio"):
            trainer_client.run_elastic(train, ends.endpoint, elastic=(1, 1))
    assert time.monotonic() - began_s < 60  # a change would be waited for eight timeouts
