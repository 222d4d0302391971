"""The coordinator's decisions on trainers that attach: what it refuses and how it says so, what it keeps."""

from __future__ import annotations

import pytest

from loader_server.coordinator.events import (
    Advanced,
    GroupFixed,
    Keep,
    RankTaken,
    Received,
    Send,
    Ticked,
)
from shared.wire import messages as m
from shared.wire.message_parts import Cursor
from tests.support.coordinator import (
    TIMEOUT_S,
    View,
    address,
    attach,
    beat,
    coordinator,
    kept,
    progress,
    refused,
    register,
    replies,
)


class TestAttaching:
    def test_a_first_trainer_is_told_all_it_has_to_know(self):
        state = coordinator()
        replies(state, register(), peer=b"worker")
        (answer,) = replies(state, attach(0, 4))
        assert answer == m.Attached(
            serial=1, job="digits", stream="train", evaluation=False, work=None, book=None,
            cursor=Cursor(0, 0, 4, "plan-1"), next_group=4, tenure=1, batches=100, most_batches=402, fields=View.fields,
            shapes=View.shapes, producers=0, base_fields=(),
            heartbeat_timeout_ms=2000, max_bad=0.25, max_bad_samples=None, members=2, workers=(address(),),
        )  # fmt: skip

    def test_the_job_may_be_left_out(self):
        assert isinstance(replies(coordinator(), attach(job=""))[0], m.Attached)

    def test_another_job_is_refused(self):
        code, expected, got, remedy = refused(coordinator(), attach(job="words"))
        assert (code, expected, got) == ("job", "a trainer of job digits", "job words")
        assert "leave job= out" in remedy

    def test_an_unknown_stream_is_refused_naming_the_known(self):
        code, expected, got, remedy = refused(coordinator(), attach(stream="tain"))
        assert (code, expected, got) == ("stream", 'one of the streams "train", "dev"', '"tain"')
        assert "stream=" in remedy

    def test_ranks_beyond_the_world_are_refused(self):
        code, expected, got, remedy = refused(coordinator(), attach(3, 4, replicas=2))
        assert (code, expected, got) == ("rank", "rank + replicas <= world", "3 + 2 > 4")
        assert "rank=" in remedy

    def test_a_cursor_of_another_plan_is_refused(self):
        code, expected, got, remedy = refused(coordinator(), attach(at=(0, 5), digest="plan-0"))
        assert (code, expected, got) == ("plan", "a cursor of plan plan-1", "one of plan plan-0")
        assert "seed" in remedy

    @pytest.mark.fault(20)
    def test_a_world_larger_than_the_group_is_refused_with_the_setting_named(self):
        state = coordinator()
        replies(state, attach(0, 2))
        code, expected, got, remedy = refused(state, attach(0, 8, incarnation=5))
        assert (code, expected, got) == ("world", "a world of at most group = 2 ranks", "a world of 8")
        assert "group = 8" in remedy
        assert "next epoch" in remedy

    def test_where_rows_carry_state_the_world_has_to_be_the_group(self):
        state = coordinator(View(carries=True), group=4)
        code, expected, got, remedy = refused(state, attach(0, 2))
        assert (code, got) == ("world", "a world of 2")
        assert expected == "a world of group = 4 ranks, as each carries the state of its own rows (carry)"
        assert remedy == (
            "Start 4 ranks; or write group = 2 in [job] and restart the loaders: it takes effect with the next epoch."
        )
        assert isinstance(replies(state, attach(0, 4, incarnation=6))[0], m.Attached)

    @pytest.mark.fault(50)
    @pytest.mark.parametrize("world", [65, 4096])
    def test_a_world_that_leaves_epochs_without_batches_is_refused_as_the_plan_says(self, world):
        said_of = refused(coordinator(), attach(0, world))
        assert said_of == ("world", "smaller groups", f"{world} (epoch_parts)", "Write 64.")
        assert isinstance(replies(coordinator(), attach(0, 64))[0], m.Attached)

    @pytest.mark.fault(50)
    def test_so_is_the_group_of_the_cursor_and_that_of_the_next_epoch(self):
        for setting, own in ((70, 8), (8, 70)):
            said_of = refused(coordinator(group=setting), attach(0, 8, at=(0, 40), group=own))
            assert said_of == ("world", "smaller groups", "70 (epoch_parts)", "Write 64.")
        state = coordinator()
        state.recover(GroupFixed("train", 70))
        assert refused(state, attach(0, 8, at=(0, 40), group=8))[2] == "70 (epoch_parts)"

    def test_a_batch_number_past_the_epochs_end_is_refused(self):
        code, expected, got, _ = refused(coordinator(), attach(at=(1, 102)))
        assert (code, expected, got) == ("cursor", "a batch number of at most 101 in epoch 1", "102")

    def test_the_end_of_an_epoch_is_a_cursor(self):
        (answer,) = replies(coordinator(), attach(at=(1, 101)))
        assert answer.cursor == Cursor(1, 101, 1, "plan-1")


