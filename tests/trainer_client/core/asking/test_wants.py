"""Each rule of asking, alone, through the core's one door. Workers are numbered from 1, batches from 0.

The holders of shards are tried without a core.
"""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import pytest

from shared.wire import messages as m
from shared.wire.message_parts import Cursor, Ticket
from tests.support.lone_core import DIGEST, LoneCore, address, attached, pushed
from trainer_client.core import events as e
from trainer_client.core import instructions as i
from trainer_client.core.asking.wants import WANTS_PER_HEDGE, ShardHolders
from trainer_client.core.slot_states import SlotState


def numbers(wants):
    return [one.number for one in wants]


class TestAsking:
    def test_wants_go_out_in_order_as_far_as_prefetch(self):
        wants = LoneCore(prefetch=4).with_workers(1)
        assert numbers(wants) == [0, 1, 2, 3]
        assert [(one.attempt, one.urgent) for one in wants] == [(0, False)] * 4

    def test_a_want_says_whose_it_is_and_what_it_is_for(self):
        want, *_ = LoneCore().with_workers(1)
        assert (want.job, want.stream, want.plan_digest, want.epoch, want.group) == ("digits", "train", "plan-1", 1, 4)
        assert (want.trainer, want.worker, want.empty) == (1000, 1, False)

    def test_each_goes_to_the_worker_with_the_least_unanswered_work(self):
        lone = LoneCore(prefetch=6)
        wants = lone.with_workers(2)
        assert [one.worker for one in wants] == 3 * [wants[0].worker, 3 - wants[0].worker]
        quick = wants[1].worker
        lone.push(wants[1])
        lone.push(wants[3])
        lone.push(wants[0])
        lone.consume(lone.offer(0))
        assert [one.worker for one in lone.wants()] == [quick]

    def test_ties_are_broken_otherwise_for_each_trainer(self):
        firsts = {LoneCore(prefetch=1, incarnation=one).with_workers(4)[0].worker for one in range(30)}
        assert firsts == {1, 2, 3, 4}

    def test_a_want_carries_the_way_that_its_worker_writes(self):
        assert LoneCore().with_workers(1, shared=True)[0].in_slot
        assert not LoneCore().with_workers(1, shared=False)[0].in_slot

    def test_credit_ends_with_the_slots_and_goes_on_with_one_that_comes_back(self):
        lone = LoneCore(slots=3, prefetch=9)
        wants = lone.with_workers(1)
        assert numbers(wants) == [0, 1]  # one fewer than slots
        assert lone.stream.slots.count(SlotState.LENT) == 2
        lone.push(wants[0])
        lone.tell(e.Took(0, wants[0].ticket.slot))
        assert numbers(lone.wants()) == [2]
        lone.push(wants[1])
        lone.tell(e.Took(1, wants[1].ticket.slot))
        assert lone.wants() == []
        assert lone.core.stream._wakes.slots
        lone.tell(e.HandedBack(0, wants[0].ticket.slot))
        assert [(one.number, one.ticket) for one in lone.wants()] == [(3, Ticket(wants[0].ticket.slot, 2))]

    def test_consumers_wake_us_only_for_what_we_wait_for(self):
        lone = LoneCore(prefetch=4)
        wants = lone.with_workers(1)
        assert lone.core.stream._wakes == i.WakeFor(room=False, slots=False)
        for want in wants[:3]:
            lone.push(want)
        assert lone.ordered(i.WakeFor) == [i.WakeFor(room=True, slots=False)]

    def test_a_worker_that_owes_nothing_is_asked_as_soon_as_a_batch_is_taken(self):
        """With as many batches ahead as workers, each waited for the others' answers before it was asked again."""
        lone = LoneCore(prefetch=2)
        wants = lone.with_workers(2)
        assert lone.core.stream._wakes == i.WakeFor(room=False, slots=False)
        lone.push(wants[0])
        assert lone.ordered(i.WakeFor) == [i.WakeFor(room=True, slots=False)]
        lone.tell(e.Took(0, wants[0].ticket.slot))
        assert numbers(lone.wants()) == [2]


