"""Which workers a trainer talks to, and how each connection stands."""

from __future__ import annotations

import itertools

import pytest

from shared.errors import LostError
from shared.wire import messages as m
from shared.wire.message_parts import WorkerAddress
from tests.support.lone_core import LoneCore, address
from trainer_client.core import events as e
from trainer_client.core import instructions as i
from trainer_client.core.attached_stream import _PROBE_S
from trainer_client.core.workers.connection import _NEXT, Connection, ConnectionState
from trainer_client.core.workers.open_connections import _FIRST_LOCK_BYTE, _LAST_LOCK_BYTE, MOST_REMOTE


def opened(lone):
    return [one.endpoint for one in lone.ordered(i.Open)]


def closed(lone):
    return [one.connection_id for one in lone.ordered(i.Close)]


def remote(count, first=1):
    return [address(one, local=False) for one in range(first, first + count)]


def greet_all(lone, numbers):
    for number in numbers:
        lone.greet(number, shared=False)


def connected(lone):
    return {int(one.endpoint.rpartition(":")[2]) - 7000 for one in lone.stream.connections}


class TestStates:
    @pytest.mark.parametrize("state", ConnectionState)
    @pytest.mark.parametrize("event", sorted({event for _, event in _NEXT}))
    def test_an_absent_pair_raises_and_names_all(self, state, event):
        one = Connection(1, "tcp://h:1", local=True, opened_s=0.0, since_s=0.0, state=state)
        after = _NEXT.get((state, event))
        if after is None:
            with pytest.raises(AssertionError, match=f"tcp://h:1: cannot {event} while {state.value}"):
                one.move(event, 5.0)
        else:
            one.move(event, 5.0)
            assert one.state is after
            assert one.since_s == (5.0 if after is not state else 0.0)

    def test_a_closed_one_stays_closed(self):
        assert not [event for state, event in _NEXT if state is ConnectionState.CLOSED]


class TestSubset:
    def test_all_local_ones_and_sixteen_others(self):
        lone = LoneCore()
        lone.attach(*(address(one) for one in range(1, 21)), *remote(100, 101))
        assert len(opened(lone)) == 20 + 16
        assert {address(one).endpoint for one in range(1, 21)} <= set(opened(lone))

    @pytest.mark.parametrize("workers", [1, 5])
    def test_as_many_others_as_was_asked_for(self, workers):
        lone = LoneCore(workers=workers)
        lone.attach(*remote(100))
        assert len(opened(lone)) == workers

    def test_a_worker_that_does_not_say_where_it_is_is_no_local_one(self):
        lone = LoneCore(workers=1)
        lone.attach(*(WorkerAddress(f"w{n}", n, f"tcp://127.0.0.1:{7000 + n}", "", 0) for n in range(1, 9)))
        assert len(opened(lone)) == 1

    def test_trainers_choose_differently_and_a_restarted_worker_stays_in_its_subsets(self):
        chosen = {}
        for trainer in range(40):
            lone = LoneCore(incarnation=trainer)
            lone.attach(*remote(100))
            chosen[trainer] = frozenset(opened(lone))
            again = LoneCore(incarnation=trainer)
            again.attach(*(address(one, local=False, incarnation=5000 + one) for one in range(1, 101)))
            assert frozenset(opened(again)) == chosen[trainer]
        assert len(set(chosen.values())) == 40
        loads = [sum(address(one).endpoint in some for some in chosen.values()) for one in range(1, 101)]
        assert sum(loads) == 40 * 16
        assert max(loads) <= 20

    def test_silent_ones_do_not_count_and_others_are_added_up_to_a_bound(self):
        lone = LoneCore(workers=4)
        lone.attach(*remote(100))
        first = connected(lone)
        greet_all(lone, first)
        lone.wait(2.6)
        assert len(connected(lone)) > 4
        lone.wait(60)
        assert len(connected(lone)) <= MOST_REMOTE

    def test_of_a_full_subset_those_that_are_of_no_use_for_longest_are_given_up_first(self):
        lone = LoneCore(workers=MOST_REMOTE)
        lone.attach(*remote(MOST_REMOTE + 2))
        first, second, *_ = there = sorted(connected(lone))
        greet_all(lone, there)
        lone.wait_hearing(0.5, *there)
        connection_ids = [lone.connection_id(first), lone.connection_id(second)]
        lone.tell(e.ConnectionDown(connection_ids[0]))
        lone.tell(e.ConnectionDown(connection_ids[1]), after_s=0.01)
        lone.wait(0.3)
        assert closed(lone) == connection_ids
        assert len(opened(lone)) == 2
        assert len(connected(lone)) == MOST_REMOTE

    def test_those_that_refuse_the_head_do_not_count(self):
        lone = LoneCore(workers=2, prefetch=1)
        lone.attach(*remote(50))
        first = connected(lone)
        greet_all(lone, first)
        lone.entry(0).refused[next(iter(first))] = ValueError()
        lone.wait_hearing(0.5, *first)
        assert len(connected(lone)) == 3

    def test_the_work_of_a_tick_does_not_grow_with_the_fleet(self):
        for workers in (40, 4000):
            lone = LoneCore()
            lone.attach(*remote(workers))
            greet_all(lone, connected(lone))
            assert len(list(lone.stream.connections)) == 16


