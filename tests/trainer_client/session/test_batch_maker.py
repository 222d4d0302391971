"""What consumers get of slots: views, copies where they keep too many, and whoever is asked to let go first."""

from __future__ import annotations

import logging
import threading

import numpy as np
import pytest

from tests.support.lone_core import BATCHES
from trainer_client.core.upcoming import Position
from trainer_client.network.outbox import Reader
from trainer_client.session import batch_maker


@pytest.fixture
def maker(feed):
    return feed._session.maker


@pytest.fixture
def receiver(feed):
    return feed._session.receiver


def test_a_consumer_that_keeps_batches_gets_copies(feed, maker):
    kept = list(feed)
    assert [batch.number for batch in kept] == list(range(BATCHES))
    assert all((batch["audio"].view("uint8") == batch.number).all() for batch in kept)
    assert maker.copied > 0


def test_the_consumer_is_asked_to_let_go_before_batches_are_copied_out(feed, maker, receiver):
    most = receiver.stream.slots.slots - 2
    kept = []
    maker.on_short_of_slots = lambda: kept.pop(0)
    for batch in feed:
        kept.append(batch)
        assert len(kept) <= most
    assert len(kept) == most
    assert maker.copied == 0


def test_what_it_lets_go_in_another_thread_is_waited_for(feed, maker, monkeypatch):
    monkeypatch.setattr(batch_maker, "_PATIENCE_S", 60.0)
    kept = []
    maker.on_short_of_slots = lambda: threading.Thread(target=kept.pop, args=(0,)).start()
    for number, batch in enumerate(feed):
        assert batch.number == number
        kept.append(batch)
    assert maker.copied == 0


def test_one_that_lets_nothing_go_is_told_once_that_it_gets_copies(feed, maker, receiver, caplog):
    asked = []
    maker.on_short_of_slots = lambda: asked.append(1)
    kept = list(feed)
    most = receiver.stream.slots.slots - 2
    assert maker.copied == len(asked) == BATCHES - most
    assert [np.shares_memory(batch["audio"], receiver.memory._bytes) for batch in kept].count(True) == most
    (record,) = [one for one in caplog.records if one.levelno == logging.WARNING]
    assert (record.event, record.fields["kept"]) == ("batches are copied out, because the consumer keeps many", most)


def test_what_lies_in_the_reserve_is_copied_for_the_next_head_may_need_it(feed, maker, receiver):
    memory, reserve = receiver.memory, receiver.stream.slots.reserve
    item = receiver.outbox.take(Reader(Position(0, 0, 4)))
    assert np.shares_memory(maker.make(item)["audio"], memory.slot(item.slot))
    memory.slot(reserve)[:] = 7
    item.slot = reserve
    batch = maker.make(item)
    memory.slot(reserve)[:] = 8
    assert (batch["audio"].view("uint8") == 7).all()
    assert maker.copied == 0, "the consumer did nothing to cause it"