class TestRanks:
    @pytest.mark.fault(19)
    def test_a_rank_that_stands_elsewhere_waits_and_is_then_refused_naming_both(self):
        state = coordinator()
        replies(state, attach(0, 2, at=(0, 40)))
        (answer,) = replies(state, attach(1, 2, at=(0, 50)), now_s=1.0)
        assert isinstance(answer, m.Wait)
        assert "batch 40" in answer.reason
        replies(state, progress(0, 0, 40), now_s=4.9)
        assert isinstance(replies(state, attach(1, 2, at=(0, 50)), now_s=4.9)[0], m.Wait)
        code, expected, got, remedy = refused(state, attach(1, 2, at=(0, 50)), now_s=5.1)
        assert code == "cursor"
        assert expected == "epoch 0, batch 40, where rank 0 (host:0) started"
        assert got == "epoch 0, batch 50 from rank 1 (host:1)"
        assert "same checkpoint" in remedy

    def test_it_is_let_in_once_the_other_has_moved_to_the_same_place(self):
        state = coordinator()
        replies(state, attach(0, 2, at=(0, 40)))
        assert isinstance(replies(state, attach(1, 2, at=(0, 50)))[0], m.Wait)
        replies(state, attach(0, 2, at=(0, 50), serial=2), now_s=1.0)
        assert isinstance(replies(state, attach(1, 2, at=(0, 50)), now_s=2.0)[0], m.Attached)

    def test_a_rank_that_only_came_has_not_said_where_it_stands(self):
        state = coordinator()
        replies(state, attach(0, 2))
        assert isinstance(replies(state, attach(1, 2, at=(3, 50)))[0], m.Attached)

    def test_ranks_of_two_worlds_wait_and_are_then_refused(self):
        state = coordinator(group=8)
        replies(state, attach(0, 2))
        assert isinstance(replies(state, attach(2, 4))[0], m.Wait)
        replies(state, progress(0, 0, 0), now_s=4.0)
        assert isinstance(replies(state, attach(2, 4), now_s=4.0)[0], m.Wait)
        code, expected, got, remedy = refused(state, attach(2, 4), now_s=4.5)
        assert (code, expected) == ("world", "a world of 2, as rank 0 (host:0) says")
        assert got == "a world of 4 from rank 2 (host:2)"
        assert "world=" in remedy

    @pytest.mark.fault(20)
    def test_silent_ranks_of_an_old_world_do_not_stand_in_the_way(self):
        state = coordinator()
        for rank in range(4):
            replies(state, attach(rank, 4, at=(0, 40)))
        assert isinstance(replies(state, attach(0, 2, at=(0, 44), group=4, incarnation=1))[0], m.Wait)
        assert isinstance(replies(state, attach(0, 2, at=(0, 44), group=4, incarnation=1), now_s=2.1)[0], m.Attached)

    @pytest.mark.fault(19)
    def test_a_newer_trainer_takes_a_rank_over_and_the_older_is_told(self):
        state = coordinator()
        replies(state, attach(), peer=b"old")
        out = state.handle(Received(b"new", attach(incarnation=2, name="host:new")), 1.0)
        told = [one.message for one in out if isinstance(one, Send) and one.peer == b"old"]
        assert told == [
            m.Refused(
                code="superseded",
                expected="to be the only trainer of rank 0",
                got="a newer one, host:new",
                remedy="Stop one of them.",
            )
        ]
        assert (state.counts.superseded, state.counts.stale) == (1, 0)

    @pytest.mark.fault(19)
    @pytest.mark.fault(23)
    def test_the_older_one_may_not_come_back(self):
        state = coordinator()
        replies(state, attach(), peer=b"old")
        replies(state, attach(incarnation=2, name="host:new"), peer=b"new")
        assert refused(state, progress(0, 0, 5), peer=b"old")[0] == "superseded"
        code, _, got, _ = refused(state, attach(serial=2), peer=b"old")
        assert (code, got) == ("superseded", "a newer one, host:new")
        assert state.counts.stale == 2
        assert isinstance(replies(state, progress(0, 0, 5, incarnation=2), peer=b"new")[0], m.Members)

    def test_it_is_recognised_by_any_of_its_ranks(self):
        state = coordinator()
        replies(state, attach(1, 2), peer=b"old")
        replies(state, attach(0, 2, replicas=2, incarnation=2), peer=b"new")
        assert refused(state, progress(1, 0, 5), peer=b"old")[0] == "superseded"
        assert refused(state, attach(1, 2), peer=b"old")[0] == "superseded"

    def test_a_trainer_that_moves_to_another_rank_leaves_no_ghost(self):
        state = coordinator(group=4)
        replies(state, attach(0, 2, incarnation=7))
        taken = kept(state, attach(1, 2, incarnation=7, serial=2))
        assert taken == [RankTaken("train", 0, (), 1), RankTaken("train", 1, (7,), 2)]
        assert kept(state, progress(1, 0, 9, incarnation=7)) == [Advanced("train", 0, 9)]
        replies(state, attach(0, 2, incarnation=8))
        assert kept(state, progress(1, 0, 10, incarnation=7)) == [Advanced("train", 0, 0)], "8 took nothing from it"

    def test_a_trainer_that_nobody_knows_is_asked_to_attach(self):
        code, _, _, remedy = refused(coordinator(), progress(0, 0, 5))
        assert (code, remedy) == ("unknown", "Attach again.")

    def test_who_detaches_is_gone(self):
        state = coordinator()
        replies(state, attach())
        state.handle(Received(b"me", m.Detach(stream="train", rank=0, incarnation=1000)), 0.0)
        assert refused(state, progress(0, 0, 5))[0] == "unknown"

    def test_who_is_silent_for_long_is_gone(self):
        state = coordinator()
        replies(state, attach())
        state.handle(Ticked(), 10.1)
        assert refused(state, progress(0, 0, 5))[0] == "unknown"

    @pytest.mark.fault(16)
    def test_nobody_expires_for_a_stall_of_the_coordinators_own_if_what_came_is_read_first(self):
        state = coordinator()
        replies(state, attach())
        replies(state, register())
        replies(state, progress(0, 0, 5), now_s=30.0)
        replies(state, beat(), now_s=30.0)
        state.handle(Ticked(), 30.0)
        (members,) = replies(state, progress(0, 0, 6), now_s=30.1)
        assert [one.worker for one in members.workers] == ["w0"]
        assert state.counts.workers_gone == 0


