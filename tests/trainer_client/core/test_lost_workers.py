"""Rules for workers that fall silent, die, lose wants or refuse them, through the core's one door."""

from __future__ import annotations

import itertools

import pytest

from shared.errors import DataError, LostError, MachineError, PeerError
from shared.wire import messages as m
from tests.support.coordinator import failing
from tests.support.lone_core import LoneCore, address, pushed
from trainer_client.core import events as e
from trainer_client.core import instructions as i
from trainer_client.core.slot_states import SlotState

TIMEOUT_S = 2.0


def numbers(wants):
    return [one.number for one in wants]


def failure(lone):
    fails = lone.ordered(i.Fail)
    return fails[0].error if fails else None


def kill(lone, number):
    """Proof of a worker's death."""
    worker = lone.stream.connections.worker_at(lone.connection_id(number))
    return lone.tell(e.LockGone(worker.incarnation))


class TestSilence:
    @pytest.mark.fault(4)
    @pytest.mark.fault(5)
    def test_wants_of_a_silent_worker_are_asked_elsewhere_in_order_and_it_gets_nothing_new(self):
        lone = LoneCore(prefetch=6, slots=20)
        wants = lone.with_workers(2)
        well = 3 - wants[0].worker
        silent = [one.number for one in wants if one.worker != well]
        lone.wait_hearing(2.3, well)
        again = lone.wants()
        assert numbers(again) == silent == [0, 2, 4]
        assert [(one.worker, one.attempt) for one in again] == [(well, 0)] * 3
        assert [one.urgent for one in again] == [True, False, False]

    @pytest.mark.fault(4)
    def test_its_slots_stay_out_of_the_pool_until_it_is_proved_dead(self):
        lone = LoneCore(prefetch=2, slots=6)
        wants = lone.with_workers(2)
        silent, well = wants[0].worker, 3 - wants[0].worker
        lone.wait_hearing(10, well)
        assert wants[0].ticket.slot not in {one.ticket.slot for one in lone.wants()}
        assert lone.stream.slots.state(wants[0].ticket.slot) is SlotState.LENT
        assert silent in {one.incarnation for one in lone.ordered(i.Probe)}
        lone.tell(e.LockGone(silent))
        assert lone.stream.slots.state(wants[0].ticket.slot) is SlotState.FREE

    @pytest.mark.fault(5)
    def test_what_it_still_pushes_counts_if_it_is_the_first(self):
        lone = LoneCore(prefetch=1)
        (want,) = lone.with_workers(2)
        lone.wait_hearing(2.3, 3 - want.worker)
        (again,) = lone.wants()
        lone.say(want.worker, pushed(want))
        assert [one.slot for one in lone.ordered(i.Offer)] == [want.ticket.slot]
        assert again.ticket in [one.ticket for one in lone.sent(m.Cancel)]

    @pytest.mark.fault(4)
    @pytest.mark.fault(23)
    @pytest.mark.fault(24)
    def test_and_is_dropped_and_counted_if_it_is_the_second(self):
        lone = LoneCore(prefetch=1)
        (want,) = lone.with_workers(2)
        lone.wait_hearing(2.3, 3 - want.worker)
        (again,) = lone.wants()
        lone.push(again)
        lone.push(want)
        assert lone.ordered(i.Offer) == []
        assert lone.stream.answers.stale == 1
        assert lone.stream.slots.state(want.ticket.slot) is SlotState.FREE

    def test_each_further_asking_waits_twice_as_long(self):
        lone = LoneCore(prefetch=1, slots=30)
        (want,) = lone.with_workers(6)
        times_s, silent = [], {want.worker}
        lone.entry(0).hedged = True
        for _ in range(160):
            lone.wait_hearing(0.25, *({1, 2, 3, 4, 5, 6} - silent))
            for one in lone.wants():
                times_s.append(lone.now_s)
                silent.add(one.worker)
        gaps = [later - sooner for sooner, later in itertools.pairwise(times_s)]
        assert times_s[0] == pytest.approx(TIMEOUT_S, abs=0.5)
        assert gaps == sorted(gaps)
        assert gaps[2] == pytest.approx(2 * gaps[1], abs=0.8)

    def test_a_worker_that_speaks_again_gets_wants_again(self):
        lone = LoneCore(prefetch=1)
        (want,) = lone.with_workers(1)
        lone.wait(3)
        lone.push(want)
        lone.consume(lone.offer(0))
        assert lone.wants() == [], "what it said before its connection went is no welcome: it may have let our slots go"
        lone.tell(e.ConnectionUp(lone.connection_id(1)))
        lone.welcome(1)
        assert numbers(lone.wants()) == [1]

    @pytest.mark.fault(16)
    def test_nobody_is_silent_because_the_trainer_itself_was_away(self):
        lone = LoneCore()
        lone.with_workers(2)
        lone.wait_hearing(0.5, 1, 2)
        lone.tell(after_s=30)
        assert lone.wants() == []
        assert lone.ordered(i.Renew) == []
        assert lone.stream.tickets.suspected == 0

    def test_pings_go_out_four_times_a_timeout_and_never_repeat_a_number(self):
        lone = LoneCore(prefetch=2)
        lone.with_workers(2)
        lone.wait_hearing(2, 1, 2)
        pings = [
            (one.connection_id, one.message.number)
            for one in lone.ordered(i.ToWorker)
            if isinstance(one.message, m.Ping)
        ]
        assert [connection_id for connection_id, _ in pings].count(lone.connection_id(1)) in (3, 4)
        assert len({number for _, number in pings}) == len(pings)

    @pytest.mark.fault(43)
    def test_the_connection_of_a_silent_worker_is_made_anew_at_once_and_then_ever_more_rarely(self):
        lone = LoneCore(prefetch=1)
        (want,) = lone.with_workers(2)
        renewed_s = []
        for _ in range(400):
            lone.wait_hearing(0.1, 3 - want.worker, step_s=0.1)
            if lone.ordered(i.Renew):
                assert {one.connection_id for one in lone.ordered(i.Renew)} == {lone.connection_id(want.worker)}
                renewed_s.append(lone.now_s)
                lone.tell(e.ConnectionUp(lone.connection_id(want.worker)))
        gaps = [later - sooner for sooner, later in itertools.pairwise(renewed_s)]
        assert renewed_s[0] == pytest.approx(TIMEOUT_S, abs=0.4)
        assert gaps[0] >= TIMEOUT_S
        assert gaps == sorted(gaps)
        assert gaps[-1] <= 8 * TIMEOUT_S + 0.5

    @pytest.mark.fault(43)
    def test_making_a_connection_anew_blames_nobody(self):
        lone = LoneCore(prefetch=1)
        (want,) = lone.with_workers(2, shared=False)
        lone.wait_hearing(2.5, 3 - want.worker)
        assert lone.ordered(i.Renew)
        assert [(one.worker, one.attempt) for one in lone.wants()] == [(3 - want.worker, 0)]

    @pytest.mark.fault(30)
    def test_one_that_leaves_gets_nothing_new_and_may_still_answer(self):
        lone = LoneCore(prefetch=4)
        wants = lone.with_workers(2)
        first, third = wants[0], wants[2]
        lone.unbuilt(third, "draining")
        assert [(one.number, one.worker, one.attempt) for one in lone.wants()] == [(2, 3 - first.worker, 0)]
        lone.push(first)
        assert len(lone.ordered(i.Offer)) == 1