class TestHead:
    def full(self, *, shared=True):
        """Three slots, two at worker 1, which is silent; worker 2 comes then."""
        lone = LoneCore(slots=3, prefetch=9)
        wants = lone.with_workers(1, shared=shared)
        third = lone.stream.slots.lend()  # held by somebody
        assert third is not None
        lone.wait(2.5)
        lone.members(2, address(1), address(2))
        return lone, wants

    @pytest.mark.fault(4)
    def test_with_all_slots_at_silent_workers_it_goes_by_tcp_through_the_reserve(self):
        lone, _ = self.full()
        lone.greet(2)
        (want,) = lone.wants()
        assert (want.number, want.ticket.slot, want.in_slot) == (0, lone.stream.slots.reserve, False)
        assert want.urgent

    def test_a_slot_that_a_silent_worker_cannot_write_into_is_taken_back(self):
        lone = LoneCore(slots=2, prefetch=9)
        (held,) = lone.with_workers(1, shared=False)
        lone.stream.slots.lend()
        lone.stream.slots.lend_reserve()
        lone.wait(1.9)
        lone.stream.tickets.suspect(lone.stream.connections.worker_at(lone.connection_id(1)))
        lone.members(2, address(1), address(2))
        lone.greet(2)
        cancel, want = lone.sent(m.Cancel)[0], lone.wants()[0]
        assert cancel.ticket == held.ticket
        assert (want.number, want.ticket.slot, want.worker) == (0, held.ticket.slot, 2)
        lone.say(1, pushed(held), "payload")
        assert lone.ordered(i.Offer) == []

    def test_the_furthest_ready_batch_makes_room(self):
        lone = LoneCore(slots=4, prefetch=3)
        wants = lone.with_workers(2)
        lone.stream.slots.lend()
        head = wants[0]
        for want in wants[1:]:
            lone.push(want)
        other = 3 - head.worker
        orders = lone.wait_hearing(2.5, other)
        assert [one for one in orders if isinstance(one, i.TakeBack)] == [i.TakeBack(2)]
        lone.tell(e.TakenBack(2, won=True))
        assert [(one.number, one.worker) for one in lone.wants()] == [(0, other)]
        assert lone.stream.wants.retracted == 1
        assert not lone.entry(2).ready

    def test_a_consumer_that_was_faster_keeps_the_batch(self):
        lone = LoneCore(slots=4, prefetch=3)
        wants = lone.with_workers(2)
        lone.stream.slots.lend()
        for want in wants[1:]:
            lone.push(want)
        lone.wait_hearing(2.5, 3 - wants[0].worker)
        lone.tell(e.TakenBack(2, won=False))
        assert lone.stream.wants.retracted == 0
        assert lone.entry(2).ready


class TestHedging:
    def slow_head(self, before=0):
        lone = LoneCore(slots=7, prefetch=1)
        wants = lone.with_workers(2)
        for number in range(before):
            lone.tell(after_s=0.05)
            lone.push(wants[0])
            lone.consume(lone.offer(number))
            wants = lone.wants()
        return lone, wants[0]

    @pytest.mark.fault(6)
    def test_a_head_that_waits_long_is_asked_of_a_second_worker_once(self):
        lone, want = self.slow_head(before=3)
        lone.wait_hearing(6, 1, 2)
        assert [(one.number, one.worker, one.urgent) for one in lone.wants()] == [(want.number, 3 - want.worker, True)]
        assert lone.stream.wants.hedged == 1

    def test_not_before_the_floor_and_three_usual_answers(self):
        lone, _ = self.slow_head(before=3)
        lone.stream.answers.usual_answer_s = 1.0
        lone.wait_hearing(2.75, 1, 2)
        assert lone.wants() == []
        lone.wait_hearing(0.5, 1, 2)
        assert len(lone.wants()) == 1

    @pytest.mark.fault(6)
    def test_at_most_one_want_in_twenty(self):
        lone, want = self.slow_head()
        for number in range(38):
            lone.stream.answers.usual_answer_s = 0.01
            lone.wait_hearing(0.5, 1, 2)
            lone.push(want)
            assert lone.stream.wants.hedged <= 1 + lone.stream.wants.asked // WANTS_PER_HEDGE
            lone.consume(lone.offer(number))
            (want, *_) = lone.wants()
            for other in (1, 2):  # the cancelled ones come back
                for ticket in lone.tickets(other):
                    if ticket != want.ticket:
                        lone.say(other, m.Cancelled(ticket=ticket))
        assert lone.stream.wants.hedged >= 2

    def test_not_where_all_others_are_silent(self):
        lone, want = self.slow_head()
        lone.wait_hearing(0.2, 1, 2)
        lone.stream.tickets.suspect(lone.stream.connections.worker_at(lone.connection_id(3 - want.worker)))
        lone.wait_hearing(5, want.worker)
        assert lone.stream.wants.hedged == 0


