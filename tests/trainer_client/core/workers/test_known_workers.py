"""Which worker is asked, and from whom a want is taken: by pace, by what it has to do already, and by rank."""

from __future__ import annotations

import pytest

from shared.errors import LostError
from shared.wire.message_parts import Ticket
from trainer_client.core.upcoming import Entry, Position, UpcomingBatch
from trainer_client.core.workers.known_workers import (
    QUICKEST_S,
    Ask,
    KnownWorker,
    least_busy,
    longest_waiting,
    usual_pace_s,
)

REFUSED = LostError(expected="a batch", got="none", where="a worker", remedy="Wait.")


def worker(incarnation=1, *, wants=0, in_slot=False, **more):
    """One that was heard and served last at 0; its wants are numbered from 0, and were sent at 0."""
    said = {
        "name": "w",
        "connection_id": 1,
        "rank": incarnation,
        "in_slot": True,
        "lock_byte": 0,
        "heard_s": 0,
        "pinged_s": 0,
    }
    one = KnownWorker(**{"incarnation": incarnation, **said, **more})
    one.asks = {Ticket(slot, 1): Ask(slot, in_slot, sent_s=0.0, after_ping=0) for slot in range(wants)}
    return one


def entry(number=0, **more):
    batch = UpcomingBatch(Position(0, number, 1), replica=0, lap=0, number=number, empty=False)
    return Entry(batch, **more)


def chosen(*workers, batch=None, usual_s=0.0, now_s=0.0):
    found = least_busy(workers, batch or entry(), usual_s, now_s)
    return None if found is None else found.incarnation


# --- one worker ---


def test_a_new_one_gets_wants_and_is_neither_slow_nor_in_doubt():
    new = worker()
    assert new.is_live(0.0)
    assert not new.is_in_doubt(-0.1)
    assert not new.in_good_order
    assert new.pace_s(10.0) == QUICKEST_S == 0.001
    assert usual_pace_s([new]) == QUICKEST_S


@pytest.mark.parametrize("state", ["silent", "takes_no_wants"])
def test_one_that_is_silent_or_leaves_gets_no_wants(state):
    assert not worker(**{state: True}).is_live(0.0)


def test_one_that_is_busy_gets_wants_from_when_it_said():
    busy = worker(busy_until_s=5.0)
    assert not busy.is_live(4.9)
    assert busy.is_live(5.0)
    assert chosen(busy, now_s=4.9) is None
    assert chosen(busy, now_s=5.0) == 1


def test_its_pace_follows_what_it_takes_for_a_want():
    one = worker()
    one.serve(2.0, now_s=7.0)
    assert (one.service_s, one.answered_s) == (2.0, 7.0)
    one.serve(3.0, now_s=9.0)
    assert one.service_s == pytest.approx(2.3)
    assert one.pace_s(100.0) == one.service_s


def test_a_want_is_in_hand_since_it_was_sent_or_the_one_before_was_answered():
    one = worker(answered_s=4.0)
    assert one.in_hand_s(Ask(0, in_slot=False, sent_s=6.0, after_ping=0), 10.0) == 4.0
    assert one.in_hand_s(Ask(0, in_slot=False, sent_s=1.0, after_ping=0), 10.0) == 6.0


def test_the_oldest_want_in_hand_slows_its_pace():
    one = worker(service_s=1.0)
    one.asks = {
        Ticket(slot, 1): Ask(slot, in_slot=False, sent_s=sent_s, after_ping=0) for slot, sent_s in [(0, 5), (1, 9)]
    }
    assert one.pace_s(5.5) == 1.0
    assert one.pace_s(10.0) == 5.0


READING = {"read_s": 0.4, "build_s": 0.1, "at_a_time": 5.0}


def test_what_it_works_on_at_a_time_follows_from_the_times_that_it_tells():
    one = worker()
    assert one.at_a_time == 1
    one.note_times(0.0, 0.1)
    assert one.at_a_time == 1
    one.note_times(0.4, 0.1)
    assert one.read_s == pytest.approx(0.12)
    for _ in range(30):
        one.note_times(0.4, 0.1)
    assert one.at_a_time == pytest.approx(5, rel=0.01)
    one.note_times(4.0, 0.1)
    assert one.at_a_time <= 5, "readers are the limit then"


@pytest.mark.parametrize("wants", [1, 2, 5, 8])
def test_its_pace_is_the_same_however_many_wants_it_has_at_a_time(wants):
    """Five of them take 0.5 s together, and fewer take as long; then it is asked again."""
    one = worker(**READING)
    now_s, over_s = 0.0, 0.5 * max(1.0, wants / 5)
    for _ in range(200):
        one.asks = {Ticket(slot, 1): Ask(slot, in_slot=False, sent_s=now_s, after_ping=0) for slot in range(wants)}
        now_s += over_s
        for ticket in list(one.asks):
            ask = one.close(ticket)
            one.serve(one.in_hand_s(ask, now_s), now_s)
    assert one.service_s == pytest.approx(0.1, rel=0.25)


def test_wants_of_others_keep_it_busy_as_well():
    alone, shared = worker(**READING), worker(**READING)
    for step in range(100):
        alone.serve(0.5, float(step), waiting=0)
        shared.serve(0.5, float(step), waiting=9)
    assert alone.service_s == pytest.approx(0.1)
    assert shared.service_s == pytest.approx(0.5, rel=0.01)


def test_time_on_the_way_counts_for_whom_to_ask_and_not_for_what_it_could_do():
    far = worker()
    for step in range(50):
        far.serve(0.2, float(step), held_s=0.05)
    assert far.service_s == pytest.approx(0.2)
    assert far.worked_s == pytest.approx(0.05)
    far.serve(0.1, 60.0, held_s=9.0)
    assert far.worked_s < 0.06, "it cannot have worked on it for longer than we waited"


