"""Each rule of `wants`, alone; the interleavings that broke one are kept by name in the simulation's tests."""

from __future__ import annotations

import pytest

from shared.errors import LostError, ReadError, RefusedError
from shared.messages import Ticket
from trainer_client import wants as w
from trainer_client.course import Position, Target
from trainer_client.ledger import Ledger, SlotState

TIMEOUT_S = 2.0


def target(number: int) -> Target:
    return Target(Position(0, number, 1), 0, 0, number, empty=False)


def error(kind: type = ReadError, **more):
    return kind(expected="a file", got="an input/output error", where="w1", remedy="Look at the disk.", **more)


class Trainer:
    """`Wants` and what stands around it; `said` are the orders of the last event."""

    def __init__(self, *, slots: int = 8, prefetch: int = 4, lost_timeout_s: float = 60.0, hedge_floor_s: float = 1e9):
        self.ledger = Ledger(slots)
        settings = w.WantSettings(
            prefetch=prefetch,
            heartbeat_timeout_s=TIMEOUT_S,
            lost_timeout_s=lost_timeout_s,
            hedge_floor_s=hedge_floor_s,
        )
        self.wants = w.Wants(settings, self.ledger)
        self.now_s = 100.0
        self.said: list[w.Instruction] = []
        self.end = 0

    def __call__(self, event: w.Event, after_s: float = 0.0) -> list[w.Instruction]:
        self.now_s += after_s
        self.wants.note(event, self.now_s)
        self.said = self.wants.decide(self.now_s)
        return self.said

    def up(self, *workers: int, in_slot: bool = True) -> None:
        for one in workers:
            self(w.WorkerUp(one, f"w{one}", in_slot))

    def extend(self, batches: int) -> list[w.SendWant]:
        targets = tuple(target(self.end + one) for one in range(batches))
        self.end += batches
        return self.asked(w.Extended(targets))

    def asked(self, event: w.Event, after_s: float = 0.0) -> list[w.SendWant]:
        return [one for one in self(event, after_s) if isinstance(one, w.SendWant)]

    def wait(self, seconds: float, *, heard: tuple[int, ...] = ()) -> list[w.Instruction]:
        """Time goes by in small steps; these workers are heard of all the while."""
        orders: list[w.Instruction] = []
        for _ in range(round(seconds / 0.25)):
            self.now_s += 0.25
            for one in heard:
                orders += self(w.Heard(one))
            orders += self(w.Ticked())
        return orders

    def arrive(self, want: w.SendWant, *, valid: bool = True, after_s: float = 0.01) -> list[w.Instruction]:
        return self(w.Arrived(want.worker, want.ticket, valid=valid), after_s)

    def failure(self, orders: list[w.Instruction] | None = None):
        fails = [one.error for one in (self.said if orders is None else orders) if isinstance(one, w.Fail)]
        return fails[0] if fails else None


def sent(orders: list[w.Instruction]) -> list[w.SendWant]:
    return [one for one in orders if isinstance(one, w.SendWant)]


def numbers(wants: list[w.SendWant]) -> list[int]:
    return [one.target.number for one in wants]


