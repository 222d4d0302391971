"""Verifiers at the coordinator, through its one door: let in anywhere, told what trainers are told, counted nowhere."""

from __future__ import annotations

import pytest

from loader_server.coordinator.events import EndOrdered, GroupFixed, Keep, Received, Send, Ticked
from loader_server.leases.lease_table import LeaseRules
from shared.silence import GONE_AFTER
from shared.wire import messages as m
from shared.wire.message_parts import Cursor
from tests.support.coordinator import (
    TIMEOUT_S,
    View,
    attach,
    beat,
    coordinator,
    failing,
    kept,
    progress,
    refused,
    register,
    replies,
)
from tests.support.elastic_members import join

VERIFIER = 77
QUEUE = LeaseRules(floor_s=30.0, tries=3)


def verify(*, at=None, incarnation=VERIFIER, **other):
    return attach(at=at, incarnation=incarnation, work="verify", name=f"verifier:{incarnation}", **other)


def heartbeat(epoch=0, number=0, **other):
    return progress(0, epoch, number, **{"incarnation": VERIFIER, **other})


def stream_of(state, stream="train"):
    return state.report(0.0)["streams"][stream]


class TestLettingIn:
    @pytest.mark.parametrize("view", [View(), View(leases=QUEUE), View(evaluation=True), View(carries=True)])
    def test_any_kind_of_stream_is_read_by_numbers(self, view):
        state = coordinator(view, group=3)
        (answer,) = replies(state, verify(at=(5, 7), group=3))
        assert (answer.cursor, answer.next_group, answer.batches) == (Cursor(5, 7, 3, "plan-1"), 3, 102)
        assert (answer.work, answer.book, answer.tenure) == (None, None, None)

    def test_the_group_is_the_one_that_trainers_get(self):
        for view, setting, group in ((View(), 4, 4), (View(leases=QUEUE), 4, 4), (View(leases=QUEUE), 0, 1)):
            assert replies(coordinator(view, group=setting), verify(at=(0, 0), group=2))[0].cursor.group == group
        state = coordinator()
        state.recover(GroupFixed("train", 6))
        assert replies(state, verify(at=(0, 0), group=2))[0].cursor.group == 6

    def test_where_nobody_knows_a_group_it_is_its_own_and_is_not_kept(self):
        state = coordinator()
        assert replies(state, verify(at=(0, 0), group=2))[0].cursor.group == 2
        assert replies(state, verify(serial=2))[0].cursor.group == 1
        assert stream_of(state)["group"] == 0
        assert replies(state, attach(0, 4))[0].cursor.group == 4
        assert replies(coordinator(), verify(stream="dev"))[0].cursor.group == 1

    def test_a_reader_of_an_evaluation_sets_no_verifiers_group(self):
        state = coordinator()
        replies(state, attach(0, 4, stream="dev"))
        assert replies(state, verify(stream="dev"))[0].cursor.group == 1

    def test_what_does_not_fit_is_refused_by_name(self):
        state = coordinator(group=3)
        assert refused(state, verify(job="words"))[0] == "job"
        assert refused(state, verify(stream="tain"))[0] == "stream"
        assert refused(state, verify(at=(0, 1), digest="plan-0"))[0] == "plan"
        assert refused(state, verify(at=(0, 101), group=3))[0] == "cursor"
        assert refused(coordinator(), verify(at=(0, 0), group=70))[0] == "world"
        wide = attach(0, 4, replicas=4, at=(0, 0), group=3, incarnation=VERIFIER, work="verify")
        assert refused(state, wide)[0] == "world"
        assert stream_of(state)["verifiers"] == []

    def test_the_end_of_an_epoch_is_a_place(self):
        assert replies(coordinator(group=3), verify(at=(0, 100), group=3))[0].cursor.number == 100

    def test_it_waits_while_batches_are_counted(self):
        (answer,) = replies(coordinator(View(counting=True)), verify(at=(3, 0)))
        assert answer == m.Wait(serial=1, reason="counting the batches of epoch 3", retry_ms=250)

    def test_a_repeated_request_is_answered_again_and_an_older_one_is_dropped(self):
        state = coordinator(group=1)
        first = replies(state, verify(at=(0, 5), serial=2))
        assert replies(state, verify(at=(0, 5), serial=2)) == first
        assert replies(state, verify(at=(0, 9), serial=1)) == []
        assert state.counts.stale == 1
        assert [one["read_number"] for one in stream_of(state)["verifiers"]] == [5]

    def test_a_connection_speaks_for_one_verifier(self):
        state = coordinator()
        for incarnation in (5, 6):
            replies(state, verify(incarnation=incarnation), peer=b"same")
        assert [one["name"] for one in stream_of(state)["verifiers"]] == ["verifier:6"]