class TestDeath:
    @pytest.mark.fault(1)
    @pytest.mark.fault(2)
    def test_a_proved_death_frees_the_slots_and_raises_the_attempt(self):
        lone = LoneCore(prefetch=4)
        wants = lone.with_workers(2)
        kill(lone, wants[0].worker)
        again = lone.wants()
        assert [(one.number, one.attempt) for one in again] == [(0, 1), (2, 1)]
        assert lone.stream.slots.count(SlotState.LENT) == 4
        assert [one.event for one in lone.ordered(i.WriteLog)] == ["worker is gone"]

    @pytest.mark.fault(30)
    def test_an_end_in_good_order_raises_none(self):
        lone = LoneCore(prefetch=4)
        wants = lone.with_workers(2)
        lone.unbuilt(wants[2], "draining")
        kill(lone, wants[0].worker)
        assert [(one.number, one.attempt) for one in lone.wants()] == [(0, 0)]

    @pytest.mark.fault(3)
    def test_a_batch_that_came_before_the_death_stays(self):
        lone = LoneCore(prefetch=1)
        (want,) = lone.with_workers(2)
        lone.push(want)
        kill(lone, want.worker)
        assert lone.stream.slots.state(want.ticket.slot) is SlotState.OFFERED

    @pytest.mark.fault(21)
    def test_a_cut_by_tcp_is_asked_elsewhere_at_once(self):
        lone = LoneCore(prefetch=1)
        (want,) = lone.with_workers(2, shared=False)
        lone.tell(e.ConnectionDown(lone.connection_id(want.worker)))
        assert [(one.worker, one.attempt) for one in lone.wants()] == [(3 - want.worker, 1)]
        lone.say(want.worker, pushed(want), "payload")
        assert lone.ordered(i.Write) == []

    def test_a_cut_of_one_that_writes_in_place_keeps_its_slot_until_proof(self):
        lone = LoneCore(prefetch=1)
        (want,) = lone.with_workers(2)
        lone.tell(e.ConnectionDown(lone.connection_id(want.worker)))
        (again,) = lone.wants()
        assert again.ticket.slot != want.ticket.slot
        assert again.attempt == 1
        assert lone.stream.slots.state(want.ticket.slot) is SlotState.LENT
        assert [one.incarnation for one in lone.ordered(i.Probe)] == [want.worker]
        kill(lone, want.worker)
        assert lone.entry(0).attempt == 1, "one death is one attempt"

    def test_a_want_whose_holders_are_all_dead_does_not_wait_out_its_patience(self):
        lone = LoneCore(prefetch=1, slots=20)
        (want,) = lone.with_workers(3)
        second, third = (one for one in (1, 2, 3) if one != want.worker)
        lone.wait_hearing(2.5, second, third)
        (again,) = lone.wants()
        lone.wait_hearing(4.5, 6 - want.worker - again.worker)
        assert set(lone.entry(0).askers) == {1, 2, 3}
        lone.members(2, *(address(one) for one in range(1, 5)))
        lone.greet(4)
        for one in (1, 2, 3):
            lone.tell(e.LockGone(one))
        assert [one.worker for one in lone.wants()] == [4]

    def test_proof_of_the_death_of_someone_unknown_is_nothing(self):
        lone = LoneCore()
        lone.with_workers(1)
        assert lone.tell(e.LockGone(99), e.ConnectionDown(99), e.ConnectionUp(99)) == []