class TestAsking:
    def test_wants_go_out_in_order_as_far_as_prefetch(self):
        trainer = Trainer(prefetch=4)
        trainer.up(1)
        assert trainer.wants.room() == 4
        assert numbers(trainer.extend(4)) == [0, 1, 2, 3]
        assert trainer.wants.room() == 0

    def test_each_goes_to_the_worker_with_the_least_unanswered_work(self):
        trainer = Trainer()
        trainer.up(1, 2)
        asked = trainer.extend(3)
        assert [one.worker for one in asked] == [1, 2, 1]
        trainer.arrive(asked[0])
        trainer.arrive(asked[2])
        assert [one.worker for one in trainer.extend(1)] == [1]

    def test_a_want_carries_the_way_that_its_worker_writes(self):
        trainer = Trainer()
        trainer.up(1)
        trainer.up(2, in_slot=False)
        assert [one.in_slot for one in trainer.extend(2)] == [True, False]

    def test_nothing_is_urgent_that_is_asked_for_the_first_time(self):
        trainer = Trainer()
        trainer.up(1)
        assert not any(one.urgent or one.attempt for one in trainer.extend(4))

    def test_credit_ends_with_the_slots(self):
        trainer = Trainer(slots=2, prefetch=4)
        trainer.up(1)
        assert numbers(trainer.extend(4)) == [0, 1]
        assert trainer.ledger.count(SlotState.LENT) == 2

    def test_a_returned_slot_is_lent_again(self):
        trainer = Trainer(slots=3, prefetch=3)
        trainer.up(1)
        first = trainer.extend(3)[0]
        trainer.arrive(first)
        trainer(w.Consumed(1))
        assert trainer.extend(1) == []
        trainer.ledger.drop(first.ticket.slot)
        again = trainer.asked(w.SlotReturned())
        assert [one.ticket for one in again] == [Ticket(first.ticket.slot, 2)]

    def test_the_first_valid_answer_is_delivered(self):
        trainer = Trainer()
        trainer.up(1)
        (want,) = trainer.extend(1)
        assert trainer.arrive(want) == [w.Deliver(0, want.ticket.slot, want.target)]
        assert not trainer.wants.expects(1, want.ticket)


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
        assert orders[0] == w.Deliver(0, want.ticket.slot, want.target)
        assert w.SendCancel(2, again.ticket) in orders

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
        assert [one.worker for one in trainer.asked(w.Heard(1))] == [1]

    def test_nobody_is_silent_because_the_trainer_itself_was_away(self):
        trainer = Trainer()
        trainer.up(1, 2)
        trainer.extend(4)
        trainer.wait(0.5)
        assert sent(trainer(w.Ticked(), after_s=30)) == []
        assert trainer.wants.counts.suspected == 0

    def test_pings_go_out_four_times_a_timeout_and_never_repeat_a_number(self):
        trainer = Trainer()
        trainer.up(1, 2)
        trainer.extend(2)
        pings = [one for one in trainer.wait(2, heard=(1, 2)) if isinstance(one, w.SendPing)]
        assert [one.worker for one in pings].count(1) == 4
        assert len({one.number for one in pings}) == len(pings)

    def test_a_worker_that_is_heard_of_and_owes_nothing_for_long_is_not_pinged(self):
        trainer = Trainer()
        trainer.up(1, 2)
        pings = [one.worker for one in trainer.wait(1.5, heard=(1,)) if isinstance(one, w.SendPing)]
        assert pings == [2, 2, 2]

    def test_after_a_reconnection_one_pong_is_asked_for_in_any_case(self):
        trainer = Trainer()
        trainer.up(1)
        trainer(w.WorkerCut(1))
        trainer.up(1)
        (ping,) = [one for one in trainer.wait(0.5, heard=(1,)) if isinstance(one, w.SendPing)]
        trainer(w.Held(1, ping.number, frozenset()))
        assert trainer.wait(2, heard=(1,)) == []

    @pytest.mark.fault(30)
    def test_one_that_leaves_and_falls_silent_does_not_keep_its_wants(self):
        trainer = Trainer()
        trainer.up(1, 2)
        (want,) = trainer.extend(1)
        trainer(w.WorkerLeft(1))
        assert [one.worker for one in sent(trainer.wait(2.5, heard=(2,)))] == [2]
        assert trainer.wants.silent_writers() == [1]
        trainer(w.WorkerDead(1, crashed=False))
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
        again = trainer.asked(w.WorkerDead(1))
        assert numbers(again) == [0, 2]
        assert [one.attempt for one in again] == [1, 1]
        assert trainer.ledger.count(SlotState.LENT) == 4
        assert all(not trainer.wants.expects(1, one.ticket) for one in asked)

    @pytest.mark.fault(30)
    def test_an_end_in_good_order_raises_none(self):
        trainer = Trainer()
        trainer.up(1, 2)
        trainer.extend(2)
        assert [one.attempt for one in trainer.asked(w.WorkerDead(1, crashed=False))] == [0]

    @pytest.mark.fault(30)
    def test_a_drain_raises_none_and_is_no_refusal(self):
        trainer = Trainer()
        trainer.up(1, 2)
        (want,) = trainer.extend(1)
        draining = error(RefusedError, code="draining")
        (again,) = trainer.asked(w.GaveUp(1, want.ticket, draining, passing=True))
        assert (again.worker, again.attempt) == (2, 0)
        assert {one.worker for one in trainer.extend(3)} == {2}

    @pytest.mark.fault(3)
    def test_a_batch_that_came_before_the_death_stays(self):
        trainer = Trainer()
        trainer.up(1, 2)
        (want,) = trainer.extend(1)
        trainer.arrive(want)
        assert trainer.asked(w.WorkerDead(1)) == []
        assert trainer.ledger.state(want.ticket.slot) is SlotState.FILLED

    @pytest.mark.fault(21)
    def test_a_cut_by_tcp_is_asked_elsewhere_at_once(self):
        trainer = Trainer()
        trainer.up(1, 2, in_slot=False)
        (want,) = trainer.extend(1)
        (again,) = trainer.asked(w.WorkerCut(1))
        assert (again.worker, again.attempt) == (2, 1)
        assert trainer.ledger.state(want.ticket.slot) is not SlotState.FREE or again.ticket.slot != want.ticket.slot
        assert not trainer.wants.expects(1, want.ticket)

    def test_a_cut_of_one_that_writes_in_place_keeps_its_slot_until_proof(self):
        trainer = Trainer()
        trainer.up(1, 2)
        (want,) = trainer.extend(1)
        (again,) = trainer.asked(w.WorkerCut(1))
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
        trainer(w.WorkerDead(1))
        trainer(w.WorkerDead(2))
        assert [one.worker for one in trainer.asked(w.WorkerDead(3))] == [4]

    def test_death_of_someone_unknown_is_nothing(self):
        assert Trainer()(w.WorkerDead(9)) == []
        assert Trainer()(w.WorkerCut(9)) == []
        assert Trainer()(w.Held(9, 1, frozenset())) == []


