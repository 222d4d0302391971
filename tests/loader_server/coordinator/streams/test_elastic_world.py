"""The elastic world of a stream behind the coordinator's door: gathering, changing, beginning together, ending."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loader_server.coordinator.events import EndOrdered, GroupFixed
from loader_server.leases.lease_table import LeaseRules
from shared.wire import messages as m
from tests.support.coordinator import TIMEOUT_S, View, attach, coordinator, progress, replies
from tests.support.elastic_members import Run, join


def gathered(trainers=3, **how):
    """A run whose members train."""
    run = Run(**how)
    for _ in range(trainers):
        run.start()
    run.go_on(6)
    assert len(run.training()) == min(trainers, run.most)
    return run


def world_of(run):
    return run.state.report(run.now_s)["streams"]["train"]["elastic"]


class TestGathering:
    def test_a_world_begins_at_once_when_all_are_there_that_there_may_be(self):
        run = Run()
        for _ in range(3):
            run.start()
        assert [one.placed.rank for one in run.members.values()] == [0, 1, 2]
        assert {one.placed.world for one in run.members.values()} == {3}
        assert run.now_s == 0.0

    def test_enough_trainers_wait_a_while_for_more(self):
        run = Run()
        run.start()
        run.go_on(1)
        run.start()
        run.go_on(3.5)
        assert not run.worlds
        assert "2 trainers are there, more are waited for, up to 3" in str(reasons(run, 1))
        run.go_on(1)
        assert len(run.worlds[1].members) == 2

    def test_too_few_are_told_how_many_are_missing(self):
        run = Run()
        run.start()
        run.go_on(100)
        assert not run.worlds
        (answer,) = replies(run.state, join(1, 1), run.now_s)
        assert answer == m.Gathering(serial=1, reason="1 of at least 2 trainers are there", behind=0, retry_ms=500)

    def test_one_that_is_silent_is_not_counted(self):
        run = Run()
        run.start()
        lost = run.start()
        run.kill(lost)
        run.tick(5 * TIMEOUT_S)
        run.go_on(6)
        assert not run.worlds

    def test_a_stream_that_first_starts_elastic_has_groups_for_the_largest_world(self):
        run = gathered(2)
        assert run.facts[GroupFixed].group == 3
        assert run.state.report(0.0)["streams"]["train"]["group"] == 3

    def test_replicas_have_ranks_of_their_own(self):
        state = coordinator()
        replies(state, join(1, least=2, most=2, replicas=2))
        (placed,) = replies(state, join(2, least=2, most=2, replicas=3))
        assert (placed.rank, placed.world) == (2, 5)
        (again,) = replies(state, join(1, least=2, most=2, replicas=2))
        assert (again.rank, again.world, again.version) == (0, 5, placed.version)

    def test_no_more_ranks_than_the_group_has(self):
        run = Run(group=2)
        for _ in range(3):
            run.start()
        run.go_on(6)
        assert run.training() == [1, 2]
        assert reasons(run, 3) == ["the world is full (a group of 2 ranks): this one is a spare"]


def reasons(run, number):
    return [one.reason for one in replies(run.state, join(number, run.members[number].serial), run.now_s)]


class TestRefusals:
    @pytest.mark.parametrize(
        ("asked", "view", "group", "code", "words"),
        [
            (join(1, job="words"), View(), 0, "job", "a trainer of job digits"),
            (join(1, stream="tain"), View(), 0, "stream", 'one of the streams "train", "dev"'),
            (join(1, stream="dev"), View(), 0, "elastic", "trained on in lockstep"),
            (join(1), View(leases=LeaseRules(floor_s=1.0, tries=1)), 0, "elastic", "trained on in lockstep"),
            (join(1, least=3, most=4), View(), 2, "elastic", "at most group = 2 ranks"),
        ],
    )
    def test_who_cannot_join(self, asked, view, group, code, words):
        (answer,) = replies(coordinator(view, group=group), asked)
        assert (type(answer), answer.code, answer.serial) == (m.NotAttached, code, asked.serial)
        assert words in answer.expected
        assert answer.remedy

    def test_another_range_than_the_others_is_refused(self):
        run = gathered()
        (answer,) = replies(run.state, join(9, most=5), run.now_s)
        assert (answer.code, answer.expected) == ("elastic", "elastic=(2, 3), as the others say")
        assert answer.got == "elastic=(2, 5) from host:9"

    def test_a_fixed_rank_is_kept_out_while_an_elastic_world_lives_and_the_other_way_round(self):
        run = gathered()
        (answer,) = replies(run.state, attach(0, 3, incarnation=5), run.now_s)
        assert (answer.code, answer.remedy) == ("elastic", "Pass elastic to connect, or end the others first.")
        state = coordinator()
        assert isinstance(replies(state, attach(0, 1))[0], m.Attached)
        (answer,) = replies(state, join(1))
        assert answer.reason == "trainers with fixed ranks are attached: host:0"

    def test_a_late_join_of_an_earlier_world_counts_for_nothing(self):
        run = gathered()
        first = run.members[1]
        run.kill(run.start())
        run.leave(1)
        run.go_on(4)
        version = max(run.worlds)
        assert replies(run.state, join(1, first.serial - 1), run.now_s) == []
        run.go_on(1)
        assert max(run.worlds) == version


class TestChanging:
    def test_when_a_member_is_gone_the_others_go_on_in_their_order(self):
        run = gathered()
        run.kill(1)
        run.go_on(4.5)
        assert run.training() == [2, 3], "one that is silent is not gone yet"
        assert max(run.worlds) == 1
        run.go_on(2)
        assert run.training() == [2, 3]
        assert (max(run.worlds), world_of(run)["reason"]) == (2, "host:1 is gone")

    def test_the_chief_stays_the_chief(self):
        run = gathered(2)
        run.leave(1)
        run.go_on(4)
        assert run.training() == [1, 2]
        run.start()
        run.go_on(6)
        assert run.training() == [1, 2, 3]

    def test_a_newcomer_is_let_in_when_it_has_waited_for_others_of_its_kind(self):
        run = gathered(2)
        run.start()
        run.go_on(1.5)
        assert (max(run.worlds), reasons(run, 3)) == (1, ["others are training: this one is let in soon"])
        run.go_on(2)
        assert run.training() == [1, 2, 3]
        assert world_of(run)["reason"] == "host:3 joined"

    def test_one_too_many_is_a_spare_that_takes_a_lost_ones_place(self):
        run = gathered()
        spare = run.start()
        run.go_on(30)
        assert (max(run.worlds), reasons(run, spare)) == (
            1, ["the world is full (at most 3 trainers): this one is a spare"],
        )  # fmt: skip
        run.kill(2)
        run.go_on(7)
        assert run.training() == [1, 3, spare]

    def test_below_the_least_they_wait_for_another(self):
        run = gathered(2)
        run.kill(1)
        run.go_on(60)
        assert run.training() == []
        assert world_of(run)["stage"] == "changing"
        assert reasons(run, 2) == ["1 of at least 2 trainers are there"]
        new = run.start()
        run.go_on(3)
        assert run.training() == [2, new]

    def test_nobody_is_placed_before_all_have_left_the_last_world(self):
        """The chief commits as it leaves, and the others have to restore that."""
        run = gathered()
        run.kill(3)
        run.go_on(6, but=frozenset((1,)))
        assert 1 in run.members
        run.beat(1)
        assert run.members[1].is_over is False, "it was told so as it said where it is"
        run = gathered()
        run.leave(3)
        run.beat(2)
        run.train(1)
        assert max(run.worlds) == 1
        assert reasons(run, 2) == ["trainers of the last world have not joined yet: host:1"]
        run.beat(1)
        run.go_on(3)
        assert {run.members[number].restored for number in (1, 2, 3)} == {(0, 3)}

    def test_one_that_never_leaves_is_left_behind_after_a_while_and_let_in_again(self):
        run = gathered()
        run.leave(3)
        for _ in range(4 * 61):  # it trains on, and tells how far it is
            run.beat(2)
            run.beat(3)
            stuck = run.members[1]
            run.say(progress(0, 0, 3, incarnation=stuck.incarnation))
            run.tick()
        assert [one[2] for one in run.worlds[2].members] == ["host:2", "host:3"]
        run.go_on(6)
        assert sorted(run.training()) == [1, 2, 3]

    def test_a_member_that_detaches_ends_the_world(self):
        run = gathered()
        member = run.members.pop(2)
        run.say(m.Detach(stream="train", rank=1, incarnation=member.incarnation))
        run.go_on(2)
        assert run.training() == [1, 3]
        assert world_of(run)["reason"] == "host:2 left"

    def test_what_was_told_of_results_in_the_last_world_is_forgotten(self):
        """Else a part of somebody who is dead would stand for one who has not come so far yet."""
        run = gathered(2, most=2)
        told = {"stream": "train", "epoch": 0, "step": 8, "rows": 1, "values": (), "ended": "", "aside": False}
        replies(run.state, m.Results(incarnation=run.members[2].incarnation, serial=1, **told), run.now_s)
        run.leave(2)
        run.go_on(4)
        (answer,) = replies(run.state, m.Results(incarnation=run.members[1].incarnation, serial=1, **told), run.now_s)
        assert not answer.whole


class TestBeginning:
    def test_nobody_begins_before_all_have_said_where(self):
        run = Run()
        for _ in range(3):
            run.start()
        run.beat(1)
        run.beat(2)
        run.beat(1)
        assert run.members[1].begun is None
        run.beat(3)
        run.beat(1)
        assert (run.members[3].begun, run.members[1].begun, run.members[2].begun) == ((0, 0), (0, 0), None)

    def test_a_checkpoint_that_came_between_costs_one_world_more(self):
        run = Run()
        for _ in range(3):
            run.start()
        run.beat(1)
        run.chain.append(((0, 6), 0))  # by a chief that was held up, and not dead
        run.go_on(4)
        assert run.training() == [1, 2, 3]
        assert {one.begun for one in run.members.values()} == {(0, 6)}
        assert max(run.worlds) == 2

    def test_folders_that_are_not_shared_are_refused_in_words(self):
        run = Run()
        for _ in range(3):
            run.start()
        for _ in range(12):
            for number, member in run.members.items():
                member.restored = (0, number) if member.placed else None
                run.beat(number)
            run.tick()
        assert {one.code for one in run.refused} == {"cursor"}
        assert "the newest checkpoint of one folder that all of them see" in run.refused[0].remedy
        assert run.refused[0].expected == "epoch 0, batch 1, where rank 0 starts"

    def test_another_place_than_the_one_that_was_given_is_refused(self):
        run = Run()
        for _ in range(3):
            run.start()
        mine = run.members[2]
        good = attach(1, 3, incarnation=mine.incarnation, world_version=1)
        wrong = [
            replace(good, rank=0), replace(good, world=2), replace(good, world_version=0),
            replace(good, incarnation=7), replace(good, replicas=2),
        ]  # fmt: skip
        for one in wrong:
            (answer,) = replies(run.state, one)
            assert answer.code == "changed", one
        assert isinstance(replies(run.state, good)[0], m.Attached)

    def test_a_version_that_nobody_knows_is_refused_too(self):
        (answer,) = replies(coordinator(), attach(world_version=3))
        assert (answer.code, answer.remedy) == ("changed", "Join the next world.")


class TestRestart:
    def test_a_restarted_coordinator_takes_its_world_up(self):
        run = gathered()
        run.restart_coordinator()
        run.go_on(20)
        assert (run.training(), max(run.worlds)) == ([1, 2, 3], 1)

    def test_who_died_meanwhile_is_missed_after_a_while(self):
        run = gathered()
        run.restart_coordinator()
        run.kill(1)
        run.go_on(8)
        assert (run.training(), max(run.worlds)) == ([2, 3], 2)


class TestEnd:
    def told(self, run, number, serial=1):
        member = run.members[number]
        told = m.Results(
            stream="train", incarnation=member.incarnation, serial=serial, epoch=1, step=9, rows=0, values=(),
            ended="1 epoch is reached", aside=False,
        )  # fmt: skip
        return run.say(told)

    def test_when_all_have_finished_they_may_leave_one_by_one_and_spares_go_home(self):
        run = gathered()
        spare = run.start()
        run.go_on(1)
        run.refused.clear()
        for number in (1, 2, 3):
            answers = self.told(run, number)
        assert all(one.whole for one in answers if isinstance(one, m.Aggregate))
        assert world_of(run)["stage"] == "ended"
        leaver = run.members.pop(1)
        run.say(m.Detach(stream="train", rank=0, incarnation=leaver.incarnation))
        run.beat(spare)
        assert {one.code for one in run.refused} == {"ended"}
        run.beat(2)
        assert not run.members[2].is_over

    @pytest.mark.parametrize("lost", [1, 2])
    def test_who_waits_for_the_end_hears_of_one_that_is_lost_before_it(self, lost):
        run = gathered(2, least=1, most=2)
        waiting = 3 - lost
        (answer,) = self.told(run, waiting)
        assert not answer.whole
        run.kill(lost)
        run.go_on(8)
        assert (run.training(), max(run.worlds)) == ([waiting], 2)
        (answer,) = self.told(run, waiting, serial=2)
        assert answer.whole
        assert world_of(run)["stage"] == "ended"

    def test_one_that_asks_again_after_a_restart_is_answered(self):
        run = gathered(2, most=2)
        for number in (1, 2):
            self.told(run, number)
        run.restart_coordinator()
        run.kill(1)
        run.go_on(8)
        assert not run.members[2].is_over
        (answer,) = self.told(run, 2)
        assert answer.whole

    @pytest.mark.parametrize("is_restarted", [False, True])
    def test_a_spare_that_missed_the_end_of_the_run_goes_home_and_a_newcomer_waits_for_another_run(self, is_restarted):
        run = gathered(2, most=2)
        (waits,) = replies(run.state, join(9, most=2), run.now_s)
        assert waits.behind == 1
        for number in (1, 2):
            self.told(run, number)
        if is_restarted:
            run.restart_coordinator()
        for _ in range(2):
            (answer,) = replies(run.state, join(9, most=2, behind=1), run.now_s)
            assert (type(answer), answer.code) == (m.NotAttached, "ended")
        for serial, behind in ((1, 0), (2, 2)):
            (answer,) = replies(run.state, join(8, serial, most=2, behind=behind), run.now_s)
            assert (type(answer), answer.behind) == (m.Gathering, 0)

    def test_who_joins_a_job_that_is_ended_by_order_goes_home(self):
        run = gathered()
        run.state.handle(EndOrdered(drains=True), run.now_s)
        (answer,) = replies(run.state, join(9), run.now_s)
        assert (answer.code, answer.remedy) == ("ended", "Nothing is left to do.")

    def test_another_run_begins_with_another_world(self):
        run = gathered(2)
        for number in (1, 2):
            self.told(run, number)
        run.members.clear()
        for _ in range(3):
            run.start()
        run.go_on(6)
        assert (run.training(), max(run.worlds)) == ([3, 4, 5], 2)