class TestTheList:
    @pytest.mark.fault(11)
    def test_a_short_list_after_a_restart_of_the_coordinator_closes_nothing(self):
        lone = LoneCore()
        lone.with_workers(3)
        lone.members(2, address(1))
        assert closed(lone) == []
        lone.members(3)
        lone.wait_hearing(200, 1, 2, 3)
        assert closed(lone) == []
        assert connected(lone) == {1, 2, 3}

    @pytest.mark.fault(41)
    def test_one_that_is_off_the_list_and_proved_dead_is_forgotten(self):
        lone = LoneCore()
        lone.with_workers(2)
        lone.members(2, address(2))
        lone.lock_is_gone = True
        lone.tell(e.ConnectionDown(lone.connection_id(1)))
        lone.wait_hearing(0.5, 2)
        assert closed(lone) == [lone.connection_ids[address(1).endpoint]]
        assert connected(lone) == {2}

    @pytest.mark.fault(41)
    def test_by_tcp_it_is_forgotten_once_it_was_cut_for_long(self):
        lone = LoneCore(lost_timeout_s=10.0)
        lone.with_workers(2, shared=False)
        lone.members(2, address(2))
        lone.tell(e.ConnectionDown(lone.connection_id(1)))
        lone.wait_hearing(9, 2)
        assert closed(lone) == []
        lone.wait_hearing(2, 2)
        assert len(closed(lone)) == 1

    @pytest.mark.fault(41)
    def test_or_at_once_if_it_left_in_good_order(self):
        lone = LoneCore(prefetch=2)
        wants = lone.with_workers(2, shared=False)
        gone = wants[0].worker
        lone.unbuilt(wants[0], "draining")
        lone.members(2, address(3 - gone))
        lone.tell(e.ConnectionDown(lone.connection_id(gone)))
        lone.wait_hearing(0.5, 3 - gone)
        assert len(closed(lone)) == 1

    @pytest.mark.fault(41)
    def test_of_many_that_are_cut_only_so_many_are_kept(self):
        lone = LoneCore()
        lone.attach(*(address(one) for one in range(1, 101)))
        greet_all(lone, range(1, 101))
        lone.members(2, address(200))
        for one in range(1, 101):
            lone.tell(e.ConnectionDown(lone.connection_id(one)))
        lone.wait(0.5)
        assert len(list(lone.stream.connections)) == MOST_REMOTE + 1, "those, and the one on the list"

    def test_not_while_the_worker_might_still_write(self):
        lone = LoneCore(prefetch=1, lost_timeout_s=5.0)
        (want,) = lone.with_workers(2)
        lone.members(2, address(3 - want.worker))
        lone.tell(e.ConnectionDown(lone.connection_id(want.worker)))
        lone.wait_hearing(30, 3 - want.worker)
        assert closed(lone) == []
        lone.tell(e.LockGone(want.worker))
        lone.wait_hearing(0.5, 3 - want.worker)
        assert len(closed(lone)) == 1


