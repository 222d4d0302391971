"""Where receive thread and consumers meet: who gets what, and who wakes whom."""

from __future__ import annotations

import threading

import pytest

from shared.messages import Pushed, Ticket, WireShape
from trainer_client.course import Position, Target
from trainer_client.handover import Handover, Item, Line

START = Position(0, 0, 1)


def item(number, rows=4, *, last=False):
    shape = WireShape(rows, ())
    header = Pushed(
        ticket=Ticket(number, 1),
        epoch=0,
        number=number,
        empty=False,
        in_slot=True,
        shape=shape,
        nbytes=64,
        digest=0,
        rows=rows,
        masked=0,
        build_us=1,
    )
    return Item(Target(START, 0, 0, number, empty=False, last=last), number, header)


@pytest.fixture
def woken():
    return []


@pytest.fixture
def handover(woken):
    return Handover(lambda: woken.append(1), lambda line: None)


@pytest.fixture
def line(handover):
    line = Line(START)
    handover.serve(line)
    return line


def test_those_of_one_shape_that_are_there_are_taken_at_once(handover, line):
    handover.deliver([(0, item(0)), (1, item(1)), (2, item(2, rows=5)), (4, item(4, rows=5))])
    first = handover.take(line)
    assert [one.slot for one in handover.take_alike(line, first, 10)] == [1]
    second = handover.take(line)
    assert second.slot == 2
    assert handover.take_alike(line, second, 10) == []  # the third of that shape has not come
    assert line.taken == 3


def test_no_more_than_asked_for_and_not_past_the_end(handover, line):
    handover.deliver([(0, item(0)), (1, item(1)), (2, item(2, last=True)), (3, item(3))])
    first = handover.take(line)
    assert len(handover.take_alike(line, first, 1)) == 1
    assert [one.slot for one in handover.take_alike(line, first, 10)] == [2]
    assert handover.take_alike(line, first, 10) == []
    assert handover.take(line) is None


def test_taking_wakes_only_who_wants_room(handover, line, woken):
    handover.deliver([(number, item(number, last=number == 3)) for number in range(4)])
    handover.take(line)
    assert len(woken) == 1
    handover.wants_room = False
    handover.take(line)
    handover.take(line)
    assert len(woken) == 1
    handover.take(line)  # the last of a line: another begins
    assert len(woken) == 2


def test_a_slot_that_comes_back_wakes_only_who_waits_for_slots(handover, woken):
    handover.hand_out(7, copied=False)
    handover.give_back(7)
    assert woken == []
    assert handover.take_back() == [7]
    handover.wants_slots = True
    handover.give_back(7)
    assert woken == [1]


def test_what_is_delivered_wakes_consumers(handover, line):
    got = []
    thread = threading.Thread(target=lambda: got.append(handover.take(line)), daemon=True)
    thread.start()
    handover.deliver([(0, item(0))])
    thread.join(5)
    assert got[0].slot == 0


def test_who_is_nudged_looks_up_and_waits_on(handover, line, monkeypatch):
    waits, wait = threading.Semaphore(0), handover._ready.wait

    def waited(timeout=None):
        waits.release()
        return wait(timeout)

    monkeypatch.setattr(handover._ready, "wait", waited)
    taken = []
    consumer = threading.Thread(target=lambda: taken.append(handover.take(line)))
    consumer.start()
    assert waits.acquire(timeout=10)
    handover.nudge()
    assert waits.acquire(timeout=10)
    assert taken == []
    handover.deliver([(0, item(0))])
    consumer.join(10)
    assert [one.slot for one in taken] == [0]
