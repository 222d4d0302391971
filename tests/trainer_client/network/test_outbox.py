"""Where receive thread and consumers meet: who gets what, and who wakes whom."""

from __future__ import annotations

import contextlib
import dis
import itertools
import sys
import threading
import time

import pytest

from shared.errors import ClosedError
from tests.support.loaders import wait_until
from tests.support.lone_core import LoneCore
from tests.support.outboxes import START, offer, serve
from trainer_client.core.events import HandedBack, Opened, Took
from trainer_client.core.instructions import WakeFor
from trainer_client.network import inbox as inbox_module
from trainer_client.network import outbox as outbox_module
from trainer_client.network.outbox import Outbox, Reader


@pytest.fixture
def woken():
    return []


@pytest.fixture
def outbox(woken):
    return Outbox(lambda: woken.append(1))


@pytest.fixture
def reader(outbox, woken):
    one = Reader(START)
    serve(outbox, one)
    woken.clear()
    facts(outbox)
    return one


def facts(outbox):
    return list(outbox.read_facts())


def test_those_of_one_shape_that_are_there_are_taken_at_once(outbox, reader):
    outbox.offer([offer(0), offer(1), offer(2, rows=5), offer(4, rows=5)])
    first = outbox.take(reader)
    assert [one.slot for one in outbox.take_alike(reader, first, 10)] == [1]
    second = outbox.take(reader)
    assert second.slot == 2
    assert outbox.take_alike(reader, second, 10) == []  # the third of that shape has not come
    assert reader.taken == 3


def test_no_more_than_asked_for_and_not_past_the_end(outbox, reader):
    outbox.offer([offer(0), offer(1), offer(2, last=True), offer(3)])
    first = outbox.take(reader)
    assert len(outbox.take_alike(reader, first, 1)) == 1
    assert [one.slot for one in outbox.take_alike(reader, first, 10)] == [2]
    assert outbox.take_alike(reader, first, 10) == []
    assert outbox.take(reader) is None


def test_it_wakes_at_first_for_what_the_core_believes_that_it_wakes_for(outbox):
    lone = LoneCore()
    lone.attach()
    assert not lone.ordered(WakeFor)
    assert lone.stream._wakes == WakeFor(room=outbox.wake_for_room, slots=outbox.wake_for_slots)


def test_taking_wakes_only_who_wants_room(outbox, reader, woken):
    outbox.offer([offer(number, last=number == 3) for number in range(4)])
    kept = [outbox.take(reader)]
    assert len(woken) == 1
    outbox.wake_for_room = False
    kept += [outbox.take(reader), outbox.take(reader)]
    assert len(woken) == 1
    kept.append(outbox.take(reader))  # the last of a reader: another begins
    assert len(woken) == 2


def test_a_slot_that_comes_back_wakes_only_who_waits_for_slots(outbox, reader, woken):
    outbox.wake_for_room = False
    outbox.offer([offer(0), offer(1)])
    first, second = outbox.take(reader), outbox.take(reader)
    del first
    assert woken == []
    outbox.wake_for_slots = True
    del second
    assert woken == [1]


@pytest.mark.fault(51)
def test_what_is_taken_and_dropped_at_once_is_told_in_this_order(outbox, reader):
    outbox.offer([offer(0), offer(1)])
    outbox.take(reader)
    kept = outbox.take(reader)
    assert facts(outbox) == [Took(0, 0), HandedBack(0, 0), Took(1, 1)]
    assert outbox.holds_more_than(0)
    assert not outbox.holds_more_than(1)
    del kept
    assert facts(outbox) == [HandedBack(1, 1)]
    assert not outbox.holds_more_than(0)


@pytest.mark.fault(51)
def test_an_item_that_a_signal_loses_on_its_way_out_is_handed_back(outbox, reader, monkeypatch):
    outbox.offer([offer(0)])
    monkeypatch.setattr(outbox, "_wake", raise_interrupt)
    with pytest.raises(KeyboardInterrupt) as caught:
        outbox.take(reader)
    del caught
    assert [fact for fact in facts(outbox) if isinstance(fact, HandedBack)] == [HandedBack(0, 0)]
    assert not outbox.holds_more_than(0)


def raise_interrupt():
    raise KeyboardInterrupt


def test_what_is_taken_back_is_not_handed_back(outbox, reader):
    outbox.offer([offer(0), offer(1)])
    assert outbox.take_back(1)
    assert not outbox.take_back(1)
    kept = outbox.take(reader)
    assert not outbox.take_back(0)
    assert facts(outbox) == [Took(0, 0)]
    del kept


def test_a_new_beginning_hands_back_what_was_here(outbox, reader):
    outbox.offer([offer(0), offer(1)])
    newer = Reader(START)
    with outbox._lock:
        outbox._ask_to_be_served(newer)
    outbox.restart(newer.serial, 2)
    assert set(facts(outbox)) == {Opened(newer.serial, START, 0), HandedBack(0, 0), HandedBack(1, 1)}
    outbox.offer([offer(2)])
    assert outbox.take(newer).seq == 2


