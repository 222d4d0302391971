"""Rules of `wants` for workers that fall silent, die, lose wants or refuse them; others are in `test_wants`."""

from __future__ import annotations

import pytest

from shared.errors import LostError, RefusedError
from tests.support.wants_alone import TIMEOUT_S, Trainer, error, numbers, sent
from trainer_client import want_events as e
from trainer_client.ledger import SlotState


class TestSilence:
    @pytest.mark.fault(4)
    @pytest.mark.fault(5)
    def test_wants_of_a_silent_worker_are_asked_elsewhere_in_order_and_it_gets_nothing_new(self):
        trainer = Trainer(slots=12, prefetch=6)
        trainer.up(1, 2)
        asked = trainer.extend(6)
        silent = [one.target.number for one in asked if one.worker == 1]
        again = sent(trainer.wait(2.5, heard=(2,)))
        assert numbers(again) == silent == [0, 2, 4]
        assert {one.worker for one in again} == {2}
        assert [one.urgent for one in again] == [True, False, False]
        assert [one.attempt for one in again] == [0, 0, 0]

    @pytest.mark.fault(4)
    def test_its_slots_stay_out_of_the_pool(self):
        trainer = Trainer(slots=4, prefetch=2)
        trainer.up(1, 2)
        kept = {one.ticket.slot for one in trainer.extend(2) if one.worker == 1}
        for want in sent(trainer.wait(10, heard=(2,))):
            assert want.ticket.slot not in kept
        assert trainer.wants.silent_writers() == [1]

    @pytest.mark.fault(5)
    def test_what_it_still_pushes_counts_if_it_is_the_first(self):
        trainer = Trainer()
        trainer.up(1, 2)
        (want,) = trainer.extend(1)
        (again,) = sent(trainer.wait(2.5, heard=(2,)))
        orders = trainer.arrive(want)
        assert orders[0] == e.Deliver(0, want.ticket.slot, want.target)
        assert e.SendCancel(2, again.ticket) in orders

    @pytest.mark.fault(4)
    @pytest.mark.fault(23)
    @pytest.mark.fault(24)
    def test_and_is_dropped_and_counted_if_it_is_the_second(self):
        trainer = Trainer()
        trainer.up(1, 2)
        (want,) = trainer.extend(1)
        (again,) = sent(trainer.wait(2.5, heard=(2,)))
        trainer.arrive(again)
        assert trainer.wants.expects(1, want.ticket)
        assert not trainer.wants.is_needed(1, want.ticket)
        assert trainer.arrive(want) == []
        assert trainer.wants.counts.stale == 1
        assert trainer.ledger.state(want.ticket.slot) is SlotState.FREE

    def test_each_further_asking_waits_twice_as_long(self):
        trainer = Trainer(slots=12)
        trainer.up(1, 2, 3, 4, 5, 6)
        trainer.extend(1)
        began_s, times_s = trainer.now_s, []
        for _ in range(200):
            order = sent(
                trainer.wait(0.25, heard=tuple(one for one in (2, 3, 4, 5, 6) if one not in silenced(trainer)))
            )
            if order:
                times_s.append(trainer.now_s - began_s)
        first, *gaps = [later - sooner for sooner, later in zip([0.0, *times_s], times_s, strict=False)]
        assert first == pytest.approx(2.25)
        assert gaps[1:] == pytest.approx([2 * TIMEOUT_S, 4 * TIMEOUT_S, 8 * TIMEOUT_S], abs=0.5)

    def test_a_worker_that_speaks_again_gets_wants_again(self):
        trainer = Trainer()
        trainer.up(1)
        trainer.wait(3)
        assert trainer.extend(1) == []
        assert [one.worker for one in trainer.asked(e.Heard(1))] == [1]

    def test_nobody_is_silent_because_the_trainer_itself_was_away(self):
        trainer = Trainer()
        trainer.up(1, 2)
        trainer.extend(4)
        trainer.wait(0.5)
        assert sent(trainer(e.Ticked(), after_s=30)) == []
        assert trainer.wants.counts.suspected == 0

    def test_pings_go_out_four_times_a_timeout_and_never_repeat_a_number(self):
        trainer = Trainer()
        trainer.up(1, 2)
        trainer.extend(2)
        pings = [one for one in trainer.wait(2, heard=(1, 2)) if isinstance(one, e.SendPing)]
        assert [one.worker for one in pings].count(1) == 4
        assert len({one.number for one in pings}) == len(pings)

    def test_a_worker_that_is_heard_of_and_owes_nothing_for_long_is_not_pinged(self):
        trainer = Trainer()
        trainer.up(1, 2)
        pings = [one.worker for one in trainer.wait(1.5, heard=(1,)) if isinstance(one, e.SendPing)]
        assert pings == [2, 2, 2]

    def test_after_a_reconnection_one_pong_is_asked_for_in_any_case(self):
        trainer = Trainer()
        trainer.up(1)
        trainer(e.WorkerCut(1))
        trainer.up(1)
        (ping,) = [one for one in trainer.wait(0.5, heard=(1,)) if isinstance(one, e.SendPing)]
        trainer(e.Held(1, ping.number, frozenset()))
        assert trainer.wait(2, heard=(1,)) == []

    @pytest.mark.fault(30)
    def test_one_that_leaves_and_falls_silent_does_not_keep_its_wants(self):
        trainer = Trainer()
        trainer.up(1, 2)
        (want,) = trainer.extend(1)
        trainer(e.WorkerLeft(1))
        assert [one.worker for one in sent(trainer.wait(2.5, heard=(2,)))] == [2]
        assert trainer.wants.silent_writers() == [1]
        trainer(e.WorkerDead(1, crashed=False))
        assert trainer.ledger.state(want.ticket.slot) is SlotState.FREE


