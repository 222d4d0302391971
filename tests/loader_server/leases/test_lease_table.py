"""The lease table: one rule at a time, over a table that somebody asks directly."""

from __future__ import annotations

from itertools import count

import pytest

from loader_server.leases.lease_book import BookAdvanced, LeaseBook
from loader_server.leases.lease_table import LeaseRules, LeaseSettings, LeaseTable
from loader_server.leases.table_counts import NO_REASON, OTHER_REASONS, TOOK_TOO_LONG, TableCounts, TableNews
from shared.wire.message_parts import DoneSet, EpochDone, Failure, Lease
from shared.wire.messages import Leases, Outcomes

SETTINGS = LeaseSettings(stream="train", work="train", rules=LeaseRules(floor_s=10.0, tries=3), gone_s=5.0)


class Desk:
    """A table, what it kept, and trainers that talk to it."""

    def __init__(self, batches=100, settings=SETTINGS) -> None:
        self.settings, self.size = settings, batches
        self.kept: list = []
        self._identities = count(1)
        self.table = self._make_table()
        self.now_s = 0.0
        self._serials: dict[int, int] = {}

    def _make_table(self) -> LeaseTable:
        self.book = LeaseBook(lambda: next(self._identities), self.kept.append)
        return LeaseTable(self.settings, self.batches, self.book)

    def batches(self, epoch):
        return self.size(epoch) if callable(self.size) else self.size

    def say(
        self, who=1, *, done=(), failed=(), returned=(), wanted=0, in_hand=None, before=1, after_s=0.0, **other
    ) -> Leases:
        self.now_s += after_s
        self._serials[who] = self._serials.get(who, 0) + 1
        said = {
            "stream": "train", "work": "train", "incarnation": who, "serial": self._serials[who],
            "book": None, "generation": self.table.generation, "snapshot": False,
        }  # fmt: skip
        if in_hand is True:
            held = self.table.trainers[who].leases if who in self.table.trainers else {}
            gone = {(lease.epoch, lease.number) for lease in (*done, *failed, *returned)}
            in_hand = next((Lease(*key, 1) for key in held if key not in gone), None)
        outcomes = Outcomes(
            done=tuple(done),
            failed=tuple(one if isinstance(one, Failure) else Failure(one, "") for one in failed),
            returned=tuple(returned),
            wanted=wanted,
            in_hand=in_hand,
            before=before,
            **{**said, **other},
        )
        answer = self.table.report(outcomes, self.now_s)
        assert answer is not None
        return answer

    def wait(self, seconds, *alive) -> None:
        """Time passes, in which these are heard."""
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.now_s += 0.5
            for who in alive:
                self.table.hear(who, self.now_s)
            self.table.tick(self.now_s)

    def restart(self) -> LeaseTable:
        """Killed, and recovered from what it kept."""
        before, self.table = self.table, self._make_table()
        for fact in list(self.kept):
            (self.book if isinstance(fact, BookAdvanced) else self.table).recover(fact)
        assert not self.table.incomplete()
        self.table.take_up(self.now_s)
        return before


def numbers(answer: Leases) -> list[int]:
    return [lease.number for lease in answer.leases]


