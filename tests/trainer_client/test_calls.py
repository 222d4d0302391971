"""Every public call of a feed, with what nobody can mean: refused at the call, with a sentence; nothing is moved."""

from __future__ import annotations

import math
import os
import pickle

import numpy as np
import pytest

import trainer_client
from shared.errors import LostError, SettingsError
from shared.wire import messages as m
from tests.support.ends import Ends
from tests.support.lone_core import BATCHES

NAN, INFINITE, HUGE = math.nan, math.inf, 10**12
NO_COUNTS = (-1, 1.5, NAN, True, "3", None, [1], HUGE**3)
NO_TIMES = (-1, NAN, "1", [1], True)


def table(call, *values):
    return [pytest.param(call, value, id=f"{call.__name__}-{value!r:.24}") for value in values]


def tag(feed, value):
    feed.tag(value)


def trained(feed, value):
    feed.trained(value)


def waited(feed, value):
    feed.waited(value)


def restored(feed, value):
    feed.restore(value)


def restored_number(feed, value):
    feed.restore({**feed.state(), "number": value})


def restored_epoch(feed, value):
    feed.restore({**feed.state(), "epoch": value})


def restored_group(feed, value):
    feed.restore({**feed.state(), "group": value})


def aggregated_rows(feed, value):
    feed.aggregate({"loss": 1.0}, rows=value)


def aggregated_epoch(feed, value):
    feed.aggregate({"loss": 1.0}, rows=1, epoch=value)


def aggregated_step(feed, value):
    feed.aggregate({"loss": 1.0}, rows=1, step=value)


def aggregated(feed, value):
    feed.aggregate(value, rows=1)


def interrupted(feed, value):
    feed.interrupt(value)


def finished(feed, value):
    feed.finish(value)


def closed(feed, value):
    feed.close(value)


def pickled(feed, value):
    pickle.dumps({"feed": feed, "reading": feed.open()}[value])


CALLS = [
    *table(tag, *NO_COUNTS),
    *table(trained, *NO_COUNTS, 1, 100, HUGE),
    *table(waited, *NO_TIMES, None),
    *table(restored, None, {}, [], "state", {"epoch": 0}),
    *table(restored_number, *NO_COUNTS),
    *table(restored_epoch, *NO_COUNTS, 2**31 + 1),
    *table(restored_group, *NO_COUNTS, 0, 4097),
    *table(aggregated_rows, *NO_COUNTS),
    *table(aggregated_epoch, *(one for one in NO_COUNTS if one is not None), 2**31 + 1),
    *table(aggregated_step, *NO_COUNTS),
    *table(aggregated, None, 3, {3: 1.0}, {"loss": "x"}, {"x" * 201: 1.0}),
    *table(interrupted, None, "stop", KeyboardInterrupt),
    *table(finished, None, 3),
    *table(closed, *NO_TIMES, None),
    *table(pickled, "feed", "reading"),
]


@pytest.fixture(scope="module")
def fed():
    """One for all calls, because none of them changes anything."""
    with Ends() as ends, trainer_client.connect(ends.endpoint, prefetch=4) as feed:
        yield feed


@pytest.mark.fault(59)
@pytest.mark.parametrize(("call", "value"), CALLS)
def test_nonsense_is_refused_at_the_call(fed, call, value):
    before = fed.state()
    with pytest.raises(SettingsError) as caught:
        call(fed, value)
    assert len(str(caught.value)) < 500
    assert (fed.state(), fed._session.error) == (before, None)


@pytest.mark.fault(59)
@pytest.mark.parametrize(
    "how",
    [
        *({"rank": value, "world": 4} for value in (-1, 4, 1.5, NAN, True, "0", [0])),
        *({"world": value} for value in (-1, 0, 1.5, NAN, True, "4", 4097, 5000, HUGE)),
        *({"replicas": value} for value in (0, -1, 1.5, True, "2", 4097, None)),
        *({"work": value} for value in ("zzz", "train-end", "", 3)),
        *({"epochs": value} for value in (0, -1, 1.5, NAN, True, "3")),
        *({"elastic": value} for value in (3, (2,), (0, 2), (3, 2), (1, 5000), ("1", 2), (1.5, 2), "23")),
        *({"prefetch": value} for value in (0, -1, 1025, 1.5, NAN, True, "8")),
        *({"prefetch_bytes": value} for value in (0, -1, 1.5, NAN, True, "8", None)),
        *({"workers": value} for value in (0, -1, 33, 1.5, NAN, True, None)),
        *({"connect_timeout_s": value} for value in (0, *NO_TIMES)),
        *({"lost_timeout_s": value} for value in (0, None, *NO_TIMES)),
        *({"metrics_port": value} for value in (-1, 65536, 1.5, "9", True)),
        *({"stream": value} for value in (None, 3, b"train", "x" * 201)),
        *({"job": value} for value in (3, "x" * 201)),
        {"keys": 3},
    ],
    ids=repr,
)
def test_nonsense_is_refused_before_anything_is_opened(how):
    with pytest.raises(SettingsError) as caught:
        trainer_client.connect("tcp://127.0.0.1:1", **how)
    assert len(str(caught.value)) < 700