def silenced(trainer: Trainer) -> set[int]:
    """Whoever has got the want falls silent: the worst case for asking again."""
    return {one for one, worker in trainer.wants._workers.items() if worker.asks}


class TestDeath:
    @pytest.mark.fault(1)
    @pytest.mark.fault(2)
    def test_a_proved_death_frees_the_slots_and_raises_the_attempt(self):
        trainer = Trainer()
        trainer.up(1, 2)
        asked = trainer.extend(4)
        again = trainer.asked(e.WorkerDead(1))
        assert numbers(again) == [0, 2]
        assert [one.attempt for one in again] == [1, 1]
        assert trainer.ledger.count(SlotState.LENT) == 4
        assert all(not trainer.wants.expects(1, one.ticket) for one in asked)

    @pytest.mark.fault(30)
    def test_an_end_in_good_order_raises_none(self):
        trainer = Trainer()
        trainer.up(1, 2)
        trainer.extend(2)
        assert [one.attempt for one in trainer.asked(e.WorkerDead(1, crashed=False))] == [0]

    @pytest.mark.fault(30)
    def test_a_drain_raises_none_and_is_no_refusal(self):
        trainer = Trainer()
        trainer.up(1, 2)
        (want,) = trainer.extend(1)
        draining = error(RefusedError, code="draining")
        (again,) = trainer.asked(e.GaveUp(1, want.ticket, draining, passing=True))
        assert (again.worker, again.attempt) == (2, 0)
        assert {one.worker for one in trainer.extend(3)} == {2}

    @pytest.mark.fault(3)
    def test_a_batch_that_came_before_the_death_stays(self):
        trainer = Trainer()
        trainer.up(1, 2)
        (want,) = trainer.extend(1)
        trainer.arrive(want)
        assert trainer.asked(e.WorkerDead(1)) == []
        assert trainer.ledger.state(want.ticket.slot) is SlotState.FILLED

    @pytest.mark.fault(21)
    def test_a_cut_by_tcp_is_asked_elsewhere_at_once(self):
        trainer = Trainer()
        trainer.up(1, 2, in_slot=False)
        (want,) = trainer.extend(1)
        (again,) = trainer.asked(e.WorkerCut(1))
        assert (again.worker, again.attempt) == (2, 1)
        assert trainer.ledger.state(want.ticket.slot) is not SlotState.FREE or again.ticket.slot != want.ticket.slot
        assert not trainer.wants.expects(1, want.ticket)

    def test_a_cut_of_one_that_writes_in_place_keeps_its_slot_until_proof(self):
        trainer = Trainer()
        trainer.up(1, 2)
        (want,) = trainer.extend(1)
        (again,) = trainer.asked(e.WorkerCut(1))
        assert again.ticket.slot != want.ticket.slot
        assert trainer.ledger.state(want.ticket.slot) is SlotState.LENT
        assert trainer.wants.silent_writers() == [1]

    def test_a_want_whose_holders_are_all_dead_does_not_wait_out_its_patience(self):
        trainer = Trainer(slots=12)
        trainer.up(1, 2, 3)
        trainer.extend(1)
        trainer.wait(2.5, heard=(2, 3))
        trainer.wait(4.5, heard=(3,))
        assert trainer.wants._entries[0].askers == {1, 2, 3}
        trainer.up(4)
        trainer(e.WorkerDead(1))
        trainer(e.WorkerDead(2))
        assert [one.worker for one in trainer.asked(e.WorkerDead(3))] == [4]

    def test_death_of_someone_unknown_is_nothing(self):
        assert Trainer()(e.WorkerDead(9)) == []
        assert Trainer()(e.WorkerCut(9)) == []
        assert Trainer()(e.Held(9, 1, frozenset())) == []


