"""What the receive thread makes of orders that come in one turn, without its thread and sockets."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from shared.errors import LostError
from shared.logs import Log
from shared.memory import SlotMemory
from shared.wire import messages as m
from shared.wire.message_parts import Ticket, WireShape
from trainer_client.core import events as e
from trainer_client.core import instructions as i
from trainer_client.core.upcoming import Position, UpcomingBatch
from trainer_client.network.awaited_answers import AwaitedAnswers
from trainer_client.network.outbox import Outbox, Reader
from trainer_client.network.receive_thread import Wires
from trainer_client.network.receiver import Receiver

START = Position(0, 0, 1)


@pytest.fixture
def receiver():
    bare = object.__new__(Receiver)
    bare.outbox, bare._offers, bare._wires, bare.log = Outbox(lambda: None), [], Wires(None), Log("trainer")
    yield bare
    bare._wires.waker.close()


def offer(seq: int, slot: int) -> i.Offer:
    header = m.Pushed(
        ticket=Ticket(slot, 1), epoch=0, number=seq, empty=False, in_slot=True, shape=WireShape(2, ()), nbytes=64,
        digest=0, rows=2, masked=0, reason="", reasons=(), build_us=1, read_us=0, held_us=1, waiting=0,
    )  # fmt: skip
    return i.Offer(seq, slot, UpcomingBatch(START, 0, 0, seq, empty=False), header)


def test_what_is_offered_in_the_turn_of_a_restart_is_handed_back(receiver):
    """Its slot was never free again: an offer that had not reached the outbox was forgotten."""
    receiver._wires.memory = SlotMemory(2, 64)
    events = receiver._carry_out([offer(0, 1), i.Restart(0, 1)])
    assert events == []
    assert list(receiver.outbox.read_facts()) == [e.HandedBack(0, 1)]
    receiver._wires.memory.close()


def test_whoever_waits_to_be_attached_when_the_feed_fails_is_told_once(receiver):
    """The answer to its request may be decided in the same turn."""
    receiver._answers = AwaitedAnswers()
    serial, waiting = receiver._answers.expect()
    first, second = (LostError(expected="a", got=got, where="c", remedy="d") for got in ("first", "second"))
    receiver._carry_out([i.Fail(first), i.AnswerAttach(serial, second)])
    assert waiting.exception(0) is first
    assert receiver.outbox.error is first


def test_what_is_offered_in_the_turn_of_a_taking_back_is_taken_back(receiver):
    receiver._wires.memory = SlotMemory(2, 64)
    assert receiver._carry_out([offer(0, 1), i.TakeBack(0)]) == [e.TakenBack(0, True)]
    receiver._wires.memory.close()


def test_that_a_consumer_was_faster_comes_with_what_it_took(receiver):
    receiver._wires.memory = SlotMemory(2, 64)
    reader = Reader(START)
    receiver.outbox._wanted = reader
    receiver._carry_out([offer(0, 1), i.Serve(reader.serial, 0)])
    item = receiver.outbox.take(reader)
    assert receiver._carry_out([i.TakeBack(0)]) == [e.TakenBack(0, False), e.Took(0, 1)]
    del item
    receiver._wires.memory.close()


def test_the_core_is_told_what_did_not_get_out_to_the_coordinator(receiver):
    order = i.ToCoordinator(m.StatusQuery())
    for sent, events in ((True, []), (False, [e.CoordinatorAway()])):
        receiver._wires.coordinator = SimpleNamespace(send=lambda _, sent=sent: sent)
        assert receiver._carry_out([order]) == events