class TestGreeting:
    def test_hello_is_said_when_the_connection_comes_up_and_again_until_it_is_answered(self):
        lone = LoneCore()
        lone.attach(address(1))
        lone.tell(e.ConnectionUp(lone.connection_id(1)))
        assert len(lone.ordered(i.Greet)) == 1
        lone.wait(1.2)
        assert len(lone.ordered(i.Greet)) == 2
        lone.welcome(1)
        lone.wait_hearing(2, 1)
        assert lone.ordered(i.Greet) == []

    def test_one_that_takes_nothing_yet_is_tried_again_at_once(self):
        lone = LoneCore()
        lone.attach(address(1))
        lone.tell(e.ConnectionUp(lone.connection_id(1)))
        lone.tell(e.GreetingFailed(lone.connection_id(1)))
        assert lone.core.due_s - lone.now_s < 0.01
        lone.tell(after_s=0.01)
        assert len(lone.ordered(i.Greet)) == 1

    @pytest.mark.fault(43)
    def test_a_connection_that_never_answers_is_made_anew(self):
        lone = LoneCore()
        lone.attach(address(1))
        lone.tell(e.ConnectionUp(lone.connection_id(1)))
        lone.wait(2.5)
        assert lone.ordered(i.Renew) == [i.Renew(lone.connection_id(1))]

    @pytest.mark.fault(43)
    def test_the_next_renewal_of_a_connection_that_never_answers_comes_later(self):
        lone = LoneCore()
        lone.attach(address(1))
        lone.tell(e.ConnectionUp(lone.connection_id(1)))
        lone.wait(2.5)
        lone.tell(e.ConnectionUp(lone.connection_id(1)))
        lone.wait(3)
        assert lone.ordered(i.Renew) == []
        lone.wait(2)
        assert len(lone.ordered(i.Renew)) == 1

    @pytest.mark.fault(43)
    def test_renewals_are_at_most_eight_timeouts_apart(self):
        lone = LoneCore()
        lone.attach(address(1))
        lone.tell(e.ConnectionUp(lone.connection_id(1)))
        renewed_s = []
        for second in range(80):
            lone.wait(1.0)
            if lone.ordered(i.Renew):
                renewed_s.append(second)
                lone.tell(e.ConnectionUp(lone.connection_id(1)))
        pauses = [later - sooner for sooner, later in itertools.pairwise(renewed_s)]
        assert pauses[-2:] == pytest.approx([16.0, 16.0], abs=1.0)

    def test_a_welcome_makes_renewals_as_quick_as_at_first(self):
        lone = LoneCore()
        lone.attach(address(1))
        lone.tell(e.ConnectionUp(lone.connection_id(1)))
        lone.wait(2.5)
        (connection,) = lone.stream.connections
        first_s = lone.stream.connections._timeout_s
        assert connection.renew_pause_s == 2 * first_s
        lone.greet(1)
        assert connection.renew_pause_s == first_s

    def test_the_first_lock_byte_lies_behind_the_nonce(self):
        lone = LoneCore()
        lone.attach(address(1))
        lone.tell(e.ConnectionUp(lone.connection_id(1)))
        assert [one.lock_byte for one in lone.ordered(i.Greet)] == [16]

    def test_a_lock_that_is_not_held_is_no_shared_memory(self):
        lone = LoneCore(prefetch=1)
        lone.attach(address(1))
        lone.tell(e.ConnectionUp(lone.connection_id(1)))
        said = m.Welcome(
            worker="w1", incarnation=1, shared=True, reason="", float32="float32", compression="none", sealed_port=0
        )
        lone.tell(e.WorkerSent(lone.connection_id(1), said, payload=False))
        assert not lone.wants()[0].in_slot

    @pytest.mark.fault(44)
    def test_each_new_incarnation_is_offered_a_byte_that_nobody_has_locked(self):
        lone = LoneCore(prefetch=1)
        lone.with_workers(1)
        first = lone.stream.connections.worker_at(lone.connection_id(1)).lock_byte
        lone.tell(e.ConnectionDown(lone.connection_id(1)))
        lone.tell(e.ConnectionUp(lone.connection_id(1)))
        (greeting,) = lone.ordered(i.Greet)
        assert greeting.lock_byte not in (0, first)
        lone.welcome(1, incarnation=7)
        assert lone.stream.connections.worker_at(lone.connection_id(1)).lock_byte == greeting.lock_byte

    def test_lock_bytes_begin_anew_at_their_end(self):
        lone = LoneCore()
        lone.attach(*(address(one) for one in (1, 2)))
        lone.stream.connections._lock_bytes = _LAST_LOCK_BYTE - 1
        lone.tell(*(e.ConnectionUp(lone.connection_id(one)) for one in (1, 2)))
        assert [one.lock_byte for one in lone.ordered(i.Greet)] == [_LAST_LOCK_BYTE - 1, _FIRST_LOCK_BYTE]

    def test_a_worker_that_does_not_know_us_serves_us_from_its_next_welcome_on(self):
        lone = LoneCore(prefetch=1)
        (want,) = lone.with_workers(1)
        connection_id = lone.connection_id(1)
        assert lone.stream.connections.serving() == [connection_id]
        lone.unbuilt(want, "unknown")
        assert [one.connection_id for one in lone.ordered(i.Greet)] == [connection_id]
        assert lone.stream.connections.serving() == []
        lone.welcome(1)
        assert lone.stream.connections.serving() == [connection_id]
        assert len(lone.wants()) == 1

    def test_proof_is_looked_for_more_often_while_a_silent_worker_might_write(self):
        lone = LoneCore(prefetch=1)
        lone.with_workers(1)
        lone.wait_hearing(1, 1)
        assert lone.stream._tick_s - lone.now_s == pytest.approx(0.25)
        lone.tell(e.ConnectionDown(lone.connection_id(1)))
        lone.wait(0.5)
        assert lone.stream._tick_s - lone.now_s == pytest.approx(_PROBE_S)
        lone.tell(e.LockGone(1))
        lone.wait(0.5)
        assert lone.stream._tick_s - lone.now_s > _PROBE_S

    def test_a_welcome_from_before_the_cut_counts_for_nothing(self):
        lone = LoneCore(prefetch=1)
        lone.attach(address(1))
        lone.tell(e.ConnectionUp(lone.connection_id(1)), e.ConnectionDown(lone.connection_id(1)))
        lone.welcome(1)
        assert lone.wants() == []