def test_the_first_of_several_at_a_time_may_take_its_full_time():
    one = worker(**READING, service_s=0.1)
    one.asks = {Ticket(0, 1): Ask(0, in_slot=False, sent_s=0.0, after_ping=0)}
    assert one.pace_s(0.5) == pytest.approx(0.1)
    assert one.pace_s(0.8) == pytest.approx(0.4)


def test_equal_workers_that_read_are_dealt_equal_numbers_of_wants():
    first, second = worker(1, **READING, service_s=0.1), worker(2, **READING, service_s=0.11)
    dealt = [0, 0]
    for number in range(8):
        number_asked = chosen(first, second, batch=entry(number))
        dealt[number_asked - 1] += 1
        asked = (first, second)[number_asked - 1]
        asked.asks[Ticket(number, 1)] = Ask(number, in_slot=False, sent_s=0.0, after_ping=0)
    assert dealt == [4, 4]


def test_it_is_in_doubt_when_not_heard_or_slow_or_not_asked_for_its_tickets_yet():
    assert worker(heard_s=3.0).is_in_doubt(3.0)
    assert not worker(heard_s=3.1).is_in_doubt(3.0)
    assert worker(heard_s=9.0, wants=1).is_in_doubt(0.0)
    assert not worker(heard_s=9.0, wants=1).is_in_doubt(-0.1)
    assert worker(heard_s=9.0, owes_list=True).is_in_doubt(0.0)


def test_only_with_tickets_for_slots_could_it_write():
    assert not worker(wants=2).could_write()
    assert worker(wants=2, in_slot=True).could_write()


# --- who is asked ---


def test_the_usual_pace_is_the_mean_of_those_that_have_one():
    assert usual_pace_s([]) == QUICKEST_S
    assert usual_pace_s([worker(service_s=1.0), worker(service_s=3.0), worker()]) == 2.0


def test_the_one_that_is_through_first_is_asked():
    assert chosen() is None
    assert chosen(worker(1, service_s=2.0), worker(2, service_s=1.0)) == 2
    assert chosen(worker(1, service_s=1.0, wants=2), worker(2, service_s=2.0)) == 2  # 3 s against 2 s
    assert chosen(worker(1, service_s=1.0, wants=1), worker(2, service_s=2.1)) == 1  # 2 s against 2.1 s


def test_equals_are_told_apart_by_what_they_have_and_then_by_rank():
    assert chosen(worker(1, service_s=1.0, wants=1), worker(2, service_s=2.0)) == 2  # 2 s each
    assert chosen(worker(1, rank=8), worker(2, rank=7)) == 2
    assert chosen(worker(1, rank=7), worker(2, rank=8)) == 1


def test_one_without_a_pace_is_taken_for_a_usual_one():
    assert chosen(worker(1), worker(2, service_s=1.0), usual_s=2.0) == 2
    assert chosen(worker(1), worker(2, service_s=3.0), usual_s=2.0) == 1
    assert chosen(worker(1, service_s=1.0), worker(2, service_s=1.5), usual_s=9.0) == 1
    slow = worker(1, wants=1)  # for 3 s
    assert chosen(slow, worker(2, service_s=5.0), usual_s=2.0, now_s=3.0) == 2


def test_who_has_the_batch_or_refused_it_is_not_asked():
    assert chosen(worker(1), batch=entry(askers={1: Ticket(0, 1)})) is None
    assert chosen(worker(1), batch=entry(refused={1: REFUSED})) is None
    assert chosen(worker(1), worker(2), batch=entry(askers={1: Ticket(0, 1)})) == 2


# --- what is taken over ---


def entries(*numbers, **more):
    return {number: entry(number, **{"askers": {1: Ticket(number, 1)}, **more}) for number in numbers}


def taken(*donors, entries, enough_s=0.0, thief=9):
    found = longest_waiting(donors, worker(thief), entries, enough_s, now_s=0.0)
    return None if found is None else (found[0], found[1].incarnation, found[2].slot)


def test_what_a_worker_builds_is_left_to_it_and_the_next_is_taken():
    assert taken(worker(wants=1), entries=entries(0)) is None
    assert taken(worker(wants=3), entries=entries(0, 1, 2)) == (1, 1, 1)


def test_only_what_waits_longer_than_enough_is_taken():
    donor = worker(wants=4, service_s=2.0)
    assert taken(donor, entries=entries(0, 1, 2, 3), enough_s=1.9) == (1, 1, 1)
    assert taken(donor, entries=entries(0, 1, 2, 3), enough_s=2.0) == (2, 1, 2)
    assert taken(donor, entries=entries(0, 1, 2, 3), enough_s=6.0) is None


def test_of_several_workers_the_next_in_line_is_taken():
    first, second = worker(1, wants=1), worker(2, wants=3)
    assert taken(first, second, entries=entries(0, 1, 2)) == (1, 2, 1)
    first = worker(1, wants=5)
    del first.asks[Ticket(1, 1)]
    assert taken(first, second, entries=entries(0, 1, 2, 3, 4)) == (1, 2, 1)
    assert taken(second, first, entries=entries(0, 1, 2, 3, 4)) == (1, 2, 1)


@pytest.mark.parametrize(
    "other",
    [
        {},
        {1: entry(1, askers={1: Ticket(1, 1)}, header=object())},  # it is here
        {1: entry(1, askers={1: Ticket(1, 1), 2: Ticket(1, 2)})},  # two have it
        {1: entry(1, askers={1: Ticket(1, 1)}, refused={9: REFUSED})},
    ],
)
def test_what_would_not_help_is_passed_over(other):
    assert taken(worker(wants=3), entries={**entries(0, 2), **other}) == (2, 1, 2)