class TestLeasing:
    def test_numbers_go_out_in_order_and_to_one_trainer_each(self):
        desk = Desk()
        assert numbers(desk.say(1, wanted=3)) == [0, 1, 2]
        assert numbers(desk.say(2, wanted=2)) == [3, 4]
        assert numbers(desk.say(1, wanted=4)) == [0, 1, 2, 5]

    def test_done_is_answered_with_the_next_lease(self):
        desk = Desk()
        (first,) = desk.say(wanted=1).leases
        (second,) = desk.say(done=[first], wanted=1).leases
        assert (second.epoch, second.number, second.nth) == (0, 1, 1)
        assert desk.table.counts.done == 1

    def test_near_the_epochs_end_fewer_are_leased_ahead(self):
        desk = Desk(12)
        for who in (2, 3):
            desk.say(who)
        assert numbers(desk.say(1, wanted=8)) == [0, 1]
        assert numbers(desk.say(2, wanted=8)) == [2, 3]

    def test_the_last_ones_go_to_whoever_asks(self):
        desk = Desk(2)
        assert numbers(desk.say(1, wanted=8)) == [0]
        assert numbers(desk.say(2, wanted=8)) == [1]
        assert numbers(desk.say(3, wanted=8)) == []

    def test_the_next_epoch_opens_while_stragglers_finish(self):
        desk = Desk(1)
        (straggling,) = desk.say(1, wanted=1).leases
        (ahead,) = desk.say(2, wanted=1, before=2).leases
        assert (ahead.epoch, ahead.number) == (1, 0)
        assert desk.say(2, done=[ahead]).unsettled == 0
        assert desk.say(1, done=[straggling]).unsettled == 2

    def test_no_epoch_is_opened_that_nobody_wants(self):
        desk = Desk(1)
        answer = desk.say(wanted=1)
        answer = desk.say(done=answer.leases, wanted=1, before=1)
        assert (answer.leases, answer.unsettled) == ((), 1)

    def test_nothing_is_leased_while_batches_are_counted(self):
        desk = Desk(lambda _: None)
        assert desk.say(wanted=1).leases == ()

    def test_so_many_epochs_at_most_are_under_way(self):
        desk = Desk(1)
        for who in range(1, 20):
            desk.say(who, wanted=1, before=100)
        assert len(desk.table.epochs) == 16

    def test_epochs_without_a_batch_are_passed_over(self):
        desk = Desk(lambda epoch: int(epoch == 3))
        (lease,) = desk.say(wanted=1, before=9).leases
        assert lease.epoch == 3