class TestLostOnTheWay:
    def test_a_want_that_a_later_pong_does_not_list_is_lost(self):
        trainer = Trainer()
        trainer.up(1)
        (want,) = trainer.extend(1)
        pings = [one.number for one in trainer.wait(1, heard=(1,)) if isinstance(one, e.SendPing)]
        (again,) = trainer.asked(e.Held(1, pings[0], frozenset()))
        assert again.target == want.target
        assert trainer.wants.counts.lost_on_the_way == 1

    def test_one_that_it_lists_is_not(self):
        trainer = Trainer()
        trainer.up(1)
        (want,) = trainer.extend(1)
        trainer.wait(1, heard=(1,))
        assert trainer(e.Held(1, 99, frozenset([want.ticket]))) == []
        assert trainer.wants.expects(1, want.ticket)

    def test_a_pong_to_a_ping_from_before_the_want_says_nothing(self):
        trainer = Trainer()
        trainer.up(1)
        pings = [one.number for one in trainer.wait(1) if isinstance(one, e.SendPing)]
        trainer.extend(1)
        assert trainer(e.Held(1, pings[-1], frozenset())) == []

    def test_after_a_reconnection_the_same_incarnation_keeps_what_it_lists(self):
        trainer = Trainer()
        trainer.up(1)
        kept, lost = trainer.extend(2)
        trainer(e.WorkerCut(1))
        trainer.up(1)
        pings = [one.number for one in trainer.wait(1, heard=(1,)) if isinstance(one, e.SendPing)]
        again = trainer.asked(e.Held(1, pings[-1], frozenset([kept.ticket])))
        assert [one.target for one in again] == [lost.target]
        assert trainer.arrive(kept)[0] == e.Deliver(0, kept.ticket.slot, kept.target)

    def test_one_that_it_lists_though_it_is_void_is_cancelled(self):
        trainer = Trainer()
        trainer.up(1, in_slot=False)
        (want,) = trainer.extend(1)
        trainer(e.WorkerCut(1))
        trainer.up(1, in_slot=False)
        orders = trainer(e.Held(1, 1, frozenset([want.ticket])))
        assert e.SendCancel(1, want.ticket) in orders