@pytest.mark.parametrize("endpoint", [None, "", 3, "127.0.0.1", "tcp://127.0.0.1", "tcp://127.0.0.1:99999"])
def test_what_is_no_endpoint_is_refused(endpoint):
    with pytest.raises(SettingsError):
        trainer_client.connect(endpoint)


def test_numbers_of_numpy_are_numbers(feed):
    assert feed.tag(np.int64(3)) == "sample 3"
    with feed.open() as reading:
        next(reading)
    feed.trained(np.int32(1))
    assert feed.number == 1


def test_as_many_rounds_as_were_read_are_counted_and_no_more(feed):
    with feed.open() as reading:
        assert len([next(reading) for _ in range(3)]) == 3
    with feed.open() as reading:
        next(reading)  # another look at the beginning takes nothing back
    with pytest.raises(SettingsError, match="at most the 3 rounds that were read and not counted yet, got 4"):
        feed.trained(4)
    feed.trained(2)
    feed.trained(1)
    assert feed.number == 3
    with pytest.raises(SettingsError, match="at most the 0 rounds"):
        feed.trained()
    with feed.open() as reading:
        assert len(list(reading)) == BATCHES - 3
    feed.trained(BATCHES - 3)
    with pytest.raises(SettingsError, match="at most the 0 rounds"):
        feed.trained()
    assert (feed.epoch, feed.number) == (1, 0)


def test_what_was_read_before_a_cursor_was_restored_does_not_count(feed):
    state = feed.state()
    with feed.open() as reading:
        next(reading)
    feed.restore(state)
    with pytest.raises(SettingsError, match="at most the 0 rounds"):
        feed.trained()


@pytest.mark.fault(59)
def test_a_sample_that_is_not_there_is_named():
    with Ends() as ends, trainer_client.connect(ends.endpoint) as feed:
        ends.answers[m.NameQuery] = lambda said: [m.NameAnswer(stream=said.stream, sample=said.sample, name=None)]
        with pytest.raises(SettingsError, match=r"tag: expected the number of a sample of stream train.*, got 1000000"):
            feed.tag(10**6)


@pytest.mark.fault(59)
def test_a_question_that_nobody_answers_has_a_deadline():
    with Ends() as ends, trainer_client.connect(ends.endpoint, lost_timeout_s=0.3) as feed:
        ends.answers[m.NameQuery] = lambda _said: []
        with pytest.raises(LostError, match=r"expected a worker's answer within 0\.3 s, got none"):
            feed.tag(1)


@pytest.mark.fault(59)
def test_whoever_waits_for_all_ranks_waits_for_no_coordinator_that_is_silent():
    with (
        Ends(heartbeat_timeout_ms=60_000) as ends,
        trainer_client.connect(ends.endpoint, lost_timeout_s=0.5, rank=0, world=2) as feed,
    ):
        ends.answers[m.Results] = ends.answers[m.Progress] = lambda _said: []
        with pytest.raises(LostError, match=r"a word of the coordinator within 0\.5 s, while all ranks are waited for"):
            feed.aggregate({"loss": 1.0}, rows=1)


@pytest.mark.fault(59)
@pytest.mark.parametrize(
    "call",
    [
        lambda feed: next(iter(feed)),
        lambda feed: next(feed.open()),
        lambda feed: feed.tag(1),
        lambda feed: feed.trained(0),
        lambda feed: feed.aggregate({"loss": 1.0}, rows=1),
        lambda feed: feed.restore(feed.state()),
    ],
)
def test_a_forked_child_is_told_at_once(feed, call):
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            call(feed)
        except SettingsError as error:
            os.write(write, str(error).encode())
        finally:
            os._exit(0)
    os.close(write)
    words = b"".join(iter(lambda: os.read(read, 4096), b"")).decode()
    os.close(read)
    os.waitpid(child, 0)
    assert "expected a feed that is used by the process that connected it" in words
    assert f"process {child}, which was forked from it" in words
    assert next(feed.open()).number == 0, "the parent's feed goes on"


def test_a_count_that_is_too_high_hears_the_highest(feed):
    with pytest.raises(SettingsError, match=r"a whole number from 0 to \d+, got 10{40}"):
        feed.aggregate({"loss": 1.0}, rows=10**40)