class TestLostOnTheWay:
    def test_a_want_that_a_later_pong_does_not_list_is_lost(self):
        trainer = Trainer()
        trainer.up(1)
        (want,) = trainer.extend(1)
        pings = [one.number for one in trainer.wait(1, heard=(1,)) if isinstance(one, w.SendPing)]
        (again,) = trainer.asked(w.Held(1, pings[0], frozenset()))
        assert again.target == want.target
        assert trainer.wants.counts.lost_on_the_way == 1

    def test_one_that_it_lists_is_not(self):
        trainer = Trainer()
        trainer.up(1)
        (want,) = trainer.extend(1)
        trainer.wait(1, heard=(1,))
        assert trainer(w.Held(1, 99, frozenset([want.ticket]))) == []
        assert trainer.wants.expects(1, want.ticket)

    def test_a_pong_to_a_ping_from_before_the_want_says_nothing(self):
        trainer = Trainer()
        trainer.up(1)
        pings = [one.number for one in trainer.wait(1) if isinstance(one, w.SendPing)]
        trainer.extend(1)
        assert trainer(w.Held(1, pings[-1], frozenset())) == []

    def test_after_a_reconnection_the_same_incarnation_keeps_what_it_lists(self):
        trainer = Trainer()
        trainer.up(1)
        kept, lost = trainer.extend(2)
        trainer(w.WorkerCut(1))
        trainer.up(1)
        pings = [one.number for one in trainer.wait(1, heard=(1,)) if isinstance(one, w.SendPing)]
        again = trainer.asked(w.Held(1, pings[-1], frozenset([kept.ticket])))
        assert [one.target for one in again] == [lost.target]
        assert trainer.arrive(kept)[0] == w.Deliver(0, kept.ticket.slot, kept.target)

    def test_one_that_it_lists_though_it_is_void_is_cancelled(self):
        trainer = Trainer()
        trainer.up(1, in_slot=False)
        (want,) = trainer.extend(1)
        trainer(w.WorkerCut(1))
        trainer.up(1, in_slot=False)
        orders = trainer(w.Held(1, 1, frozenset([want.ticket])))
        assert w.SendCancel(1, want.ticket) in orders