class TestRefusal:
    @pytest.mark.fault(7)
    def test_an_error_is_another_workers_chance(self):
        trainer = Trainer()
        trainer.up(1, 2)
        (want,) = trainer.extend(1)
        (again,) = trainer.asked(e.GaveUp(1, want.ticket, error()))
        assert (again.worker, again.urgent) == (2, True)

    @pytest.mark.fault(7)
    @pytest.mark.heritage("R9")
    def test_when_all_refused_the_feed_fails_with_the_last_error(self):
        trainer = Trainer()
        trainer.up(1, 2)
        (want,) = trainer.extend(1)
        (again,) = trainer.asked(e.GaveUp(1, want.ticket, error()))
        last = error()
        trainer(e.GaveUp(2, again.ticket, last))
        orders = trainer.wait(3, heard=(1, 2))
        assert trainer.failure(orders) is last
        assert sum(isinstance(one, e.Fail) for one in orders) == 1
        assert sent(orders) == []

    def test_one_that_comes_meanwhile_is_asked_first(self):
        trainer = Trainer()
        trainer.up(1)
        (want,) = trainer.extend(1)
        trainer(e.GaveUp(1, want.ticket, error()))
        assert trainer.failure(trainer.wait(1, heard=(1,))) is None
        assert [one.worker for one in trainer.asked(e.WorkerUp(2, "w2", in_slot=True))] == [2]
        assert trainer.failure(trainer.wait(10, heard=(1, 2))) is None

    def test_batches_before_the_refused_one_are_delivered_first(self):
        trainer = Trainer()
        trainer.up(1)
        first, second = trainer.extend(2)
        trainer(e.GaveUp(1, second.ticket, error()))
        assert trainer.failure(trainer.wait(10, heard=(1,))) is None
        assert trainer.arrive(first)[0] == e.Deliver(0, first.ticket.slot, first.target)
        trainer(e.Consumed(1))
        assert trainer.failure(trainer.wait(3, heard=(1,))) is not None

    @pytest.mark.fault(9)
    def test_wrong_bytes_are_refused_counted_and_asked_elsewhere(self):
        trainer = Trainer()
        trainer.up(1, 2)
        (want,) = trainer.extend(1)
        (again,) = sent(trainer.arrive(want, valid=False))
        assert again.worker == 2
        assert trainer.wants.counts.rejected == 1
        trainer.arrive(again, valid=False)
        problem = trainer.failure(trainer.wait(3, heard=(1, 2)))
        assert isinstance(problem, LostError)
        assert "batch 0 of epoch 0" in problem.where
        assert "w2" in problem.where

    def test_refused_by_all_that_live_it_fails_after_the_lost_timeout_though_others_are_only_silent(self):
        trainer = Trainer(lost_timeout_s=20)
        trainer.up(1, 2)
        (want,) = trainer.extend(1)
        (again,) = sent(trainer.wait(2.5, heard=(2,)))
        assert want.worker == 1
        last = error()
        trainer(e.GaveUp(2, again.ticket, last))
        assert trainer.failure(trainer.wait(18, heard=(2,))) is None
        assert trainer.failure(trainer.wait(5, heard=(2,))) is last

    def test_a_worker_that_restarted_may_be_asked_again(self):
        trainer = Trainer()
        trainer.up(1)
        (want,) = trainer.extend(1)
        trainer(e.GaveUp(1, want.ticket, error()))
        trainer(e.WorkerDead(1))
        assert [one.worker for one in trainer.asked(e.WorkerUp(2, "w1", in_slot=True))] == [2]

    @pytest.mark.heritage("D2")
    def test_when_nobody_is_left_the_error_names_who_was_tried(self):
        trainer = Trainer(lost_timeout_s=10)
        trainer.up(1, 2, 3)
        trainer.extend(2)
        trainer(e.WorkerDead(1))
        trainer(e.WorkerDead(2, crashed=False))
        problem = trainer.failure(trainer.wait(15))
        assert isinstance(problem, LostError)
        assert problem.got == "none for 10 s; tried: w1 (died), w2 (left), w3 (silent)"
        assert "loader-server run" in problem.remedy

    def test_nor_does_it_wait_for_ever_where_the_road_ends_unknown(self):
        trainer = Trainer(lost_timeout_s=10)
        trainer.up(1)
        assert trainer.failure(trainer.wait(11, heard=(1,))) is None
        trainer(e.WorkerDead(1))
        assert "w1 (died)" in trainer.failure(trainer.wait(11)).got

    def test_one_that_comes_back_in_time_saves_it(self):
        trainer = Trainer(lost_timeout_s=10)
        trainer.up(1)
        trainer.extend(1)
        assert trainer.failure(trainer.wait(9)) is None
        trainer(e.Heard(1))
        assert trainer.failure(trainer.wait(9)) is None