class TestLostOnTheWay:
    def test_a_want_that_a_later_pong_does_not_list_is_lost(self):
        lone = LoneCore(prefetch=1)
        (want,) = lone.with_workers(1)
        lone.wait(1)
        ping = lone.sent(m.Ping)[-1]
        lone.pong(1, ping.number)
        assert [(one.number, one.ticket.generation) for one in lone.wants()] == [(0, want.ticket.generation + 1)]
        assert lone.stream.answers.lost_on_the_way == 1

    def test_one_that_it_lists_is_not(self):
        lone = LoneCore(prefetch=1)
        (want,) = lone.with_workers(1)
        lone.pong(1, 99, want.ticket)
        assert lone.wants() == []
        assert want.ticket in lone.tickets(1)

    def test_a_pong_to_a_ping_from_before_the_want_says_nothing(self):
        lone = LoneCore(prefetch=1)
        (want,) = lone.with_workers(1)
        lone.wait(1)
        ping = lone.sent(m.Ping)[-1]
        lone.push(want)
        lone.consume(lone.offer(0))
        (later,) = lone.wants()
        lone.pong(1, ping.number)
        assert later.ticket in lone.tickets(1)

    @pytest.mark.fault(43)
    def test_after_a_reconnection_the_same_incarnation_keeps_what_it_lists(self):
        lone = LoneCore(prefetch=2)
        kept, lost = lone.with_workers(1)
        lone.tell(e.ConnectionDown(lone.connection_id(1)))
        lone.greet(1)
        lone.wait(0.6)
        ping = lone.sent(m.Ping)[-1]
        lone.pong(1, ping.number, kept.ticket)
        assert numbers(lone.wants()) == [lost.number]
        lone.push(kept)
        assert len(lone.ordered(i.Offer)) == 1

    def test_one_that_it_lists_though_it_is_void_is_cancelled(self):
        lone = LoneCore(prefetch=1)
        (want,) = lone.with_workers(1, shared=False)
        lone.tell(e.ConnectionDown(lone.connection_id(1)))
        lone.greet(1, shared=False)
        lone.pong(1, 1, want.ticket)
        assert want.ticket in [one.ticket for one in lone.sent(m.Cancel)]


