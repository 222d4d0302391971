"""Each rule of `wants`, alone; the interleavings that broke one are kept by name in the simulation's tests."""

from __future__ import annotations

import pytest

from shared.messages import Ticket
from tests.support.wants_alone import Trainer, numbers, sent
from trainer_client import want_events as e
from trainer_client import wants as w
from trainer_client.ledger import SlotState


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
        trainer(e.Consumed(1))
        assert trainer.extend(1) == []
        trainer.ledger.drop(first.ticket.slot)
        again = trainer.asked(e.SlotReturned())
        assert [one.ticket for one in again] == [Ticket(first.ticket.slot, 2)]

    def test_the_first_valid_answer_is_delivered(self):
        trainer = Trainer()
        trainer.up(1)
        (want,) = trainer.extend(1)
        assert trainer.arrive(want) == [e.Deliver(0, want.ticket.slot, want.target)]
        assert not trainer.wants.expects(1, want.ticket)


class TestHead:
    def full(self, *, in_slot: bool = True) -> tuple[Trainer, list[e.SendWant]]:
        """Two slots, both at worker 1, which is silent; worker 2 is well."""
        trainer = Trainer(slots=2, prefetch=2)
        trainer.up(1, in_slot=in_slot)
        asked = trainer.extend(2)
        trainer.wait(2.5)
        return trainer, asked

    @pytest.mark.fault(4)
    def test_with_all_slots_at_silent_workers_it_goes_by_tcp_through_the_reserve(self):
        trainer, _ = self.full()
        (want,) = trainer.asked(e.WorkerUp(2, "w2", in_slot=True))
        assert (want.target.number, want.ticket.slot, want.in_slot) == (0, trainer.ledger.reserve, False)
        trainer.arrive(want)
        assert trainer.ledger.count(SlotState.LENT) == 2

    def test_a_slot_that_a_silent_worker_cannot_write_into_is_taken_back(self):
        trainer, asked = self.full(in_slot=False)
        (first,) = trainer.asked(e.WorkerUp(2, "w2", in_slot=True))
        assert first.ticket.slot == trainer.ledger.reserve
        trainer.up(3)
        orders = trainer.wait(2.5, heard=(3,))
        (want,) = sent(orders)
        assert (want.target.number, want.worker, want.ticket.slot) == (0, 3, asked[1].ticket.slot)
        assert orders.index(e.SendCancel(1, asked[1].ticket)) < orders.index(want)
        assert not trainer.wants.expects(1, asked[1].ticket), "what it still pushes is stale"
        assert trainer.wants.expects(1, asked[0].ticket)

    @pytest.mark.fault(4)
    def test_the_next_head_does_not_wait_while_one_that_was_asked_again_is_dead(self):
        trainer = Trainer(slots=6, prefetch=1)
        trainer.up(1, 2)
        trainer.extend(1)
        assert [one.worker for one in sent(trainer.wait(2.5, heard=(2,)))] == [2]
        trainer.up(3)
        assert [one.worker for one in trainer.asked(e.WorkerDead(2))] == [3]

    def test_the_furthest_ready_batch_makes_room(self):
        trainer = Trainer(slots=3, prefetch=3)
        trainer.up(1, 2)
        asked = trainer.extend(3)
        by_number = {one.target.number: one for one in asked}
        trainer.arrive(by_number[1])
        trainer.arrive(by_number[2])
        head = by_number[0]
        orders = trainer.wait(2.5, heard=tuple({1, 2} - {head.worker}))
        assert e.Retract(2) in orders
        assert orders.count(e.Retract(2)) == 1
        trainer.ledger.drop(by_number[2].ticket.slot)
        again = trainer.asked(e.Retracted(2, by_number[2].ticket.slot))
        assert numbers(again) == [0]
        assert trainer.wants.counts.retracted == 1

    def test_a_consumer_that_was_faster_keeps_the_batch(self):
        trainer = Trainer(slots=3, prefetch=3)
        trainer.up(1, 2)
        asked = trainer.extend(3)
        for one in asked[1:]:
            trainer.arrive(one)
        trainer.wait(2.5, heard=tuple({1, 2} - {asked[0].worker}))
        trainer(e.Retracted(2, None))
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
            trainer(e.Consumed(number + 1))
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
                    trainer(e.Arrived(one, ticket, valid=True))
            trainer.ledger.drop(next(s for s in range(12) if trainer.ledger.state(s) is SlotState.FILLED))
            trainer(e.Consumed(number + 1))
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
        assert [one for one in orders if isinstance(one, e.Retract)] == [e.Retract(2)]
        trainer.ledger.drop(asked[2].ticket.slot)
        assert numbers(trainer.asked(e.Retracted(2, asked[2].ticket.slot))) == [0]


class TestRefocus:
    def test_what_was_asked_is_cancelled_and_late_answers_are_stale(self):
        trainer = Trainer(slots=8, prefetch=2)
        trainer.up(1)
        first, second = trainer.extend(2)
        assert trainer(e.Refocused(2)) == [e.SendCancel(1, first.ticket), e.SendCancel(1, second.ticket)]
        trainer.end = 2
        new = trainer.extend(2)
        assert {one.ticket.slot for one in new}.isdisjoint({first.ticket.slot, second.ticket.slot})
        assert trainer.wants.target(1, first.ticket) is None
        assert trainer.arrive(first) == []
        assert trainer.wants.counts.stale == 1
        trainer(e.GaveUp(1, second.ticket, None))
        assert trainer.ledger.count(SlotState.LENT) == 2

    def test_a_retraction_that_was_under_way_is_forgotten(self):
        trainer = Trainer(slots=3, prefetch=3)
        trainer.up(1, 2)
        asked = trainer.extend(3)
        for one in asked[1:]:
            trainer.arrive(one)
        assert e.Retract(2) in trainer.wait(2.5, heard=tuple({1, 2} - {asked[0].worker}))
        for one in asked[1:]:
            trainer.ledger.drop(one.ticket.slot)
        trainer(e.Refocused(3))
        trainer(e.Retracted(2, None))
        trainer.end = 3
        assert numbers(trainer.extend(3)) == [3, 4]

    def test_a_forgetful_worker_gets_no_want_before_it_welcomes_us_again(self):
        trainer = Trainer()
        trainer.up(1)
        (want,) = trainer.extend(1)
        trainer(e.WorkerLeft(1))
        assert trainer.asked(e.GaveUp(1, want.ticket, None)) == []
        assert trainer.asked(e.Heard(1)) == []
        assert numbers(trainer.asked(e.WorkerUp(1, "w1", in_slot=True))) == [0]