class TestRefusal:
    @pytest.mark.fault(7)
    def test_an_error_is_another_workers_chance(self):
        trainer = Trainer()
        trainer.up(1, 2)
        (want,) = trainer.extend(1)
        (again,) = trainer.asked(w.GaveUp(1, want.ticket, error()))
        assert (again.worker, again.urgent) == (2, True)

    @pytest.mark.fault(7)
    @pytest.mark.heritage("R9")
    def test_when_all_refused_the_feed_fails_with_the_last_error(self):
        trainer = Trainer()
        trainer.up(1, 2)
        (want,) = trainer.extend(1)
        (again,) = trainer.asked(w.GaveUp(1, want.ticket, error()))
        last = error()
        trainer(w.GaveUp(2, again.ticket, last))
        orders = trainer.wait(3, heard=(1, 2))
        assert trainer.failure(orders) is last
        assert sum(isinstance(one, w.Fail) for one in orders) == 1
        assert sent(orders) == []

    def test_one_that_comes_meanwhile_is_asked_first(self):
        trainer = Trainer()
        trainer.up(1)
        (want,) = trainer.extend(1)
        trainer(w.GaveUp(1, want.ticket, error()))
        assert trainer.failure(trainer.wait(1, heard=(1,))) is None
        assert [one.worker for one in trainer.asked(w.WorkerUp(2, "w2", in_slot=True))] == [2]
        assert trainer.failure(trainer.wait(10, heard=(1, 2))) is None

    def test_batches_before_the_refused_one_are_delivered_first(self):
        trainer = Trainer()
        trainer.up(1)
        first, second = trainer.extend(2)
        trainer(w.GaveUp(1, second.ticket, error()))
        assert trainer.failure(trainer.wait(10, heard=(1,))) is None
        assert trainer.arrive(first)[0] == w.Deliver(0, first.ticket.slot, first.target)
        trainer(w.Consumed(1))
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
        trainer(w.GaveUp(2, again.ticket, last))
        assert trainer.failure(trainer.wait(18, heard=(2,))) is None
        assert trainer.failure(trainer.wait(5, heard=(2,))) is last

    def test_a_worker_that_restarted_may_be_asked_again(self):
        trainer = Trainer()
        trainer.up(1)
        (want,) = trainer.extend(1)
        trainer(w.GaveUp(1, want.ticket, error()))
        trainer(w.WorkerDead(1))
        assert [one.worker for one in trainer.asked(w.WorkerUp(2, "w1", in_slot=True))] == [2]

    @pytest.mark.heritage("D1")
    @pytest.mark.heritage("D2")
    def test_when_nobody_is_left_the_error_names_who_was_tried(self):
        trainer = Trainer(lost_timeout_s=10)
        trainer.up(1, 2, 3)
        trainer.extend(2)
        trainer(w.WorkerDead(1))
        trainer(w.WorkerDead(2, crashed=False))
        problem = trainer.failure(trainer.wait(15))
        assert isinstance(problem, LostError)
        assert problem.got == "none for 10 s; tried: w1 (died), w2 (left), w3 (silent)"
        assert "loader-server run" in problem.remedy

    def test_nor_does_it_wait_for_ever_where_the_road_ends_unknown(self):
        trainer = Trainer(lost_timeout_s=10)
        trainer.up(1)
        assert trainer.failure(trainer.wait(11, heard=(1,))) is None
        trainer(w.WorkerDead(1))
        assert "w1 (died)" in trainer.failure(trainer.wait(11)).got

    def test_one_that_comes_back_in_time_saves_it(self):
        trainer = Trainer(lost_timeout_s=10)
        trainer.up(1)
        trainer.extend(1)
        assert trainer.failure(trainer.wait(9)) is None
        trainer(w.Heard(1))
        assert trainer.failure(trainer.wait(9)) is None