class TestGivingBack:
    def test_what_failed_goes_out_again_before_fresh_ones(self):
        desk = Desk()
        first = desk.say(1, wanted=1).leases[0]
        desk.say(1, failed=[first])
        again = desk.say(2, wanted=1).leases[0]
        assert (again.number, again.nth) == (0, 2)

    def test_what_is_given_back_goes_out_again_and_costs_no_try(self):
        desk = Desk(1)
        for nth in range(1, 6):
            (lease,) = desk.say(wanted=1).leases
            assert (lease.number, lease.nth) == (0, nth)
            desk.say(returned=[lease])
            assert desk.say(2).leases == desk.say(1).leases == ()
        assert (desk.table.counts.returned, desk.table.counts.failed, desk.table.dead) == (5, 0, {})

    def test_only_who_has_it_gives_it_back(self):
        desk = Desk(1)
        (lease,) = desk.say(1, wanted=1).leases
        desk.say(2, returned=[lease])
        assert (desk.say(1).leases, desk.table.counts.late, desk.table.counts.returned) == ((lease,), 1, 0)

    def test_after_so_many_failures_it_is_given_up_and_told(self):
        desk = Desk(1)
        for _ in range(3):
            assert not desk.table.dead
            desk.say(failed=desk.say(wanted=1).leases)
        assert list(desk.table.dead) == [(0, 0)]
        assert [(news.event, news.key) for news in desk.table.news] == [*[("failed", (0, 0))] * 2, ("dead", (0, 0))]
        answer = desk.say(wanted=1)
        assert (answer.leases, answer.unsettled) == ((), 1)

    def test_why_a_batch_failed_is_told_counted_and_kept_with_what_was_given_up(self):
        desk = Desk(2)
        for reason in ("loss is not finite", "", "out of memory"):
            (lease,) = desk.say(wanted=1).leases
            desk.say(failed=[Failure(lease, reason)])
        assert [news.reason for news in desk.table.news] == ["loss is not finite", NO_REASON, "out of memory"]
        assert desk.table.counts.reasons == {"loss is not finite": 1, NO_REASON: 1, "out of memory": 1}
        desk.restart()
        assert desk.table.dead[0, 0].reason == "out of memory"

    def test_the_last_reason_stays_with_a_number_that_is_leased_again(self):
        desk = Desk(1)
        (lease,) = desk.say(wanted=1).leases
        desk.say(failed=[Failure(lease, "out of memory")])
        (lease,) = desk.say(wanted=1).leases
        assert desk.table.epochs[0].out[0].reason == "out of memory"
        desk.say(returned=[lease])
        assert desk.restart().epochs[0].out[0].reason == desk.table.epochs[0].out[0].reason == "out of memory"

    def test_a_deadline_is_a_reason_too(self):
        desk = Desk(1)
        desk.say(1, wanted=1)
        desk.say(1, in_hand=True)
        desk.wait(11, 1)
        assert [(news.event, news.reason) for news in desk.table.news] == [("failed", TOOK_TOO_LONG)]
        assert desk.table.counts.reasons == {TOOK_TOO_LONG: 1}

    def test_reasons_that_are_never_the_same_are_counted_together_beyond_a_number(self):
        counts = TableCounts()
        for number in range(100):
            counts.add_reason(f"loss {number}")
        counts.add_reason("loss 5")
        assert (len(counts.reasons), counts.reasons.total()) == (33, 101)
        assert (counts.reasons[OTHER_REASONS], counts.reasons["loss 5"]) == (68, 2)

    def test_a_trainers_death_burns_no_try(self):
        desk = Desk(1)
        for who in range(1, 10):
            (lease,) = desk.say(who, wanted=1).leases
            desk.say(who, in_hand=True)
            assert lease.nth == who
            desk.wait(6)
        assert desk.table.counts.returned == 9
        assert not desk.table.dead

    def test_leaving_gives_back(self):
        desk = Desk()
        desk.say(1, wanted=2)
        desk.table.leave(1)
        assert numbers(desk.say(2, wanted=3)) == [0, 1, 2]

    def test_what_is_in_hand_for_too_long_costs_a_try_and_all_behind_it_none(self):
        desk = Desk()
        desk.say(1, wanted=3)
        desk.say(1, wanted=3, in_hand=True)
        desk.wait(9.5, 1)
        assert desk.table.counts.expired == 0
        desk.wait(1, 1)
        assert (desk.table.counts.expired, desk.table.counts.returned) == (1, 2)
        assert [desk.table.epochs[0].out[one].failures for one in range(3)] == [1, 0, 0]
        assert desk.table.hear(1, desk.now_s)

    def test_the_deadline_starts_when_the_batch_comes_to_the_head(self):
        desk = Desk()
        leases = list(desk.say(1, wanted=3).leases)
        for lease in leases:
            desk.say(1, in_hand=True)
            desk.wait(8, 1)
            desk.say(1, done=[lease], in_hand=True)
        assert (desk.table.counts.done, desk.table.counts.expired) == (3, 0)

    def test_what_waits_for_its_data_is_held_far_longer_but_not_for_ever(self):
        desk = Desk()
        desk.say(1, wanted=2)
        desk.wait(99, 1)
        assert desk.table.counts.returned == 0
        desk.wait(2, 1)
        assert (desk.table.counts.returned, desk.table.counts.expired) == (2, 0)

    def test_the_deadline_is_three_times_the_slowest_of_late(self):
        desk = Desk()
        desk.say(1, wanted=2)
        desk.say(1, in_hand=True)
        first = desk.say(1, in_hand=True).leases[0]
        desk.wait(8, 1)
        desk.say(1, done=[first], in_hand=True)
        desk.wait(23.5, 1)
        assert desk.table.counts.expired == 0
        desk.wait(1, 1)
        assert desk.table.counts.expired == 1

    def test_waiting_for_data_is_not_part_of_the_pace(self):
        desk = Desk()
        (first,) = desk.say(1, wanted=1).leases
        desk.wait(50, 1)
        desk.say(1, in_hand=True)
        desk.say(1, done=[first], after_s=1.0)
        assert desk.table._pace.deadline_s == 10.0

    def test_whoever_waits_for_more_is_called_when_there_is_some_again(self):
        desk = Desk(1)
        desk.say(1, wanted=1)
        desk.say(2, wanted=1)
        assert not desk.table.hear(2, 0.0)
        desk.table.leave(1)
        assert desk.table.hear(2, 0.0)

    def test_a_stall_of_ours_expires_nothing(self):
        desk = Desk()
        desk.say(1, wanted=1)
        desk.say(1, in_hand=True)
        desk.now_s += 100
        desk.table.excuse(desk.now_s)
        desk.wait(1)
        assert desk.table.counts == desk.table.counts.__class__(leased=1)

    def test_who_has_in_hand_what_it_lost_gets_nothing_and_no_deadline_runs_for_it(self):
        desk = Desk()
        (lost,) = desk.say(1, wanted=1).leases
        desk.say(1, in_hand=True)
        desk.wait(11, 1)
        assert desk.say(1, wanted=4, in_hand=lost).leases == ()
        assert numbers(desk.say(1, wanted=1)) == [0]
        desk.wait(11, 1)
        assert desk.table.counts.expired == 1

    def test_any_number_of_empty_epochs_are_passed_over_at_once(self):
        assert [lease.epoch for lease in Desk(lambda epoch: 5 * (epoch >= 40)).say(wanted=1, before=50).leases] == [40]

    def test_who_got_nothing_is_called_when_the_epoch_is_settled(self):
        desk = Desk(1)
        leases = desk.say(1, wanted=1).leases
        assert numbers(desk.say(2, wanted=1)) == []
        desk.say(1, done=leases)
        assert desk.table.calls == [2]
        assert desk.say(2, wanted=1).unsettled == 1