class TestTakingOver:
    def test_an_idle_worker_takes_over_what_another_has_not_begun(self):
        lone = LoneCore(slots=20, prefetch=6)
        wants = lone.with_workers(1)
        lone.members(2, address(1), address(2))
        lone.greet(2)
        assert lone.wants() == []
        lone.entry(0).hedged = True
        lone.wait_hearing(1, 1, 2)
        taken = lone.wants()
        assert taken[0].worker == 2
        assert taken[0].number > 0, "the one in hand stays"
        assert lone.sent(m.Cancel)[0].ticket == wants[taken[0].number].ticket

    def test_not_what_it_refused(self):
        lone = LoneCore(slots=20, prefetch=3)
        lone.with_workers(1)
        lone.members(2, address(1), address(2))
        lone.greet(2)
        for seq in range(3):
            lone.entry(seq).refused[2] = ValueError()
        lone.wait_hearing(1, 1, 2)
        assert lone.wants() == []


class TestTurning:
    def test_what_was_asked_is_cancelled_and_late_answers_are_stale(self):
        lone = LoneCore(slots=20, prefetch=2)
        first, second = lone.with_workers(1)
        lone.open(7, at=(1, 10))
        assert [one.ticket for one in lone.sent(m.Cancel)] == [first.ticket, second.ticket]
        assert numbers(lone.wants()) == [10, 11]
        assert {one.ticket.slot for one in lone.wants()}.isdisjoint({first.ticket.slot, second.ticket.slot})
        lone.push(first)
        assert lone.ordered(i.Offer) == []
        assert lone.stream.answers.stale == 1
        lone.say(1, m.Cancelled(ticket=second.ticket))
        assert lone.stream.slots.count(SlotState.LENT) == 2

    def test_what_lay_ahead_is_begun_anew_under_new_numbers(self):
        lone = LoneCore(prefetch=2)
        want, _ = lone.with_workers(1)
        lone.push(want)
        lone.open(7, at=(1, 10))
        (restart,) = lone.ordered(i.Restart)
        assert (restart.reader, restart.head) == (7, 2)
        lone.tell(e.HandedBack(0, want.ticket.slot))  # the offer was thrown away
        assert lone.stream.upcoming.head == 2


class TestPassing:
    def test_taking_a_batch_says_that_those_before_it_were_taken(self):
        """A signal may come between taking a batch and saying so: what follows from later facts is inferred."""
        lone = LoneCore(prefetch=3)
        wants = lone.with_workers(1)
        for want in wants:
            lone.push(want)
        lone.tell(e.Took(2, wants[2].ticket.slot))
        assert lone.stream.upcoming.head == 3
        lone.tell(*(e.HandedBack(seq, wants[seq].ticket.slot) for seq in range(3)))
        assert lone.stream.slots.count(SlotState.OUT) == lone.stream.slots.count(SlotState.OFFERED) == 0

    def test_handing_back_says_that_it_had_been_taken(self):
        lone = LoneCore(prefetch=3)
        want, *_ = lone.with_workers(1)
        lone.push(want)
        lone.tell(e.HandedBack(0, want.ticket.slot))
        assert lone.stream.upcoming.head == 1

    def test_late_facts_of_an_earlier_line_move_nothing(self):
        lone = LoneCore(prefetch=2)
        want, _ = lone.with_workers(1)
        lone.push(want)
        lone.open(7, at=(1, 10))
        lone.tell(e.Took(0, want.ticket.slot), e.HandedBack(0, want.ticket.slot))
        assert lone.stream.upcoming.head == 2


class TestBooks:
    def test_each_want_counts_once(self):
        lone = LoneCore(prefetch=3)
        wants = lone.with_workers(2)
        assert lone.stream.wants.asked == len(wants) == 3

    def test_it_looks_around_only_when_somebody_came_or_went(self):
        lone = LoneCore(prefetch=3)
        lone.with_workers(2)
        assert not lone.stream.tickets.look_around
        lone.tell(e.ConnectionDown(lone.connection_id(1)))
        assert not lone.stream.tickets.look_around
        assert [one.name for one in lone.stream.wants._live] == ["w2"]

    def test_the_group_of_the_epochs_to_come_is_what_the_coordinator_said_last(self):
        lone = LoneCore()
        lone.with_workers(1)
        lone.tell(e.AttachAsked(2, Cursor(0, 3, 4, DIGEST)))
        lone.tell(e.CoordinatorSent(attached(2, at=(0, 3), next_group=8)))
        assert lone.stream.upcoming.next_group == 8