def test_a_reader_that_is_served_too_late_asks_anew(outbox, reader):
    """Between the decision to let it go on at a number and its being served, the other reader has taken of it."""
    outbox.offer([offer(0), offer(1)])
    newer = Reader(START)
    with outbox._lock:
        outbox._ask_to_be_served(newer)
    kept = outbox.take(reader)
    facts(outbox)
    outbox.serve(newer.serial, 0)
    assert facts(outbox) == [Opened(newer.serial, START, 0)]
    outbox.serve(newer.serial, 1)
    assert outbox.take(newer).seq == 1
    del kept


def test_a_reader_whose_epoch_has_nothing_left_is_told(outbox):
    reader = Reader(START)
    with outbox._lock:
        outbox._ask_to_be_served(reader)
    outbox.serve(reader.serial, 0, ended=True)
    assert outbox.take(reader) is None


def test_it_is_known_how_long_a_consumer_has_been_waiting(outbox, reader):
    assert outbox.waiting_s(5.0) == 0.0
    thread = threading.Thread(target=lambda: outbox.take(reader), daemon=True)
    thread.start()
    wait_until(lambda: outbox.waiting_s(time.monotonic()) > 0, "the consumer waits")
    outbox.offer([offer(0)])
    thread.join(60)
    assert outbox.waiting_s(time.monotonic()) == 0.0


def test_what_is_delivered_wakes_consumers(outbox, reader):
    got = []
    thread = threading.Thread(target=lambda: got.append(outbox.take(reader)), daemon=True)
    thread.start()
    outbox.offer([offer(0)])
    thread.join(60)
    assert got[0].slot == 0


def test_who_asked_no_more_is_not_served_after_a_new_beginning(outbox, reader):
    """The one that was served is not either: what comes now is for whoever asked last."""
    newer = Reader(START)
    with outbox._lock:
        outbox._ask_to_be_served(newer)
    outbox.restart(reader.serial, 0)
    outbox.offer([offer(0)])
    first = outbox._inbox.peek()
    assert outbox.take_alike(reader, first, 1) == []
    outbox.serve(newer.serial, 0)
    assert outbox.take(newer) is first


def test_a_closed_outbox_and_a_reader_that_left_say_so(outbox, reader):
    other = Reader(START)
    outbox.leave(other)
    with pytest.raises(ClosedError, match="an open feed"):
        outbox.take(other)
    outbox.offer([offer(0)])
    assert outbox.take(reader).slot == 0
    outbox.close()
    with pytest.raises(ClosedError, match="an open feed"):
        outbox.take(reader)


def test_the_first_error_counts_and_only_an_interrupt_is_forgotten(outbox, reader):
    outbox.interrupt(KeyboardInterrupt("first"))
    outbox.interrupt(ValueError("second"))
    with pytest.raises(KeyboardInterrupt, match="first"):
        outbox.take(reader)
    outbox.forget_interrupt()
    outbox.offer([offer(0)])
    assert outbox.take(reader).slot == 0
    outbox.interrupt(ValueError("third"))
    outbox.forget_interrupt()
    with pytest.raises(ValueError, match="third"):
        outbox.take(reader)


def test_what_was_read_is_known_by_epoch_and_number(outbox, reader):
    outbox.offer([offer(0), offer(1)])
    assert (outbox.read_to, outbox.batches_read) == ((0, 0), 0)
    outbox.take_alike(reader, outbox.take(reader), 1)
    assert (outbox.read_to, outbox.batches_read) == ((0, 2), 2)


@pytest.mark.fault(51)
def test_a_batch_that_was_counted_and_not_taken_is_told_as_not_taken(outbox, reader):
    """As when a signal came between the two: whoever asks next says what the reader in service truly took."""
    outbox.offer([offer(0)])
    reader.count(outbox._inbox.peek(), 1)
    for one in (Reader(START), reader):
        with outbox._lock:
            outbox._ask_to_be_served(one)
    assert facts(outbox)[-1] == Opened(reader.serial, START, 0)


def test_what_a_reader_took_is_counted_from_its_own_beginning(outbox, reader):
    outbox.offer([offer(0), offer(1), offer(2)])
    kept = [outbox.take(reader), outbox.take(reader)]
    newer = Reader(START)
    serve(outbox, newer, 2)
    kept.append(outbox.take(newer))
    facts(outbox)
    assert not outbox.has_facts
    with outbox._lock:
        outbox._ask_to_be_served(newer)
    assert outbox.has_facts
    assert facts(outbox) == [Opened(newer.serial, START, 1)]
    del kept