class TestCalls:
    def test_nobody_is_called_before_there_is_news(self):
        desk = Desk(1)
        desk.say(1, wanted=2)
        assert desk.table.calls == []

    def test_who_wants_no_more_is_not_called(self):
        desk = Desk(9)
        for who in (1, 2):
            desk.say(who, wanted=1)
        desk.restart()
        assert not desk.table.hear(1, 0.0)
        desk.table.leave(1)
        assert desk.table.calls == []

    def test_news_are_told_once(self):
        desk = Desk(1)
        lease = desk.say(1, wanted=1).leases
        desk.say(2, wanted=1)
        desk.say(1, failed=lease)
        assert desk.table.calls == [2]
        assert numbers(desk.say(2, wanted=2)) == [0]
        desk.table.calls = []
        desk.say(1)
        assert desk.table.calls == []

    def test_all_are_called_when_a_checkpoint_was_restored(self):
        desk = Desk(9)
        for who in (1, 2):
            desk.say(who, wanted=1)
        desk.table.rewind(DoneSet((EpochDone(0, 0, ()),)), {0: 9}, 1, 5)
        assert desk.table.calls == [1, 2]

    def test_what_did_not_change_is_not_kept_again(self):
        desk = Desk(9)
        desk.say(1, wanted=1)
        kept = len(desk.kept)
        desk.say(1, wanted=1)
        assert len(desk.kept) == kept