class TestInNobodysWay:
    def test_it_is_no_trainer_in_any_count(self):
        state = coordinator()
        replies(state, verify())
        report = stream_of(state)
        assert (report["attached"], report["trainers"]) == (0, [])
        assert state.counts.attaches == 0
        assert report["verifiers"] == [
            {"name": "verifier:77", "read_epoch": 0, "read_number": 0, "batches": 100, "silent_s": 0.0}
        ]

    def test_nothing_is_kept_of_it(self):
        state = coordinator(group=2)
        assert kept(state, verify(at=(0, 0))) == []
        assert kept(state, heartbeat(epoch=3, number=40)) == []
        assert (stream_of(state)["epoch"], stream_of(state)["number"]) == (0, 0)

    def test_a_trainer_keeps_its_rank_and_its_place(self):
        state = coordinator()
        replies(state, attach())
        replies(state, progress(0, 0, 5))
        replies(state, verify(at=(4, 50), group=1))
        replies(state, heartbeat(read_epoch=4, read_number=60))
        assert isinstance(replies(state, progress(0, 0, 6))[0], m.Members)
        assert (stream_of(state)["number"], stream_of(state)["read_number"], stream_of(state)["attached"]) == (6, 6, 1)
        assert state.counts.superseded == 0

    def test_ranks_come_and_go_beside_it(self):
        state = coordinator(group=2)
        replies(state, verify(at=(7, 0), group=2))
        assert isinstance(replies(state, attach(0, 2))[0], m.Attached)
        assert isinstance(replies(state, attach(1, 2))[0], m.Attached)

    def test_a_load_test_does_not_take_it_for_a_trainer(self):
        state = coordinator()
        replies(state, verify())
        assert isinstance(replies(state, attach(work="measure"))[0], m.Attached)

    def test_an_elastic_world_does_not_wait_for_it(self):
        state = coordinator()
        replies(state, verify())
        assert isinstance(replies(state, join(3, least=1, most=2), peer=b"member")[0], m.Placed | m.Gathering)
        assert stream_of(state)["elastic"]["waiting"] or stream_of(state)["elastic"]["members"]
        assert isinstance(replies(state, verify(serial=2))[0], m.Attached)

    def test_it_leases_nothing(self):
        state = coordinator(View(leases=QUEUE))
        replies(state, verify())
        queue = stream_of(state)["queue"]
        assert all(not table["leased"] for table in queue.values())


class TestHearing:
    def test_it_is_told_of_workers_and_of_what_fails(self):
        state = coordinator()
        replies(state, verify())
        told = [one for one in state.handle(Received(b"w", register()), 0.0) if isinstance(one, Send)]
        (members,) = [one.message for one in told if one.peer == b"77"]
        assert [worker.worker for worker in members.workers] == ["w0"]
        assert replies(state, heartbeat(members=members.version)) == [m.Noted()]
        assert replies(state, heartbeat(members=0)) == [members]
        told = [one for one in state.handle(Received(b"x", failing("w9")), 0.0) if isinstance(one, Send)]
        assert [one.message for one in told if one.peer == b"77"] == [failing("w9")]
        replies(state, beat(), peer=b"w")

    def test_its_heartbeat_says_how_far_it_has_read(self):
        state = coordinator()
        replies(state, verify())
        replies(state, heartbeat(read_epoch=2, read_number=9))
        (verifier,) = stream_of(state)["verifiers"]
        assert (verifier["read_epoch"], verifier["read_number"]) == (2, 9)
        assert replies(state, heartbeat(stream="dev", read_number=11))[0].code == "unknown"
        assert stream_of(state)["verifiers"] == [verifier]

    def test_one_that_is_silent_is_forgotten_and_comes_back(self):
        state = coordinator()
        replies(state, verify())
        state.handle(Ticked(), GONE_AFTER * TIMEOUT_S)
        assert stream_of(state)["verifiers"]
        state.handle(Ticked(), GONE_AFTER * TIMEOUT_S + 0.1)
        assert stream_of(state)["verifiers"] == []
        assert replies(state, heartbeat())[0].code == "unknown"
        assert isinstance(replies(state, verify(serial=2))[0], m.Attached)

    def test_one_that_leaves_is_gone_at_once(self):
        state = coordinator()
        replies(state, verify())
        replies(state, m.Detach(stream="dev", rank=0, incarnation=VERIFIER))
        assert stream_of(state)["verifiers"]
        replies(state, m.Detach(stream="train", rank=0, incarnation=VERIFIER))
        assert stream_of(state)["verifiers"] == []

    def test_the_end_of_the_job_is_told_but_nobody_waits_for_it(self):
        state = coordinator()
        replies(state, verify())
        (told,) = [one for one in state.handle(EndOrdered(drains=True), 0.0) if isinstance(one, Send)]
        assert (told.peer, told.message) == (b"77", m.JobEnds(drains=True, last=None))
        assert state.ending.report()["trainers"] == 0
        assert m.JobEnds(drains=True, last=None) in replies(state, verify(serial=2))


class TestWholeBatches:
    def test_it_is_refused_while_somebody_trains(self):
        state = coordinator(View(producers=2))
        replies(state, attach())
        code, expected, got, remedy = refused(state, verify())
        assert code == "training"
        assert "batches of train are made whole" in expected
        assert "shards anew" in got
        assert "when the training is over" in remedy

    def test_it_gives_way_to_a_trainer(self):
        state = coordinator(View(producers=2))
        assert isinstance(replies(state, verify())[0], m.Attached)
        told = [one for one in state.handle(Received(b"trainer", attach()), 0.0) if isinstance(one, Send)]
        assert [one.message.code for one in told if one.peer == b"77"] == ["training"]
        assert stream_of(state)["verifiers"] == []

    def test_elsewhere_it_stays(self):
        state = coordinator()
        replies(state, verify())
        told = state.handle(Received(b"trainer", attach()), 0.0)
        assert not [one for one in told if isinstance(one, Send) and one.peer == b"77"]
        assert [one for one in told if isinstance(one, Keep)]
        assert stream_of(state)["verifiers"]
