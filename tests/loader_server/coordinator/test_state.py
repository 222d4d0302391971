"""The coordinator's decisions: what it refuses and how it says so, what it keeps, what it forgets."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader_server.coordinator.events import (
    Advanced,
    CulpritFound,
    Forgot,
    GroupFixed,
    Keep,
    RankTaken,
    Received,
    Send,
    Ticked,
    Warn,
)
from loader_server.coordinator.state import CoordinatorState
from shared.wire import messages as m
from shared.wire.codec import MAX_FRAME, decode, encode
from shared.wire.parts import Cursor
from tests.support.coordinator import (
    SETTINGS,
    View,
    address,
    attach,
    beat,
    coordinator,
    culprit,
    forgive,
    keys,
    progress,
    register,
)


def said(state: CoordinatorState, message: m.Message, now_s: float = 0.0, peer: bytes = b"") -> list[m.Message]:
    """What the peer is answered; every message can cross the wire."""
    peer = peer or b"%d" % getattr(message, "incarnation", 0)
    orders = [one for one in state.handle(Received(peer, message), now_s) if isinstance(one, Send)]
    for one in orders:
        assert decode(encode(one.message)) == one.message
    return [one.message for one in orders if one.peer == peer]


def kept(state: CoordinatorState, message: m.Message, now_s: float = 0.0) -> list[object]:
    return [one.fact for one in state.handle(Received(b"me", message), now_s) if isinstance(one, Keep)]


def refused(state: CoordinatorState, message: m.Message, now_s: float = 0.0, peer: bytes = b"") -> tuple[str, ...]:
    (answer,) = said(state, message, now_s, peer)
    assert isinstance(answer, m.NotAttached if isinstance(message, m.Attach) else m.Refused), answer
    return answer.code, answer.expected, answer.got, answer.remedy


class TestAttaching:
    def test_a_first_trainer_is_told_all_it_has_to_know(self):
        state = coordinator()
        said(state, register(), peer=b"worker")
        (answer,) = said(state, attach(0, 4))
        assert answer == m.Attached(
            serial=1, job="digits", stream="train", evaluation=False, cursor=Cursor(0, 0, 4, "plan-1"), next_group=4,
            batches=100, most_batches=402, fields=View.fields, shapes=View.shapes, heartbeat_timeout_ms=2000,
            max_bad=0.25, members=2, workers=(address(),),
        )  # fmt: skip

    def test_the_job_may_be_left_out(self):
        assert isinstance(said(coordinator(), attach(job=""))[0], m.Attached)

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
        said(state, attach(0, 2))
        code, expected, got, remedy = refused(state, attach(0, 8, incarnation=5))
        assert (code, expected, got) == ("world", "a world of at most group = 2 ranks", "a world of 8")
        assert "group = 8" in remedy
        assert "next epoch" in remedy

    @pytest.mark.fault(50)
    @pytest.mark.parametrize("world", [65, 4096])
    def test_a_world_that_leaves_epochs_without_batches_is_refused_as_the_plan_says(self, world):
        said_of = refused(coordinator(), attach(0, world))
        assert said_of == ("world", "smaller groups", f"{world} (epoch_parts)", "Write 64.")
        assert isinstance(said(coordinator(), attach(0, 64))[0], m.Attached)

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
        (answer,) = said(coordinator(), attach(at=(1, 101)))
        assert answer.cursor == Cursor(1, 101, 1, "plan-1")


class TestRanks:
    @pytest.mark.fault(19)
    def test_a_rank_that_stands_elsewhere_waits_and_is_then_refused_naming_both(self):
        state = coordinator()
        said(state, attach(0, 2, at=(0, 40)))
        (answer,) = said(state, attach(1, 2, at=(0, 50)), now_s=1.0)
        assert isinstance(answer, m.Wait)
        assert "batch 40" in answer.reason
        said(state, progress(0, 0, 40), now_s=4.9)
        assert isinstance(said(state, attach(1, 2, at=(0, 50)), now_s=4.9)[0], m.Wait)
        code, expected, got, remedy = refused(state, attach(1, 2, at=(0, 50)), now_s=5.1)
        assert code == "cursor"
        assert expected == "epoch 0, batch 40, where rank 0 (host:0) started"
        assert got == "epoch 0, batch 50 from rank 1 (host:1)"
        assert "same checkpoint" in remedy

    def test_it_is_let_in_once_the_other_has_moved_to_the_same_place(self):
        state = coordinator()
        said(state, attach(0, 2, at=(0, 40)))
        assert isinstance(said(state, attach(1, 2, at=(0, 50)))[0], m.Wait)
        said(state, attach(0, 2, at=(0, 50), serial=2), now_s=1.0)
        assert isinstance(said(state, attach(1, 2, at=(0, 50)), now_s=2.0)[0], m.Attached)

    def test_a_rank_that_only_came_has_not_said_where_it_stands(self):
        state = coordinator()
        said(state, attach(0, 2))
        assert isinstance(said(state, attach(1, 2, at=(3, 50)))[0], m.Attached)

    def test_ranks_of_two_worlds_wait_and_are_then_refused(self):
        state = coordinator(group=8)
        said(state, attach(0, 2))
        assert isinstance(said(state, attach(2, 4))[0], m.Wait)
        said(state, progress(0, 0, 0), now_s=4.0)
        assert isinstance(said(state, attach(2, 4), now_s=4.0)[0], m.Wait)
        code, expected, got, remedy = refused(state, attach(2, 4), now_s=4.5)
        assert (code, expected) == ("world", "a world of 2, as rank 0 (host:0) says")
        assert got == "a world of 4 from rank 2 (host:2)"
        assert "world=" in remedy

    @pytest.mark.fault(20)
    def test_silent_ranks_of_an_old_world_do_not_stand_in_the_way(self):
        state = coordinator()
        for rank in range(4):
            said(state, attach(rank, 4, at=(0, 40)))
        assert isinstance(said(state, attach(0, 2, at=(0, 44), group=4, incarnation=1))[0], m.Wait)
        assert isinstance(said(state, attach(0, 2, at=(0, 44), group=4, incarnation=1), now_s=2.1)[0], m.Attached)

    @pytest.mark.fault(19)
    def test_a_newer_trainer_takes_a_rank_over_and_the_older_is_told(self):
        state = coordinator()
        said(state, attach(), peer=b"old")
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
        said(state, attach(), peer=b"old")
        said(state, attach(incarnation=2, name="host:new"), peer=b"new")
        assert refused(state, progress(0, 0, 5), peer=b"old")[0] == "superseded"
        code, _, got, _ = refused(state, attach(serial=2), peer=b"old")
        assert (code, got) == ("superseded", "a newer one, host:new")
        assert state.counts.stale == 2
        assert isinstance(said(state, progress(0, 0, 5, incarnation=2), peer=b"new")[0], m.Members)

    def test_it_is_recognised_by_any_of_its_ranks(self):
        state = coordinator()
        said(state, attach(1, 2), peer=b"old")
        said(state, attach(0, 2, replicas=2, incarnation=2), peer=b"new")
        assert refused(state, progress(1, 0, 5), peer=b"old")[0] == "superseded"
        assert refused(state, attach(1, 2), peer=b"old")[0] == "superseded"

    def test_a_trainer_that_moves_to_another_rank_leaves_no_ghost(self):
        state = coordinator(group=4)
        said(state, attach(0, 2, incarnation=7))
        taken = kept(state, attach(1, 2, incarnation=7, serial=2))
        assert taken == [RankTaken("train", 0, ()), RankTaken("train", 1, (7,))]
        assert kept(state, progress(1, 0, 9, incarnation=7)) == [Advanced("train", 0, 9)]
        said(state, attach(0, 2, incarnation=8))
        assert kept(state, progress(1, 0, 10, incarnation=7)) == [Advanced("train", 0, 0)], "8 took nothing from it"

    def test_a_trainer_that_nobody_knows_is_asked_to_attach(self):
        code, _, _, remedy = refused(coordinator(), progress(0, 0, 5))
        assert (code, remedy) == ("unknown", "Attach again.")

    def test_who_detaches_is_gone(self):
        state = coordinator()
        said(state, attach())
        state.handle(Received(b"me", m.Detach(stream="train", rank=0, incarnation=1000)), 0.0)
        assert refused(state, progress(0, 0, 5))[0] == "unknown"

    def test_who_is_silent_for_long_is_gone(self):
        state = coordinator()
        said(state, attach())
        state.handle(Ticked(), 10.1)
        assert refused(state, progress(0, 0, 5))[0] == "unknown"

    @pytest.mark.fault(16)
    def test_nobody_expires_for_a_stall_of_the_coordinators_own_if_what_came_is_read_first(self):
        state = coordinator()
        said(state, attach())
        said(state, register())
        said(state, progress(0, 0, 5), now_s=30.0)
        said(state, beat(), now_s=30.0)
        state.handle(Ticked(), 30.0)
        (members,) = said(state, progress(0, 0, 6), now_s=30.1)
        assert [one.worker for one in members.workers] == ["w0"]
        assert state.counts.workers_gone == 0


class TestEvaluation:
    def test_anyone_may_read_at_once_wherever_it_stands(self):
        state = coordinator()
        for one, at in enumerate([None, (0, 0), (0, 50), (0, 7)]):
            asked = attach(0, 1, at=at, stream="dev", incarnation=one)
            assert isinstance(said(state, asked)[0], m.Attached)
            assert isinstance(said(state, progress(0, 0, 1, stream="dev", incarnation=one))[0], m.Members)
        assert state.counts.superseded == 0

    def test_a_reader_alone_does_not_bind_a_larger_world(self):
        state = coordinator()
        said(state, attach(0, 1, stream="dev", incarnation=1))
        (answer,) = said(state, attach(3, 4, stream="dev", incarnation=2))
        assert (answer.cursor.group, answer.next_group) == (4, 4)

    def test_nothing_of_it_is_kept(self):
        state = coordinator()
        assert kept(state, attach(stream="dev")) == []
        assert kept(state, progress(0, 0, 5, stream="dev")) == []


class TestGroup:
    def test_the_first_world_fixes_it_and_it_is_kept(self):
        state = coordinator()
        assert kept(state, attach(0, 4)) == [GroupFixed("train", 4), RankTaken("train", 0, (1000,))]
        (answer,) = said(state, attach(0, 2, incarnation=2))
        assert answer.cursor.group == 4

    def test_the_fact_comes_before_the_promise(self):
        out = coordinator().handle(Received(b"me", attach(0, 4)), 0.0)
        assert [type(one) for one in out] == [Keep, Keep, Send]

    @pytest.mark.fault(20)
    def test_a_group_from_the_job_file_takes_effect_where_an_epoch_starts(self):
        state = coordinator(group=8)
        state.recover(GroupFixed("train", 4))
        (middle,) = said(state, attach(0, 2, at=(1, 40), group=4))
        assert (middle.cursor.group, middle.next_group, middle.most_batches) == (4, 8, 802)
        assert refused(state, attach(0, 6, at=(1, 40), group=4, incarnation=2))[0] == "world"
        (start,) = said(state, attach(0, 6, at=(2, 0), group=4, incarnation=3), now_s=30.0)
        assert (start.cursor.group, start.next_group) == (8, 8)


class TestRepeats:
    @pytest.mark.fault(22)
    @pytest.mark.fault(24)
    @pytest.mark.fault(37)
    def test_an_attach_that_comes_again_is_answered_again_and_changes_nothing(self):
        state = coordinator()
        said(state, register(), peer=b"worker")
        first = said(state, attach(0, 2, at=(0, 40)))
        said(state, progress(0, 0, 47, read_number=52))
        out = state.handle(Received(b"anew", attach(0, 2, at=(0, 40))), 1.0)
        assert out == [Send(b"anew", first[0])]
        assert state.counts.attaches == 1
        train = state.report(1.0)["streams"]["train"]
        assert (train["number"], train["read_number"], train["attached"]) == (47, 52, 1)

    def test_a_reader_of_an_evaluation_stream_keeps_its_own_group(self):
        state = coordinator()
        (first,) = said(state, attach(stream="dev", incarnation=1))
        said(state, attach(3, 4, stream="dev", incarnation=2))
        assert said(state, attach(stream="dev", incarnation=1)) == [first]

    def test_its_peer_is_where_the_trainer_is_now(self):
        state = coordinator()
        said(state, attach(), peer=b"before")
        said(state, attach(), peer=b"now")
        told = state.handle(Received(b"worker", register()), 0.0)
        assert [one.peer for one in told if isinstance(one.message, m.Members)] == [b"now"]

    @pytest.mark.fault(22)
    def test_it_counts_as_a_sign_of_life(self):
        state = coordinator()
        said(state, attach())
        said(state, attach(), now_s=9.0)
        state.handle(Ticked(), 18.0)
        assert said(state, progress(0, 0, 5, members=1), now_s=18.0) == [m.Noted()]

    @pytest.mark.fault(23)
    @pytest.mark.fault(37)
    def test_an_attach_from_before_the_last_is_dropped_and_counted(self):
        state = coordinator()
        (answer,) = said(state, attach(at=(2, 37), serial=5))
        assert (answer.serial, answer.cursor.epoch, answer.cursor.number) == (5, 2, 37)
        assert state.handle(Received(b"me", attach(serial=4)), 0.0) == []
        assert (state.counts.attaches, state.counts.stale) == (1, 1)
        assert state.report(0.0)["streams"]["train"]["trainers"][0]["number"] == 37

    @pytest.mark.fault(37)
    def test_every_answer_to_an_attach_names_its_request(self):
        state = coordinator(View(counting=True), group=2)
        assert said(state, attach(serial=7))[0].serial == 7
        state = coordinator(group=2)
        said(state, attach(0, 2, at=(0, 40)))
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
            (answer,) = said(state, asked)
            assert answer.serial == 8


class TestSuccession:
    @staticmethod
    def restarted(*facts) -> CoordinatorState:
        state = coordinator()
        for fact in facts:
            state.recover(fact)
        return state

    @pytest.mark.fault(48)
    def test_the_newer_one_wins_though_the_older_comes_back_first(self):
        state = coordinator()
        facts = [*kept(state, attach()), *kept(state, attach(incarnation=2))]
        assert facts[1:] == [RankTaken("train", 0, (1000,)), RankTaken("train", 0, (1000, 2))]
        again = self.restarted(*facts)
        code, _, got, _ = refused(again, attach(serial=2))
        assert (code, got) == ("superseded", "a newer one")
        assert refused(again, progress(0, 0, 5))[0] == "superseded"
        assert isinstance(said(again, attach(incarnation=2, serial=2))[0], m.Attached)

    @pytest.mark.fault(48)
    @pytest.mark.parametrize("older_first", [True, False])
    def test_one_that_came_while_the_coordinator_was_away_is_newer_too(self, older_first):
        state = self.restarted(*kept(coordinator(), attach()))
        if older_first:
            assert isinstance(said(state, attach(serial=2))[0], m.Attached)
        assert isinstance(said(state, attach(incarnation=2))[0], m.Attached)
        assert refused(state, attach(serial=3))[0] == "superseded"

    @pytest.mark.fault(48)
    def test_a_successor_that_is_silent_or_has_left_is_still_newer(self):
        state = coordinator()
        said(state, attach())
        said(state, attach(incarnation=2))
        said(state, m.Detach(stream="train", rank=0, incarnation=2))
        assert refused(state, attach(serial=2))[0] == "superseded"
        assert isinstance(said(state, attach(incarnation=3))[0], m.Attached)

    def test_the_same_one_attaches_anew_without_a_word_to_the_journal(self):
        state = coordinator()
        said(state, attach())
        assert kept(state, attach(serial=2)) == []


class TestCounting:
    def test_who_comes_meanwhile_waits_a_moment(self):
        view = View(counting=True)
        state = coordinator(view)
        (answer,) = said(state, attach(at=(3, 7)))
        assert answer == m.Wait(serial=1, reason="counting the batches of epoch 3", retry_ms=250)
        assert state.report(0.0)["streams"]["train"]["attached"] == 0
        view.counting = False
        assert isinstance(said(state, attach(at=(3, 7)), now_s=0.25)[0], m.Attached)

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


class TestWorkers:
    def test_trainers_are_told_of_workers_that_come_and_leave(self):
        state = coordinator()
        said(state, attach(), peer=b"trainer")
        out = state.handle(Received(b"worker", register()), 0.0)
        assert [(one.peer, type(one.message)) for one in out] == [
            (b"worker", m.Registered),
            (b"worker", m.Culprits),
            (b"trainer", m.Members),
        ]
        assert out[0].message == m.Registered(heartbeat_timeout_ms=2000)
        assert out[-1].message == m.Members(version=2, workers=(address(),))
        out = state.handle(Received(b"worker", m.Leave(worker="w0", incarnation=1)), 0.0)
        assert [(one.peer, one.message) for one in out] == [(b"trainer", m.Members(version=3, workers=()))]
        assert state.handle(Received(b"worker", m.Leave(worker="w0", incarnation=1)), 0.0) == []

    def test_they_are_not_told_of_a_registration_that_came_again(self):
        state = coordinator()
        said(state, register())
        said(state, attach(), peer=b"trainer")
        again = state.handle(Received(b"anew", register()), 1.0)
        assert {one.peer for one in again} == {b"anew"}
        assert isinstance(again[0].message, m.Registered)

    def test_nor_by_heartbeats_which_are_noted(self):
        state = coordinator()
        said(state, register())
        said(state, attach(), peer=b"trainer")
        assert state.handle(Received(b"worker", beat()), 1.0) == [Send(b"worker", m.Noted())]

    @pytest.mark.fault(39)
    @pytest.mark.parametrize("endpoint", ["bogus", "tcp://0.0.0.0:7410", "ipc:///tmp/x"])
    def test_a_worker_that_nobody_can_connect_to_is_refused(self, endpoint):
        state = coordinator()
        code, expected, got, remedy = refused(state, register(endpoint=endpoint))
        assert (code, expected) == ("endpoint", "an endpoint like tcp://10.0.0.7:7410")
        assert got == f"{endpoint!r} from w0"
        assert "--listen" in remedy
        assert said(state, attach())[0].workers == ()
        assert state.counts.refusals == 1

    @pytest.mark.fault(40)
    def test_a_worker_that_builds_other_bytes_is_refused_and_told_no_fingerprint(self):
        state = coordinator()
        code, expected, got, remedy = refused(state, register(builder="builder-2"))
        assert code == "builder"
        assert expected == "a worker that builds the same bytes as the coordinator's machine would"
        assert got == "another builder fingerprint from w0"
        assert "same job file" in remedy
        assert "log has both" in remedy
        assert "builder-" not in expected + got + remedy
        (warning,) = [one for one in state.handle(Received(b"w", register(builder="b-2")), 0.0) if type(one) is Warn]
        assert warning.event == "worker builds other bytes"
        assert warning.fields == {
            "worker": "w0", "endpoint": "tcp://127.0.0.1:11", "expected": "builder-1", "got": "b-2",
        }  # fmt: skip

    @pytest.mark.fault(47)
    def test_two_of_one_name_are_both_there(self):
        state = coordinator()
        said(state, register(incarnation=1))
        said(state, register(incarnation=2))
        assert said(state, attach())[0].workers == (address(incarnation=1), address(incarnation=2))
        for incarnation in (1, 2):
            assert said(state, beat(incarnation=incarnation)) == [m.Noted()]
        said(state, m.Leave(worker="w0", incarnation=1))
        assert said(state, progress(0, 0, 0))[0].workers == (address(incarnation=2),)

    @pytest.mark.fault(47)
    def test_a_worker_that_starts_again_at_its_endpoint_replaces_itself(self):
        state = coordinator()
        said(state, register(incarnation=1, endpoint="tcp://h:1"))
        said(state, register(incarnation=2, endpoint="tcp://h:1"))
        said(state, m.Leave(worker="w0", incarnation=1))
        (answer,) = said(state, attach())
        assert [one.incarnation for one in answer.workers] == [2]
        assert refused(state, beat(incarnation=1))[0] == "unknown"

    def test_a_worker_that_nobody_knows_is_asked_to_register(self):
        code, _, _, remedy = refused(coordinator(), beat())
        assert (code, remedy) == ("unknown", "Register again.")

    def test_one_that_is_silent_for_long_is_gone_and_trainers_are_told(self):
        state = coordinator()
        said(state, register(), peer=b"worker")
        said(state, attach(), now_s=9.0, peer=b"trainer")
        assert state.handle(Ticked(), 10.0) == []
        assert state.handle(Ticked(), 10.1) == [Send(b"trainer", m.Members(version=3, workers=()))]
        assert state.counts.workers_gone == 1


class TestCulprits:
    @pytest.mark.fault(8)
    def test_a_culprit_is_kept_first_and_told_to_all_workers(self):
        state = coordinator()
        said(state, register("w0", 1), peer=b"w0")
        said(state, register("w1", 2), peer=b"w1")
        keep, warn, *told = state.handle(Received(b"w0", culprit()), 0.0)
        assert keep == Keep(CulpritFound("train", "a.flac 7 1", "SIGSEGV, SIGSEGV"))
        assert warn.fields == {
            "stream": "train", "identity": "a.flac 7 1", "ends": "SIGSEGV, SIGSEGV", "worker": "w0",
        }  # fmt: skip
        assert told == [Send(peer, m.Culprits(version=2, keys=keys("a.flac 7 1"))) for peer in (b"w0", b"w1")]
        assert state.handle(Received(b"w1", culprit()), 0.0) == []

    @pytest.mark.fault(36)
    def test_a_worker_that_registers_is_told_of_those_of_every_stream(self):
        state = coordinator()
        said(state, culprit())
        said(state, culprit("b", "dev"))
        _, told = said(state, register())
        assert told == m.Culprits(version=3, keys=tuple(sorted((*keys("a.flac 7 1"), *keys("b", stream="dev")))))

    @pytest.mark.fault(36)
    @pytest.mark.fault(43)
    def test_a_worker_that_missed_a_list_is_told_again_when_it_says_so(self):
        state = coordinator()
        assert said(state, register())[1] == m.Culprits(version=1, keys=())
        assert said(state, beat(culprits=1)) == [m.Noted()]
        said(state, culprit("a"))
        assert said(state, beat(culprits=1)) == [m.Culprits(version=2, keys=keys("a"))]
        assert said(state, beat(culprits=2)) == [m.Noted()]
        said(state, forgive("a"))
        assert said(state, beat(culprits=2)) == [m.Culprits(version=3, keys=())]

    def test_a_culprit_of_no_stream_of_ours_is_not_kept(self):
        assert kept(coordinator(), culprit(stream="other")) == []

    @pytest.mark.fault(52)
    def test_they_are_bounded_and_that_is_logged(self, monkeypatch):
        monkeypatch.setattr("loader_server.coordinator.convictions._MOST", 2)
        state = coordinator()
        for identity in "ab":
            said(state, culprit(identity))
        (warn,) = state.handle(Received(b"w0", culprit("c")), 0.0)
        assert warn.event == "too many samples kill decoders: from here on they are not kept"
        assert state.handle(Received(b"w0", culprit("c")), 0.0) == []  # they are said with every heartbeat
        assert said(state, register())[1].keys == keys("a", "b")

    @pytest.mark.fault(36)
    def test_forgiven_ones_are_forgotten_and_workers_are_told_what_is_left(self):
        state = coordinator()
        said(state, register(), peer=b"w0")
        for identity in "ab":
            said(state, culprit(identity))
        out = state.handle(Received(b"me", forgive("a")), 0.0)
        assert out == [
            Keep(Forgot("train", "a")),
            Send(b"me", m.Forgiven(count=1)),
            Send(b"w0", m.Culprits(version=4, keys=keys("b"))),
        ]
        assert state.handle(Received(b"me", forgive("b")), 0.0)[-1].message == m.Culprits(version=5, keys=())
        assert said(state, forgive("b")) == [m.Forgiven(count=0)]
        assert kept(state, culprit("a")) != [], "it may be convicted anew"

    @pytest.mark.fault(36)
    @pytest.mark.parametrize(
        ("asked", "forgotten"),
        [
            (forgive(), ["dev a", "train a", "train b"]),
            (forgive(stream="train"), ["train a", "train b"]),
            (forgive("a"), ["dev a", "train a"]),
            (forgive("a", "dev"), ["dev a"]),
            (forgive("c", "train"), []),
        ],
    )
    def test_one_or_all_of_one_stream_or_of_all(self, asked, forgotten):
        state = coordinator()
        for found in (culprit("a"), culprit("b"), culprit("a", "dev")):
            said(state, found)
        assert [f"{fact.stream} {fact.identity}" for fact in kept(state, asked)] == forgotten
        assert len(state.report(0.0)["culprits"]) == 3 - len(forgotten)


@pytest.mark.fault(52)
class TestWhatGrows:
    def test_a_status_of_thousands_is_cut_and_says_so(self):
        state = coordinator()
        for number in range(4200):
            state.handle(Received(b"me", attach(stream="dev", incarnation=number, name="é" * 200)), 0.0)
        state.handle(Received(b"w", register()), 0.0)
        state.handle(Received(b"t", attach(name="the one that trains")), 0.0)
        frame = encode(state.handle(Received(b"me", m.StatusQuery()), 0.0)[0].message)
        report = json.loads(decode(frame).report)
        dev = report["streams"]["dev"]
        assert dev["attached"] == 4200 == len(dev["trainers"]) + report["cut"]["trainers"]
        assert len(dev["trainers"]) > 100
        assert len(report["streams"]["train"]["trainers"]) == len(report["workers"]) == 1

    def test_a_list_of_workers_that_no_message_takes_is_cut_and_that_is_logged_once(self):
        state, warnings = coordinator(), []
        for number in range(900):
            name = f"{number:03d}" + "𝄞" * 197
            out = state.handle(Received(b"w", register(name, number, endpoint=f"tcp://{'h' * 60}:{number + 1}")), 0.0)
            warnings += [one.fields for one in out if isinstance(one, Warn)]
        (answer,) = state.handle(Received(b"me", attach()), 0.0)[-1:]
        frame = encode(answer.message)
        listed = decode(frame).workers
        assert len(frame) < MAX_FRAME
        assert listed == answer.message.workers == tuple(sorted(listed, key=lambda one: one.worker))
        assert 800 < len(listed) < 900
        assert [one["workers"] - one["without"] for one in warnings] == [len(listed)]

    def test_a_refusal_that_lists_too_much_is_cut(self):
        streams = {"s" * 190 + str(number): View() for number in range(1000)}
        state = CoordinatorState(SETTINGS, streams)
        assert len(refused(state, attach())[1]) == 4000


class TestProgress:
    def test_a_stream_is_as_far_as_its_last_rank(self):
        state = coordinator()
        said(state, attach(0, 2))
        said(state, attach(1, 2))
        assert kept(state, progress(0, 0, 10)) == []
        assert kept(state, progress(1, 0, 6)) == [Advanced("train", 0, 6)]
        assert kept(state, progress(1, 0, 6)) == []

    @pytest.mark.fault(22)
    def test_it_is_answered_with_the_members_until_they_are_known(self):
        state = coordinator()
        said(state, register(), peer=b"worker")
        said(state, attach())
        for _ in range(2):
            (answer,) = said(state, progress(0, 0, 10))
            assert [one.worker for one in answer.workers] == ["w0"]
        for _ in range(2):
            assert said(state, progress(0, 0, 10, members=answer.version)) == [m.Noted()]

    def test_the_report_shows_the_last_to_read_and_the_one_that_waited_most(self):
        state = coordinator()
        for rank in range(2):
            said(state, attach(rank, 2, at=(3, 0)))
        train = state.report(0.0)["streams"]["train"]
        assert (train["waited_permille"], train["limit"], train["read_number"]) == (None, None, 0)
        said(state, progress(0, 3, 2, read_number=9, waited_permille=900))
        said(state, progress(1, 3, 2, read_number=7, waited_permille=10))
        train = state.report(0.0)["streams"]["train"]
        assert (train["number"], train["read_epoch"], train["read_number"]) == (2, 3, 7)
        assert (train["waited_permille"], train["limit"]) == (900, "loaders")
        shown = [
            (one["rank"], one["read_epoch"], one["read_number"], one["waited_permille"]) for one in train["trainers"]
        ]
        assert shown == [(0, 3, 9, 900), (1, 3, 7, 10)]

    def test_the_report_says_how_far_and_by_whom(self):
        state = coordinator()
        said(state, register())
        said(state, beat())
        said(state, attach(0, 1))
        said(state, progress(0, 1, 10))
        (answer,) = said(state, m.StatusQuery(), now_s=1.52)
        report = json.loads(answer.report)
        train = report["streams"]["train"]
        assert (train["epoch"], train["number"], train["batches"], train["group"]) == (1, 10, 101, 1)
        assert train["trainers"][0]["name"] == "host:0"
        assert train["trainers"][0]["silent_s"] == 1.5
        assert report["workers"][0]["built"] == 3

    def test_the_report_counts_an_evaluation_in_the_group_of_who_came_last(self):
        state = coordinator()
        for incarnation, world in ((1, 2), (2, 4)):
            said(state, attach(0, world, stream="dev", incarnation=incarnation))
        (answer,) = said(state, m.StatusQuery())
        dev = json.loads(answer.report)["streams"]["dev"]
        assert (dev["group"], dev["batches"]) == (4, 100)


ranks = st.integers(0, 3)
incarnations = st.integers(0, 5)
cursors = st.none() | st.builds(
    Cursor, st.integers(0, 3), st.integers(0, 110), st.integers(1, 8), st.sampled_from(["plan-1", "plan-0"])
)
names = st.sampled_from(["w0", "w1"])
streams = st.sampled_from(["train", "dev", "none"])
messages = st.one_of(
    st.builds(
        m.Attach, serial=st.integers(0, 2), job=st.sampled_from(["", "digits", "words"]), stream=streams, rank=ranks,
        replicas=st.integers(1, 2), world=st.integers(1, 4), incarnation=incarnations, name=st.just("host"),
        cursor=cursors,
    ),
    st.builds(
        m.Progress, stream=streams, rank=ranks, incarnation=incarnations, epoch=st.integers(0, 3),
        number=st.integers(0, 99), read_epoch=st.just(0), read_number=st.just(0), waited_permille=st.just(0),
        members=st.integers(0, 4),
    ),
    st.builds(m.Detach, stream=streams, rank=ranks, incarnation=incarnations),
    st.builds(register, names, incarnations, st.sampled_from(["builder-1", "builder-2"])),
    st.builds(beat, names, incarnations),
    st.builds(m.Leave, worker=names, incarnation=incarnations),
    st.builds(culprit, st.sampled_from("abc"), streams, names),
    st.builds(forgive, st.sampled_from(["", "a", "b"]), st.sampled_from(["", "train"])),
    st.just(m.StatusQuery()),
    st.just(m.Ping(number=1)),
)  # fmt: skip


@pytest.mark.fault(11)
@pytest.mark.fault(25)
@settings(max_examples=200, deadline=None)
@given(script=st.lists(st.tuples(messages | st.none(), st.sampled_from([0.0, 0.5, 3.0, 11.0])), max_size=40))
def test_no_sequence_breaks_it_and_its_facts_alone_rebuild_what_it_promised(script):
    state, facts, now_s = coordinator(), {}, 0.0
    for number, (message, pause_s) in enumerate(script):
        now_s += pause_s
        event = Ticked() if message is None else Received(b"%d" % (number % 3), message)
        for one in state.handle(event, now_s):
            if isinstance(one, Send):
                assert decode(encode(one.message)) == one.message
            elif isinstance(one, Keep):
                kind = CulpritFound if isinstance(one.fact, Forgot) else type(one.fact)
                names = (getattr(one.fact, "identity", None), getattr(one.fact, "rank", None))
                facts[kind, one.fact.stream, names] = one.fact
        train = state._streams["train"]
        overlapping = [rank for trainer in train.trainers.values() for rank in trainer.ranks]
        assert len(overlapping) == len(set(overlapping))
        assert all(train.holder(rank) is trainer for trainer in train.trainers.values() for rank in trainer.ranks)
        assert sorted(train._positions.elements()) == sorted(trainer.trained for trainer in train.trainers.values())
        endpoints = [worker.address.endpoint for worker in state._workers.sorted()]
        assert len(endpoints) == len(set(endpoints)) == len(state._workers)
    again = coordinator()
    for fact in facts.values():
        again.recover(fact)
    for incarnation in range(6):
        superseded = [one._streams["train"].succession.is_superseded(incarnation) for one in (state, again)]
        assert superseded[0] == superseded[1]
    before, after = state.report(now_s), again.report(now_s)
    assert after["culprits"] == before["culprits"]
    for field in ("group", "epoch", "number", "batches"):
        assert after["streams"]["train"][field] == before["streams"]["train"][field]


@pytest.mark.fault(11)
def test_after_a_restart_the_answers_are_the_same():
    state, again = coordinator(), coordinator()
    for fact in [*kept(state, attach(0, 4)), *kept(state, progress(0, 1, 8))]:
        again.recover(fact)
    asked = replace(attach(0, 2, at=(1, 8), group=4), incarnation=9)
    assert said(again, asked) == said(state, asked, now_s=60.0)