class TestReports:
    def test_a_failure_of_who_lost_the_batch_is_late(self):
        desk = Desk(9)
        lost = desk.say(1, wanted=1).leases
        desk.table.leave(1)
        desk.say(2, wanted=1)
        desk.say(1, failed=lost)
        assert (desk.table.counts.late, desk.table.counts.failed) == (1, 0)

    def test_it_is_gone_after_a_longer_silence_than_it_may_have(self):
        desk = Desk(9)
        desk.say(1, wanted=1)
        desk.table.tick(5.0)
        assert list(desk.table.trainers) == [1]
        assert desk.table.epochs[0].leased == 1
        desk.table.tick(5.1)
        assert desk.table.trainers == {}
        assert desk.table.epochs[0].leased == 0

    def test_a_repeated_report_counts_once_and_gets_the_same_answer(self):
        desk = Desk()
        leases = desk.say(1, wanted=1).leases
        once = desk.say(1, done=leases, wanted=1, serial=9)
        assert desk.say(1, done=leases, wanted=1, serial=9) == once
        assert (desk.table.counts.done, desk.table.counts.late) == (1, 0)

    def test_one_that_is_older_than_the_last_is_not_answered(self):
        desk = Desk()
        desk.say(1, wanted=1, serial=9)
        with pytest.raises(AssertionError):
            desk.say(1, wanted=1, serial=8)
        assert desk.table.counts.late == 1

    @pytest.mark.parametrize("lease", [Lease(0, 7, 1), Lease(0, 0, 2), Lease(5, 0, 1), Lease(0, 0, 0)])
    def test_what_was_never_leased_is_counted_and_told(self, lease):
        desk = Desk()
        desk.say(1, wanted=1)
        desk.say(1, done=[lease])
        assert (desk.table.counts.unknown, desk.table.counts.done) == (1, 0)
        assert desk.table.news == [TableNews("unknown", (lease.epoch, lease.number), 1)]

    def test_nobody_reports_what_another_has_now(self):
        desk = Desk()
        (lease,) = desk.say(1, wanted=1).leases
        desk.say(2, done=[lease])
        assert desk.table.counts.unknown == 1
        assert numbers(desk.say(1)) == [0]

    def test_done_after_its_lease_went_to_another_counts_and_the_other_has_it_no_more(self):
        desk = Desk()
        (first,) = desk.say(1, wanted=1).leases
        desk.wait(6)
        (again,) = desk.say(2, wanted=1).leases
        assert (again.number, again.nth) == (0, 2)
        desk.say(1, done=[first])
        assert numbers(desk.say(2)) == []
        desk.say(2, done=[again])
        assert (desk.table.counts.done, desk.table.counts.late) == (1, 1)

    def test_failing_after_its_lease_went_to_another_costs_no_try(self):
        desk = Desk()
        (first,) = desk.say(1, wanted=1).leases
        desk.wait(6)
        desk.say(2, wanted=1)
        desk.say(1, failed=[first])
        assert desk.table.epochs[0].out[0].failures == 0
        assert numbers(desk.say(2)) == [0]

    def test_what_was_given_up_may_still_be_done(self):
        desk = Desk(1)
        for _ in range(3):
            (lease,) = desk.say(wanted=1).leases
            desk.say(failed=[lease])
        desk.say(done=[lease])
        assert (desk.table.counts.done, desk.table.dead) == (1, {})

    def test_what_was_given_up_may_be_done_after_its_epoch_was_closed(self):
        desk = Desk(1)
        for _ in range(3):
            (lease,) = desk.say(wanted=1).leases
            desk.say(failed=[lease])
        desk.say(wanted=1, before=2)
        assert list(desk.table.epochs) == [1]
        desk.say(done=[lease])
        assert (desk.table.counts.done, desk.table.dead, list(desk.table.epochs)) == (1, {}, [1])


