"""A feed is closed once neither it nor any iterator or batch made of it is referenced, and not before."""

from __future__ import annotations

import contextlib
import gc
import pickle
import threading
from typing import TYPE_CHECKING

import pytest

import trainer_client
from tests.support.loaders import ask, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.loaders import Loaders


def _reading(feed: trainer_client.Feed) -> object:
    return feed.open()


def _loop(feed: trainer_client.Feed) -> object:
    batches = iter(feed)
    next(batches)
    return batches


def _batch(feed: trainer_client.Feed) -> object:
    return next(feed.open())


def _is_attached(loaders: Loaders) -> bool:
    return bool(ask(loaders.endpoint)["streams"]["dev"]["trainers"])


def _has_thread() -> bool:
    return any(thread.name == "stoker-receiver" for thread in threading.enumerate())


@pytest.mark.fault(60)
@pytest.mark.parametrize("made_of", [_reading, _loop, _batch])
def test_what_was_made_of_a_feed_keeps_it_open_and_nothing_else_does(
    loaders: Loaders, made_of: Callable[[trainer_client.Feed], object]
) -> None:
    made = made_of(trainer_client.connect(loaders.endpoint, stream="dev"))
    gc.collect()
    assert _has_thread()
    assert _is_attached(loaders)
    del made
    wait_until(lambda: not _has_thread(), "its thread has ended")
    wait_until(lambda: not _is_attached(loaders), "it has left the job")


def test_a_whole_epoch_is_read_of_a_feed_that_nobody_named(loaders: Loaders) -> None:
    with trainer_client.connect(loaders.endpoint, stream="dev") as feed:
        numbers = [batch.number for batch in feed]
    batches = iter(trainer_client.connect(loaders.endpoint, stream="dev", prefetch=2))
    gc.collect()
    assert [batch.number for batch in batches] == numbers


@pytest.mark.fault(60)
def test_an_error_that_was_raised_keeps_no_feed_open(loaders: Loaders) -> None:
    """Its traceback has the frames of whoever read, and they have the feed."""
    feed = trainer_client.connect(loaders.endpoint, stream="dev")
    reading = feed.open()
    feed.interrupt(KeyboardInterrupt())
    with contextlib.suppress(KeyboardInterrupt):
        next(reading)
    del feed, reading

    def has_ended() -> bool:
        gc.collect()  # again, because its own thread may have had it at the time, for a turn
        return not _has_thread()

    wait_until(has_ended, "its thread has ended")


@pytest.mark.fault(60)
def test_metrics_keep_no_feed_open_and_end_with_it(loaders: Loaders) -> None:
    feed = trainer_client.connect(loaders.endpoint, stream="dev", metrics_port=0)
    del feed
    wait_until(lambda: not any(one.name.startswith("stoker-") for one in threading.enumerate()), "all threads end")


def test_a_batch_that_is_sent_elsewhere_goes_without_its_feed(loaders: Loaders) -> None:
    with trainer_client.connect(loaders.endpoint, stream="dev") as feed:
        batch = next(feed.open())
        sent = pickle.loads(pickle.dumps(batch))
    assert (sent.number, sent.rows, sent.digest) == (batch.number, batch.rows, batch.digest)
    assert (sent["audio"] == batch["audio"]).all()