class TestEvaluation:
    def test_anyone_may_read_at_once_wherever_it_stands(self):
        state = coordinator()
        for one, at in enumerate([None, (0, 0), (0, 50), (0, 7)]):
            asked = attach(0, 1, at=at, stream="dev", incarnation=one)
            assert isinstance(replies(state, asked)[0], m.Attached)
            assert isinstance(replies(state, progress(0, 0, 1, stream="dev", incarnation=one))[0], m.Members)
        assert state.counts.superseded == 0

    def test_a_reader_alone_does_not_bind_a_larger_world(self):
        state = coordinator()
        replies(state, attach(0, 1, stream="dev", incarnation=1))
        (answer,) = replies(state, attach(3, 4, stream="dev", incarnation=2))
        assert (answer.cursor.group, answer.next_group) == (4, 4)

    def test_nothing_of_it_is_kept(self):
        state = coordinator()
        assert kept(state, attach(stream="dev")) == []
        assert kept(state, progress(0, 0, 5, stream="dev")) == []


class TestGroup:
    def test_the_first_world_fixes_it_and_it_is_kept(self):
        state = coordinator()
        assert kept(state, attach(0, 4)) == [GroupFixed("train", 4), RankTaken("train", 0, (1000,), 1)]
        (answer,) = replies(state, attach(0, 2, incarnation=2))
        assert answer.cursor.group == 4

    def test_the_fact_comes_before_the_promise(self):
        out = coordinator().handle(Received(b"me", attach(0, 4)), 0.0)
        assert [type(one) for one in out] == [Keep, Keep, Send]

    @pytest.mark.fault(20)
    def test_a_group_from_the_job_file_takes_effect_where_an_epoch_starts(self):
        state = coordinator(group=8)
        state.recover(GroupFixed("train", 4))
        (middle,) = replies(state, attach(0, 2, at=(1, 40), group=4))
        assert (middle.cursor.group, middle.next_group, middle.most_batches) == (4, 8, 802)
        assert refused(state, attach(0, 6, at=(1, 40), group=4, incarnation=2))[0] == "world"
        (start,) = replies(state, attach(0, 6, at=(2, 0), group=4, incarnation=3), now_s=30.0)
        assert (start.cursor.group, start.next_group) == (8, 8)