class TestHead:
    def full(self, *, in_slot: bool = True) -> tuple[Trainer, list[w.SendWant]]:
        """Two slots, both at worker 1, which is silent; worker 2 is well."""
        trainer = Trainer(slots=2, prefetch=2)
        trainer.up(1, in_slot=in_slot)
        asked = trainer.extend(2)
        trainer.wait(2.5)
        return trainer, asked

    @pytest.mark.fault(4)
    def test_with_all_slots_at_silent_workers_it_goes_by_tcp_through_the_reserve(self):
        trainer, _ = self.full()
        (want,) = trainer.asked(w.WorkerUp(2, "w2", in_slot=True))
        assert (want.target.number, want.ticket.slot, want.in_slot) == (0, trainer.ledger.reserve, False)
        trainer.arrive(want)
        assert trainer.ledger.count(SlotState.LENT) == 2

    def test_a_slot_that_a_silent_worker_cannot_write_into_is_taken_back(self):
        trainer, asked = self.full(in_slot=False)
        (first,) = trainer.asked(w.WorkerUp(2, "w2", in_slot=True))
        assert first.ticket.slot == trainer.ledger.reserve
        trainer.up(3)
        orders = trainer.wait(2.5, heard=(3,))
        (want,) = sent(orders)
        assert (want.target.number, want.worker, want.ticket.slot) == (0, 3, asked[1].ticket.slot)
        assert orders.index(w.SendCancel(1, asked[1].ticket)) < orders.index(want)
        assert not trainer.wants.expects(1, asked[1].ticket), "what it still pushes is stale"
        assert trainer.wants.expects(1, asked[0].ticket)

    @pytest.mark.fault(4)
    def test_the_next_head_does_not_wait_while_one_that_was_asked_again_is_dead(self):
        trainer = Trainer(slots=6, prefetch=1)
        trainer.up(1, 2)
        trainer.extend(1)
        assert [one.worker for one in sent(trainer.wait(2.5, heard=(2,)))] == [2]
        trainer.up(3)
        assert [one.worker for one in trainer.asked(w.WorkerDead(2))] == [3]

    def test_the_furthest_ready_batch_makes_room(self):
        trainer = Trainer(slots=3, prefetch=3)
        trainer.up(1, 2)
        asked = trainer.extend(3)
        by_number = {one.target.number: one for one in asked}
        trainer.arrive(by_number[1])
        trainer.arrive(by_number[2])
        head = by_number[0]
        orders = trainer.wait(2.5, heard=tuple({1, 2} - {head.worker}))
        assert w.Retract(2) in orders
        assert orders.count(w.Retract(2)) == 1
        trainer.ledger.drop(by_number[2].ticket.slot)
        again = trainer.asked(w.Retracted(2, by_number[2].ticket.slot))
        assert numbers(again) == [0]
        assert trainer.wants.counts.retracted == 1

    def test_a_consumer_that_was_faster_keeps_the_batch(self):
        trainer = Trainer(slots=3, prefetch=3)
        trainer.up(1, 2)
        asked = trainer.extend(3)
        for one in asked[1:]:
            trainer.arrive(one)
        trainer.wait(2.5, heard=tuple({1, 2} - {asked[0].worker}))
        trainer(w.Retracted(2, None))
        assert trainer.wants.counts.retracted == 0
        assert trainer.wants._entries[2].ready