class TestRefusal:
    @pytest.mark.fault(7)
    def test_an_error_is_another_workers_chance(self):
        lone = LoneCore(prefetch=1)
        (want,) = lone.with_workers(2)
        lone.unbuilt(want, "failed")
        assert [(one.worker, one.urgent) for one in lone.wants()] == [(3 - want.worker, True)]

    @pytest.mark.fault(7)
    @pytest.mark.heritage("R9")
    def test_when_all_refused_the_feed_fails_with_the_last_error_and_says_how_many(self):
        lone = LoneCore(prefetch=1)
        (want,) = lone.with_workers(2)
        lone.unbuilt(want, "failed", got="first")
        (again,) = lone.wants()
        lone.unbuilt(again, "failed", got="last")
        lone.wait_hearing(3, 1, 2)
        error = failure(lone)
        assert (type(error), error.got, error.exit_code) == (DataError, "last", 1)
        assert "refused by 2 of 2 workers" in error.where
        assert len(lone.ordered(i.Fail)) == 1

    def test_one_that_comes_meanwhile_is_asked_first(self):
        lone = LoneCore(prefetch=1)
        (want,) = lone.with_workers(1)
        lone.unbuilt(want, "failed")
        lone.wait_hearing(1, 1)
        assert failure(lone) is None
        lone.members(2, address(1), address(2))
        lone.greet(2)
        assert [one.worker for one in lone.wants()] == [2]
        lone.wait_hearing(10, 1, 2)
        assert failure(lone) is None

    def test_batches_before_the_refused_one_are_offered_first(self):
        lone = LoneCore(prefetch=2)
        first, second = lone.with_workers(1)
        lone.unbuilt(second, "failed")
        lone.wait_hearing(10, 1)
        assert failure(lone) is None
        lone.push(first)
        lone.consume(lone.offer(0))
        lone.wait_hearing(3, 1)
        assert failure(lone) is not None

    @pytest.mark.fault(9)
    def test_wrong_bytes_are_refused_counted_and_asked_elsewhere(self):
        lone = LoneCore(prefetch=1)
        (want,) = lone.with_workers(2)
        lone.say(want.worker, pushed(want, number=5))
        (again,) = lone.wants()
        assert again.worker == 3 - want.worker
        assert lone.stream.answers.rejected == 1
        lone.say(again.worker, pushed(again, nbytes=128))
        lone.wait_hearing(3, 1, 2)
        assert isinstance(failure(lone), PeerError)
        assert failure(lone).exit_code == 1, "all have answered"
        assert "batch 0 of epoch 1" in failure(lone).where

    @pytest.mark.fault(9)
    @pytest.mark.parametrize("shared", [True, False])
    def test_bytes_that_turn_out_wrong_are_refused_too(self, shared):
        lone = LoneCore(prefetch=1, verify=True)
        (want,) = lone.with_workers(2, shared=shared)
        lone.say(want.worker, pushed(want), None if shared else "payload")
        (look,) = lone.ordered(i.Check if shared else i.Write)
        lone.tell(e.Checked(look.connection_id, look.header, valid=False))
        assert [one.worker for one in lone.wants()] == [3 - want.worker]
        assert lone.stream.answers.rejected == 1

    def test_a_push_the_other_way_than_asked_is_refused(self):
        lone = LoneCore(prefetch=1)
        (want,) = lone.with_workers(2)
        lone.say(want.worker, pushed(want, in_slot=False), "payload")
        assert lone.stream.answers.rejected == 1
        assert lone.ordered(i.Write) == []

    def test_refused_by_all_that_live_it_fails_after_the_lost_timeout_though_others_are_only_silent(self):
        lone = LoneCore(prefetch=1, lost_timeout_s=20.0)
        (want,) = lone.with_workers(2)
        well = 3 - want.worker
        lone.wait_hearing(2.5, well)
        lone.unbuilt(lone.wants()[0], "failed")
        lone.wait_hearing(18, well)
        assert failure(lone) is None
        lone.wait_hearing(5, well)
        assert "refused by 1 of 2" in failure(lone).where

    def test_a_worker_that_restarted_may_be_asked_again(self):
        lone = LoneCore(prefetch=1)
        (want,) = lone.with_workers(1)
        lone.unbuilt(want, "failed")
        kill(lone, 1)
        lone.welcome(1, incarnation=9)
        assert [one.worker for one in lone.wants()] == [9]

    @pytest.mark.fault(35)
    def test_five_failures_of_machines_end_the_feed_and_name_each(self):
        lone = LoneCore(prefetch=1)
        (want,) = lone.with_workers(1)
        for number in range(5):
            assert failure(lone) is None
            lone.unbuilt(want, "machine", got=f"end {number}")
            if number < 4:
                assert lone.wants() == [], "not at once"
                lone.wait_hearing(2, 1)
                want = lone.wants()[0]
        assert isinstance(failure(lone), MachineError)
        assert all(f"end {number}" in failure(lone).got for number in range(5))
        assert "batch 0 of epoch 1" in failure(lone).where

    @pytest.mark.fault(53)
    def test_a_batch_over_which_something_ran_out_is_asked_again_to_be_tried_and_the_fifth_time_is_the_last(self):
        lone = LoneCore(prefetch=1)
        (want,) = lone.with_workers(1)
        for number, code in enumerate(("exhausted", "exhausted", "machine", "exhausted", "machine")):
            assert failure(lone) is None
            lone.unbuilt(want, code, got=f"clip {number} in hand")
            if number < 4:
                assert lone.wants() == [], "not at once"
                lone.wait_hearing(2, 1)
                want = lone.wants()[0]
                assert want.attempt == (1, 2, 2, 3)[number]
        assert isinstance(failure(lone), MachineError)
        assert all(f"clip {number} in hand" in failure(lone).got for number in range(5))

    def test_a_reason_that_comes_five_times_is_said_once_with_its_count(self):
        lone = LoneCore(prefetch=1)
        (want,) = lone.with_workers(1)
        for number in range(5):
            lone.unbuilt(want, "machine", got="no child started")
            if number < 4:
                lone.wait_hearing(2, 1)
                want = lone.wants()[0]
        assert failure(lone).got == "w1: no child started (5 times)"

    @pytest.mark.fault(42)
    def test_a_busy_worker_is_left_alone_for_a_moment(self):
        lone = LoneCore(prefetch=1)
        (want,) = lone.with_workers(1)
        lone.unbuilt(want, "busy")
        assert lone.wants() == []
        lone.wait_hearing(0.6, 1)
        assert numbers(lone.wants()) == [0]
        assert lone.entry(0).refused == {}

    def test_a_forgetful_worker_gets_no_want_before_it_welcomes_us_again(self):
        lone = LoneCore(prefetch=1)
        (want,) = lone.with_workers(1)
        lone.unbuilt(want, "unknown")
        assert lone.wants() == []
        assert [one.connection_id for one in lone.ordered(i.Greet)] == [lone.connection_id(1)]
        lone.welcome(1)
        assert numbers(lone.wants()) == [0]

    @pytest.mark.heritage("D2")
    def test_when_nobody_is_left_the_error_names_who_was_tried(self):
        lone = LoneCore(prefetch=1, lost_timeout_s=10.0)
        lone.with_workers(3)
        kill(lone, 1)
        lone.tell(e.ConnectionDown(lone.connection_id(2)))
        lone.wait(16)
        error = failure(lone)
        assert isinstance(error, LostError)
        assert error.got == "none for 10 s; tried 3 of 3: w1 (does not answer), w2 (silent), w3 (silent)"
        assert "loader-server run" in error.remedy

    def test_workers_that_served_are_named_though_they_are_off_the_list_and_gone(self):
        lone = LoneCore(prefetch=1, lost_timeout_s=10.0)
        lone.with_workers(2)
        kill(lone, 1)
        kill(lone, 2)
        lone.members(9)
        lone.wait(16)
        said = "w1 (served us, and is gone), w2 (served us, and is gone)"
        assert failure(lone).got == f"none for 10 s; tried 2, and 0 are listed now: {said}"

    def test_only_where_there_was_never_one_it_is_said(self):
        lone = LoneCore(prefetch=1, lost_timeout_s=10.0)
        lone.attach()
        lone.wait(16)
        assert failure(lone).got == "none for 10 s; none was ever there"

    def test_of_many_that_served_once_the_latest_are_remembered(self):
        lone = LoneCore(prefetch=1)
        lone.attach()
        connections = lone.core.stream.connections
        for number in range(100):
            connections._note_served(f"tcp://{number}", f"w{number}")
        connections._note_served("tcp://50", "w50")
        assert list(connections._served.values())[-2:] == ["w99", "w50"]
        assert len(connections._served) == 64

    def test_if_one_said_why_it_does_not_come_back_that_is_the_error(self):
        lone = LoneCore(prefetch=1, lost_timeout_s=10.0)
        lone.with_workers(1)
        lone.tell(e.ConnectionDown(lone.connection_id(1)))
        lone.tell(e.CoordinatorSent(failing("w1")))
        lone.wait(16)
        error = failure(lone)
        assert isinstance(error, DataError)
        assert error.got == failing().got
        assert error.where == "/data/a.npz (worker w1 cannot serve, and there was no other for 10 s)"

    def test_one_that_comes_back_in_time_saves_it(self):
        lone = LoneCore(prefetch=1, lost_timeout_s=10.0)
        (want,) = lone.with_workers(1)
        lone.wait(9)
        assert failure(lone) is None
        lone.push(want)
        lone.wait(9)
        assert failure(lone) is None