class TestSuccession:
    @pytest.mark.fault(44)
    def test_a_predecessor_that_may_still_write_is_buried_only_on_proof(self):
        lone = LoneCore(prefetch=2, slots=20)
        kept, other = lone.with_workers(1)
        lone.tell(e.ConnectionDown(lone.connection_id(1)))
        lone.tell(e.ConnectionUp(lone.connection_id(1)))
        lone.welcome(1, incarnation=7)
        assert [one.incarnation for one in lone.ordered(i.Probe)] == [1], "proof is looked for at once"
        assert {one.ticket.slot for one in lone.wants()}.isdisjoint({kept.ticket.slot, other.ticket.slot})
        assert [one.worker for one in lone.wants()] == [7, 7]
        assert lone.tickets(1) != ()
        lone.wait_hearing(1, 1)
        assert 1 in {one.incarnation for one in lone.ordered(i.Probe)}
        lone.tell(e.LockGone(1))
        assert [one.event for one in lone.ordered(i.WriteLog)] == ["worker is gone"]
        assert lone.stream.connections.worker_at(lone.connection_id(1)).incarnation == 7, "its successor serves on"

    def test_one_that_wrote_nowhere_is_buried_at_once(self):
        lone = LoneCore(prefetch=1)
        lone.with_workers(1, shared=False)
        lone.welcome(1, shared=False, incarnation=7)
        assert "worker is gone" in [one.event for one in lone.ordered(i.WriteLog)]
        assert [one.worker for one in lone.wants()] == [7]


class TestTurnedAway:
    @pytest.mark.fault(39)
    def test_a_connection_that_cannot_be_made_is_closed_and_named_and_nobody_else_minds(self):
        lone = LoneCore(prefetch=1)
        (want,) = lone.with_workers(2)
        broken = 3 - want.worker
        error = LostError(expected="an endpoint", got="nonsense", where="trainer", remedy="Look.")
        lone.tell(e.ConnectionFailed(lone.connection_id(broken), error))
        (line,) = lone.ordered(i.WriteLog)[:1]
        assert (line.level, line.event) == ("warning", "connection to a worker is closed")
        assert line.fields["worker"] == address(broken).endpoint
        assert lone.ordered(i.Fail) == []
        lone.push(want)
        assert len(lone.ordered(i.Offer)) == 1

    @pytest.mark.fault(40)
    def test_a_worker_that_refuses_us_is_left_alone_until_another_is_listed_there(self):
        lone = LoneCore()
        lone.attach(address(1), address(2))
        lone.greet(2)
        lone.tell(e.ConnectionUp(lone.connection_id(1)))
        lone.say(1, m.Refused(code="job", expected="a trainer of job x", got="job digits", remedy="Connect there."))
        assert len(lone.ordered(i.Close)) == 1
        lone.members(2, address(1), address(2))
        lone.wait_hearing(5, 2)
        assert opened(lone) == []
        lone.members(3, address(1, incarnation=9), address(2))
        assert opened(lone) == [address(1).endpoint]

    def test_when_all_turn_us_away_the_feed_fails_with_what_they_said(self):
        lone = LoneCore(lost_timeout_s=5.0)
        lone.attach(address(1))
        lone.tell(e.ConnectionUp(lone.connection_id(1)))
        lone.say(1, m.Refused(code="role", expected="a trainer's key", got="a worker's", remedy="Use the other."))
        lone.wait(6)
        (fail,) = lone.ordered(i.Fail)
        assert fail.error.code == "role"

    def test_the_feed_fails_only_when_everyone_on_the_list_was_tried(self):
        lone = LoneCore(workers=1, lost_timeout_s=3.0)
        lone.attach(*remote(80))
        lone.wait(4)
        assert lone.ordered(i.Fail) == []
        lone.wait(20)
        (fail,) = lone.ordered(i.Fail)
        assert "of 80" in fail.error.got