class TestHedging:
    def slow_head(self, wants_before: int = 0) -> Trainer:
        trainer = Trainer(slots=12, prefetch=4, hedge_floor_s=0.25)
        trainer.up(1, 2)
        for number in range(wants_before):
            (one,) = trainer.extend(1)
            trainer.arrive(one, after_s=0.05)
            trainer.ledger.drop(one.ticket.slot)
            trainer(w.Consumed(number + 1))
        return trainer

    @pytest.mark.fault(6)
    def test_a_head_that_waits_long_is_asked_of_a_second_worker_once(self):
        trainer = self.slow_head(wants_before=3)
        (want,) = trainer.extend(1)
        hedges = sent(trainer.wait(6, heard=(1, 2)))
        assert [(one.target, one.worker, one.urgent) for one in hedges] == [(want.target, 3 - want.worker, True)]
        assert trainer.wants.counts.hedged == 1

    def test_not_before_the_floor_and_three_usual_answers(self):
        trainer = self.slow_head(wants_before=3)
        trainer.wants._usual_answer_s = 1.0
        trainer.extend(1)
        assert sent(trainer.wait(2.75, heard=(1, 2))) == []
        assert len(sent(trainer.wait(0.5, heard=(1, 2)))) == 1

    @pytest.mark.fault(6)
    def test_at_most_one_want_in_twenty(self):
        trainer = self.slow_head()
        for number in range(100):
            trainer.extend(1)
            trainer.wants._usual_answer_s = 0.01
            trainer.wait(1, heard=(1, 2))
            for one, worker in trainer.wants._workers.items():
                for ticket in list(worker.asks):
                    trainer(w.Arrived(one, ticket, valid=True))
            trainer.ledger.drop(next(s for s in range(12) if trainer.ledger.state(s) is SlotState.FILLED))
            trainer(w.Consumed(number + 1))
            assert trainer.wants.counts.hedged <= 1 + trainer.wants.counts.asked // w.HEDGED_SHARE
        assert trainer.wants.counts.hedged >= 4

    def test_not_where_all_others_are_silent(self):
        trainer = self.slow_head()
        (want,) = trainer.extend(1)
        trainer.wait(1.9, heard=(want.worker,))
        assert trainer.wants.counts.hedged == 1
        trainer.wants.counts.hedged = 0
        trainer.wants._entries[0].hedged = False
        assert sent(trainer.wait(5, heard=(want.worker,))) == []

    def test_with_all_slots_taken_the_room_that_is_made_is_the_heads(self):
        trainer = Trainer(slots=3, prefetch=3, hedge_floor_s=0.25)
        trainer.up(1, 2)
        asked = trainer.extend(3)
        trainer.arrive(asked[1])
        trainer.arrive(asked[2])
        trainer.wants._usual_answer_s = 0.01
        orders = trainer.wait(1, heard=(1, 2))
        assert [one for one in orders if isinstance(one, w.Retract)] == [w.Retract(2)]
        trainer.ledger.drop(asked[2].ticket.slot)
        assert numbers(trainer.asked(w.Retracted(2, asked[2].ticket.slot))) == [0]


class TestRefocus:
    def test_what_was_asked_is_cancelled_and_late_answers_are_stale(self):
        trainer = Trainer(slots=8, prefetch=2)
        trainer.up(1)
        first, second = trainer.extend(2)
        assert trainer(w.Refocused(2)) == [w.SendCancel(1, first.ticket), w.SendCancel(1, second.ticket)]
        trainer.end = 2
        new = trainer.extend(2)
        assert {one.ticket.slot for one in new}.isdisjoint({first.ticket.slot, second.ticket.slot})
        assert trainer.wants.target(1, first.ticket) is None
        assert trainer.arrive(first) == []
        assert trainer.wants.counts.stale == 1
        trainer(w.GaveUp(1, second.ticket, None))
        assert trainer.ledger.count(SlotState.LENT) == 2

    def test_a_retraction_that_was_under_way_is_forgotten(self):
        trainer = Trainer(slots=3, prefetch=3)
        trainer.up(1, 2)
        asked = trainer.extend(3)
        for one in asked[1:]:
            trainer.arrive(one)
        assert w.Retract(2) in trainer.wait(2.5, heard=tuple({1, 2} - {asked[0].worker}))
        for one in asked[1:]:
            trainer.ledger.drop(one.ticket.slot)
        trainer(w.Refocused(3))
        trainer(w.Retracted(2, None))
        trainer.end = 3
        assert numbers(trainer.extend(3)) == [3, 4]

    def test_a_forgetful_worker_gets_no_want_before_it_welcomes_us_again(self):
        trainer = Trainer()
        trainer.up(1)
        (want,) = trainer.extend(1)
        trainer(w.WorkerLeft(1))
        assert trainer.asked(w.GaveUp(1, want.ticket, None)) == []
        assert trainer.asked(w.Heard(1)) == []
        assert numbers(trainer.asked(w.WorkerUp(1, "w1", in_slot=True))) == [0]