class TestCheckpoints:
    def test_the_done_set_is_a_mark_and_what_is_missing_below_it(self):
        desk = Desk()
        leases = desk.say(1, wanted=6).leases
        done = desk.say(1, done=[leases[0], leases[2], leases[4]], snapshot=True).done
        assert done == DoneSet((EpochDone(0, 6, (1, 2, 2)),))

    def test_restoring_leases_again_just_what_was_not_done(self):
        desk = Desk(8)
        leases = desk.say(1, wanted=4).leases
        done = desk.say(1, done=leases[1:2], snapshot=True).done
        desk.say(1, done=[leases[0], *leases[2:]])
        desk.table.rewind(done, {0: 8}, 1, 5)
        assert desk.table.generation == 2
        again = []
        while (answer := desk.say(2, wanted=1)).leases:
            again += numbers(answer)
            desk.say(2, done=answer.leases)
        assert again == [0, 2, 3, 4, 5, 6, 7]

    def test_an_epoch_that_was_done_before_an_earlier_one_is_not_done_again(self):
        desk = Desk(2)
        (straggling,) = desk.say(1, wanted=1).leases
        for _ in range(3):
            desk.say(2, done=desk.say(2, wanted=1, before=2).leases)
        assert [desk.table.epochs[at].is_settled for at in desk.table.epochs] == [False, True]
        done = desk.table.done_set()
        desk.table.rewind(done, {0: 2, 1: 2}, 1, 5)
        desk.restart()
        assert desk.table.done_set() == done
        (again,) = desk.say(2, wanted=1, before=3).leases
        assert (again.epoch, again.number) == (straggling.epoch, straggling.number)
        (following,) = desk.say(2, done=[again], wanted=1, before=3).leases
        assert following.epoch == 2

    def test_reports_of_an_older_generation_are_refused(self):
        desk = Desk()
        leases = desk.say(1, wanted=2).leases
        desk.table.rewind(DoneSet((EpochDone(0, 0, ()),)), {0: 100}, 1, 5)
        answer = desk.say(1, done=leases, generation=1, wanted=1)
        assert (answer.generation, numbers(answer)) == (2, [0])
        assert (desk.table.counts.done, desk.table.counts.late) == (0, 2)

    def test_a_rewinding_that_is_repeated_is_known_also_after_a_kill(self):
        desk = Desk()
        desk.table.rewind(DoneSet((EpochDone(3, 5, (2,)),)), {3: 100}, 7, 4)
        desk.restart()
        assert desk.table.rewound_by == (7, 4)
        assert desk.table.done_set() == DoneSet((EpochDone(3, 5, (2,)),))

    def test_what_was_given_up_after_the_checkpoint_is_tried_again(self):
        desk = Desk(2, LeaseSettings(stream="train", work="train", rules=LeaseRules(floor_s=1.0, tries=1), gone_s=1.0))
        desk.say(failed=desk.say(wanted=1).leases)
        done = desk.table.done_set()
        desk.say(failed=desk.say(wanted=1).leases)
        desk.table.rewind(done, {0: 2}, 1, 1)
        assert list(desk.table.dead) == [(0, 0)]
        assert numbers(desk.say(wanted=1)) == [1]


class TestKilled:
    def test_a_later_number_that_was_given_up_survives_too(self):
        desk = Desk(9, LeaseSettings(stream="train", work="train", rules=LeaseRules(floor_s=1.0, tries=1), gone_s=1.0))
        desk.say(failed=desk.say(wanted=2).leases[1:])
        desk.restart()
        assert list(desk.table.dead) == [(0, 1)]

    def test_who_comes_back_has_as_long_again_for_what_waits(self):
        desk = Desk(9)
        desk.say(1, wanted=2, after_s=1000.0)
        desk.restart()
        desk.wait(90, 1)
        assert numbers(desk.say(1, wanted=2)) == [0, 1]
        assert desk.table.counts.returned == 0

    def test_leases_failures_and_what_was_given_up_survive(self):
        desk = Desk(9)
        desk.say(failed=desk.say(wanted=1).leases)
        for _ in range(2):
            desk.say(failed=desk.say(wanted=1).leases)
        held = desk.say(2, wanted=2).leases
        desk.restart()
        assert list(desk.table.dead) == [(0, 0)]
        assert desk.say(2).leases == held

    def test_who_does_not_come_back_loses_its_leases_without_a_try(self):
        desk = Desk(9)
        desk.say(1, wanted=2)
        desk.restart()
        desk.wait(6)
        assert [one.failures for one in desk.table.epochs[0].out.values()] == [0, 0]
        assert numbers(desk.say(2, wanted=2)) == [0, 1]

    def test_a_fact_that_went_missing_is_noticed(self):
        desk = Desk(9)
        desk.say(1, wanted=2)
        table = LeaseTable(SETTINGS, desk.batches, desk.book)
        for fact in [one for one in desk.kept if getattr(one, "number", None) != 1]:
            if not isinstance(fact, BookAdvanced):
                table.recover(fact)
        assert table.incomplete() == [0]


def test_memory_and_steps_do_not_grow_with_the_epoch():
    desk = Desk(10**8)
    desk.say(2, wanted=1)
    leases = desk.say(1, wanted=4).leases
    for _ in range(500):
        leases = desk.say(1, done=leases[:1], wanted=4).leases
    epoch = desk.table.epochs[0]
    assert (epoch.fresh, len(epoch.out), len(epoch._returned)) == (505, 5, 0)