class TestVerifiers:
    def test_two_wants_are_open_at_most(self):
        lone = LoneCore(slots=20, prefetch=9, work="verify")
        wants = lone.with_workers(2)
        assert numbers(wants) == [0, 1]
        lone.push(wants[0])
        assert lone.wants() == []
        lone.consume(lone.offer(0))
        assert numbers(lone.wants()) == [2]

    def test_a_slow_head_is_not_asked_of_a_second_worker(self):
        for work, asked_again in (("", True), ("verify", False)):
            lone = LoneCore(slots=20, prefetch=1, work=work)
            (want, *_) = lone.with_workers(2)
            lone.wait_hearing(30, 1, 2)
            assert (want.number in numbers(lone.wants())) is asked_again

    def test_none_is_urgent_even_where_its_worker_has_fallen_silent(self):
        for work, urgent in (("", True), ("verify", False)):
            lone = LoneCore(slots=20, prefetch=1, work=work)
            (want, *_) = lone.with_workers(2)
            lone.wait_hearing(6, 3 - want.worker)
            again = [one for one in lone.wants() if one.number == want.number]
            assert again
            assert {one.urgent for one in again} == {urgent}


def worker(number, **other):
    return SimpleNamespace(**{"name": f"w{number}", "incarnation": number, "busy_until_s": 0.0, **other})


def entry(number, epoch=0, *, refused=(), askers=()):
    position = SimpleNamespace(epoch=epoch)
    return SimpleNamespace(
        batch=SimpleNamespace(number=number, position=position), refused=dict.fromkeys(refused), askers=askers
    )


WORKERS = [worker(number) for number in range(4)]


def names(holders, live, epoch=0, shards=8, at=0):
    """The holders of all shards at one of their elements."""
    return [holders.holder(entry(at * shards + shard, epoch), live, 1.0).name for shard in range(shards)]


def test_shards_are_shared_out_evenly_and_alike_by_all_trainers():
    first = names(ShardHolders(8), WORKERS)
    assert Counter(first) == {one.name: 2 for one in WORKERS}
    assert first == names(ShardHolders(8), WORKERS[::-1])
    holders = ShardHolders(8)
    assert [holders.holder(entry(8 + n), WORKERS, 1.0).name for n in range(8)] == first


def test_a_lost_workers_shards_alone_move_and_do_not_come_back_before_the_next_epoch():
    holders = ShardHolders(8)
    first = names(holders, WORKERS)
    second = names(holders, WORKERS[1:], at=8)
    assert [one for one, other in zip(first, second, strict=True) if one != other] == ["w0", "w0"]
    assert names(holders, WORKERS, at=9) == second
    assert names(holders, WORKERS, epoch=1) == first


def test_workers_that_come_while_shards_are_young_get_their_share():
    holders = ShardHolders(8)
    assert set(names(holders, WORKERS[:1])) == {"w0"}
    assert names(holders, WORKERS, at=7) == names(ShardHolders(8), WORKERS)
    holders = ShardHolders(8)
    assert set(names(holders, WORKERS[:1], at=7)) == set(names(holders, WORKERS, at=8)) == {"w0"}


def test_who_is_busy_or_has_it_is_waited_for():
    holders = ShardHolders(1)
    holder = holders.holder(entry(0), WORKERS, 1.0)
    assert holders.holder(entry(0, askers=(holder.incarnation,)), WORKERS, 1.0) is None
    holder.busy_until_s = 2.0
    assert [holders.holder(entry(0), WORKERS, now_s) for now_s in (1.9, 2.0)] == [None, holder]
    holder.busy_until_s = 0.0


def test_what_a_worker_refused_is_asked_of_others_and_the_shard_stays():
    holders = ShardHolders(1)
    holder = holders.holder(entry(0), WORKERS, 1.0)
    other = holders.holder(entry(0, refused=[holder.incarnation]), WORKERS, 1.0)
    assert other.name != holder.name
    assert holders.holder(entry(1), WORKERS, 1.0) is holder
    assert holders.holder(entry(0, refused=range(4)), WORKERS, 1.0) is None
    assert holders.holder(entry(0), [], 1.0) is None