class TestRepeats:
    @pytest.mark.fault(22)
    @pytest.mark.fault(24)
    @pytest.mark.fault(37)
    def test_an_attach_that_comes_again_is_answered_again_and_changes_nothing(self):
        state = coordinator()
        replies(state, register(), peer=b"worker")
        first = replies(state, attach(0, 2, at=(0, 40)))
        replies(state, progress(0, 0, 47, read_number=52))
        out = state.handle(Received(b"anew", attach(0, 2, at=(0, 40))), 1.0)
        assert out == [Send(b"anew", first[0])]
        assert state.counts.attaches == 1
        train = state.report(1.0)["streams"]["train"]
        assert (train["number"], train["read_number"], train["attached"]) == (47, 52, 1)

    def test_a_reader_of_an_evaluation_stream_keeps_its_own_group(self):
        state = coordinator()
        (first,) = replies(state, attach(stream="dev", incarnation=1))
        replies(state, attach(3, 4, stream="dev", incarnation=2))
        assert replies(state, attach(stream="dev", incarnation=1)) == [first]

    def test_its_peer_is_where_the_trainer_is_now(self):
        state = coordinator()
        replies(state, attach(), peer=b"before")
        replies(state, attach(), peer=b"now")
        told = state.handle(Received(b"worker", register()), 0.0)
        assert [one.peer for one in told if isinstance(one.message, m.Members)] == [b"now"]

    @pytest.mark.fault(22)
    def test_it_counts_as_a_sign_of_life(self):
        state = coordinator()
        replies(state, attach())
        replies(state, attach(), now_s=9.0)
        state.handle(Ticked(), 18.0)
        assert replies(state, progress(0, 0, 5, members=1), now_s=18.0) == [m.Noted()]

    @pytest.mark.fault(23)
    @pytest.mark.fault(37)
    def test_an_attach_from_before_the_last_is_dropped_and_counted(self):
        state = coordinator()
        (answer,) = replies(state, attach(at=(2, 37), serial=5))
        assert (answer.serial, answer.cursor.epoch, answer.cursor.number) == (5, 2, 37)
        assert state.handle(Received(b"me", attach(serial=4)), 0.0) == []
        assert (state.counts.attaches, state.counts.reattaches, state.counts.stale) == (0, 1, 1)
        assert state.report(0.0)["streams"]["train"]["trainers"][0]["number"] == 37

    @pytest.mark.fault(37)
    def test_every_answer_to_an_attach_names_its_request(self):
        state = coordinator(View(counting=True), group=2)
        assert replies(state, attach(serial=7))[0].serial == 7
        state = coordinator(group=2)
        replies(state, attach(0, 2, at=(0, 40)))
        for asked in (
            attach(1, 2, at=(0, 50), serial=8),
            attach(job="words", serial=8),
            attach(stream="tain", serial=8),
            attach(3, 4, replicas=2, serial=8),
            attach(digest="plan-0", at=(0, 1), serial=8),
            attach(0, 3, serial=8),
            attach(at=(0, 999), serial=8),
            attach(1, 2, at=(0, 40), serial=8),
        ):
            (answer,) = replies(state, asked)
            assert answer.serial == 8