@pytest.mark.parametrize("end", ["interrupt", "close", "leave"])
def test_who_waits_for_ever_is_woken_by_the_end(outbox, reader, monkeypatch, end):
    waits, wait, raised = threading.Semaphore(0), outbox._waiting.wait, []

    def waited(bell, timeout_s):
        waits.release()
        return wait(bell, timeout_s)

    def read():
        try:
            outbox.take(reader)
        except (ClosedError, KeyboardInterrupt) as error:
            raised.append(error)

    monkeypatch.setattr(outbox._waiting, "wait", waited)
    consumer = threading.Thread(target=read, daemon=True)
    consumer.start()
    assert waits.acquire(timeout=60)
    getattr(outbox, end)(*{"interrupt": [KeyboardInterrupt()], "close": [], "leave": [reader]}[end])
    consumer.join(60)
    assert len(raised) == 1


def test_a_reader_that_is_served_again_goes_on_counting(outbox, reader):
    newer = Reader(START)
    outbox.offer([offer(number) for number in range(4)])
    kept = [outbox.take(reader)]
    serve(outbox, newer, 1)
    kept.append(outbox.take(newer))
    serve(outbox, reader, 2)
    kept.append(outbox.take(reader))
    assert (reader.taken, newer.taken) == (2, 1)
    assert (reader.first, newer.first) == (1, 1)


def test_who_is_nudged_looks_up_and_waits_on(outbox, reader, monkeypatch):
    waits, wait = threading.Semaphore(0), outbox._waiting.wait

    def waited(bell, timeout_s):
        waits.release()
        return wait(bell, timeout_s)

    monkeypatch.setattr(outbox._waiting, "wait", waited)
    taken = []
    consumer = threading.Thread(target=lambda: taken.append(outbox.take(reader)))
    consumer.start()
    assert waits.acquire(timeout=60)
    outbox.nudge()
    assert waits.acquire(timeout=60)
    assert taken == []
    outbox.offer([offer(0)])
    consumer.join(60)
    assert [one.slot for one in taken] == [0]


# --- a signal's handler that raises at any line ---


class Interrupted(BaseException):
    pass


#: Behind these, and as a function begins, the interpreter looks whether a signal came.
LOOKS = ("CALL", "RESUME", "JUMP_BACKWARD", "JUMP_ABSOLUTE")


@contextlib.contextmanager
def interrupted_at(place):
    """As by a signal at this one of the places in the outbox, its finalisers included, where it could come."""
    left, came, last = itertools.count(place, -1), [], {}

    def trace(frame, event, _):
        code = frame.f_code
        if code.co_filename not in (outbox_module.__file__, inbox_module.__file__):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            before = last.get(frame, "CALL")
            last[frame] = dis.opname[code.co_code[frame.f_lasti]]
            if before.startswith(LOOKS) and next(left) == 0:
                came.append(f"{code.co_name}:{frame.f_lineno}")
                last.clear()
                raise Interrupted
        elif event == "return":
            last.pop(frame, None)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield came
    except Interrupted:
        pass
    finally:
        sys.settrace(before)
        last.clear()


@pytest.mark.fault(51)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # raised in a finaliser
def test_at_whatever_instruction_a_signal_comes_nothing_is_lost_or_given_twice():
    for place in itertools.count():
        outbox = Outbox(lambda: None)
        outbox.wake_for_slots = True
        reader, got = Reader(START), []
        serve(outbox, reader)
        facts(outbox)
        outbox.offer([offer(number, last=number == 3) for number in range(4)])
        with interrupted_at(place) as came:
            for _ in range(2):
                item = outbox.take(reader)
                got.append(item.seq)
                item = None
        item = None
        while (item := outbox.take(reader)) is not None:  # the same reader goes on
            got.append(item.seq)
        told = facts(outbox)
        assert sorted(fact.seq for fact in told if isinstance(fact, HandedBack)) == [0, 1, 2, 3], came
        assert not outbox.holds_more_than(0), came
        assert got == sorted(set(got)), came
        assert {0, 1, 2, 3} - set(got) <= {0, 1}, came
        assert len(got) >= 3, came  # one at most was in the hands of whoever was interrupted
        assert reader.taken == 4, came
        assert outbox._lock.acquire(blocking=False), came
        assert not outbox._waiting.readers, came
        if not came:
            break
    assert place > 40


@pytest.mark.fault(51)
def test_at_whatever_instruction_of_waiting_a_signal_comes_others_are_served():
    for place in itertools.count():
        outbox, reader = Outbox(lambda: None), Reader(START)
        with interrupted_at(place) as came, ring_soon(outbox, reader):
            outbox.take(reader)
        other = Reader(START)
        serve(outbox, other)
        outbox.offer([offer(0)])
        assert outbox.take(other).seq == 0
        assert not outbox._waiting.readers, came
        if not came:
            break
    assert place > 20


@contextlib.contextmanager
def ring_soon(outbox, reader):
    """Nobody waits for ever: once the consumer waits, it is told that there is no more."""
    thread = threading.Thread(target=end_once_it_waits, args=(outbox, reader), daemon=True)
    thread.start()
    try:
        yield
    finally:
        reader.closed = True
        thread.join(60)


def end_once_it_waits(outbox, reader):
    while not reader.closed:
        if outbox._waiting.readers:
            outbox.serve(reader.serial, 0, ended=True)