class TestCounting:
    def test_who_comes_meanwhile_waits_a_moment(self):
        view = View(counting=True)
        state = coordinator(view)
        (answer,) = replies(state, attach(at=(3, 7)))
        assert answer == m.Wait(serial=1, reason="counting the batches of epoch 3", retry_ms=250)
        assert state.report(0.0)["streams"]["train"]["attached"] == 0
        view.counting = False
        assert isinstance(replies(state, attach(at=(3, 7)), now_s=0.25)[0], m.Attached)

    def test_what_is_wrong_without_a_count_is_said_at_once(self):
        state = coordinator(View(counting=True), group=2)
        assert refused(state, attach(at=(0, 1), digest="plan-0"))[0] == "plan"
        assert refused(state, attach(0, 3))[0] == "world"

    def test_another_plans_epochs_are_not_counted(self):
        class Counted(View):
            def batches(self, epoch: int, group: int) -> int | None:
                raise AssertionError("nobody is to count these")

        assert refused(coordinator(Counted()), attach(at=(0, 1), digest="plan-0"))[0] == "plan"

    def test_the_report_does_not_wait_either(self):
        state = coordinator(View(counting=True), group=2)
        assert state.report(0.0)["streams"]["train"]["batches"] is None


@pytest.mark.fault(61)
class TestLoadTests:
    def test_ranks_of_a_stream_that_somebody_trains_on_are_not_taken(self):
        state = coordinator()
        replies(state, attach(0, 2))
        for rank in (0, 1):
            code, expected, got, remedy = refused(state, attach(rank, 2, incarnation=9, work="measure"))
            assert (code, got) == ("training", "one that is trained on by rank 0 (host:0)")
            assert "nobody trains on" in expected
            assert "another stream" in remedy
        assert state.counts.superseded == 0
        assert isinstance(replies(state, progress(0, 0, 5))[0], m.Members)

    def test_one_that_nobody_trains_on_is_measured_by_a_world_and_by_the_next(self):
        state = coordinator()
        for first in (10, 20):
            for rank in (0, 1):
                asked = attach(rank, 2, incarnation=first + rank, work="measure")
                assert isinstance(replies(state, asked)[0], m.Attached)

    def test_whoever_trains_takes_the_rank_of_a_load_test(self):
        state = coordinator()
        replies(state, attach(incarnation=9, work="measure"))
        assert isinstance(replies(state, attach())[0], m.Attached)
        assert refused(state, progress(0, 0, 5, incarnation=9))[0] == "superseded"

    def test_trainers_may_come_back_to_a_coordinator_that_was_restarted(self):
        before, state = coordinator(), coordinator()
        for fact in kept(before, attach()):
            state.recover(fact)
        asked = attach(incarnation=9, work="measure")
        (wait,) = replies(state, asked, 100.0)
        assert (type(wait), wait.reason) == (m.Wait, "trainers from before the coordinator's restart may come back")
        assert isinstance(replies(state, asked, 100.0 + 5 * TIMEOUT_S - 0.1)[0], m.Wait)
        assert isinstance(replies(state, asked, 100.0 + 5 * TIMEOUT_S)[0], m.Attached)

    def test_readers_of_a_stream_for_evaluation_are_in_nobodys_way(self):
        state = coordinator()
        replies(state, attach(stream="dev"))
        assert isinstance(replies(state, attach(stream="dev", incarnation=9, work="measure"))[0], m.Attached)
