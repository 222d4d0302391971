"""How far a stream is, as the coordinator answers and reports it."""

from __future__ import annotations

import json

import pytest

from loader_server.coordinator.events import (
    Advanced,
)
from shared.wire import messages as m
from tests.support.coordinator import (
    attach,
    beat,
    coordinator,
    kept,
    progress,
    register,
    replies,
)


class TestProgress:
    def test_a_stream_is_as_far_as_its_last_rank(self):
        state = coordinator()
        replies(state, attach(0, 2))
        replies(state, attach(1, 2))
        assert kept(state, progress(0, 0, 10)) == []
        assert kept(state, progress(1, 0, 6)) == [Advanced("train", 0, 6)]
        assert kept(state, progress(1, 0, 6)) == []

    @pytest.mark.fault(22)
    def test_it_is_answered_with_the_members_until_they_are_known(self):
        state = coordinator()
        replies(state, register(), peer=b"worker")
        replies(state, attach())
        for _ in range(2):
            (answer,) = replies(state, progress(0, 0, 10))
            assert [one.worker for one in answer.workers] == ["w0"]
        for _ in range(2):
            assert replies(state, progress(0, 0, 10, members=answer.version)) == [m.Noted()]

    def test_the_report_shows_the_last_to_read_and_the_one_that_waited_most(self):
        state = coordinator()
        for rank in range(2):
            replies(state, attach(rank, 2, at=(3, 0)))
        train = state.report(0.0)["streams"]["train"]
        assert (train["waited_permille"], train["read_number"]) == (None, 0)
        replies(state, progress(0, 3, 2, read_number=9, waited_permille=900))
        replies(state, progress(1, 3, 2, read_number=7, waited_permille=10))
        train = state.report(0.0)["streams"]["train"]
        assert (train["number"], train["read_epoch"], train["read_number"]) == (2, 3, 7)
        assert train["waited_permille"] == 900
        shown = [
            (one["rank"], one["read_epoch"], one["read_number"], one["waited_permille"]) for one in train["trainers"]
        ]
        assert shown == [(0, 3, 9, 900), (1, 3, 7, 10)]

    def test_the_report_says_how_far_and_by_whom(self):
        state = coordinator()
        replies(state, register())
        replies(state, beat())
        replies(state, attach(0, 1))
        replies(state, progress(0, 1, 10))
        (answer,) = replies(state, m.StatusQuery(), now_s=1.52)
        report = json.loads(answer.report)
        train = report["streams"]["train"]
        assert (train["epoch"], train["number"], train["batches"], train["group"]) == (1, 10, 101, 1)
        assert train["trainers"][0]["name"] == "host:0"
        assert train["trainers"][0]["silent_s"] == 1.5
        assert report["workers"][0]["built"] == 3

    def test_the_report_counts_an_evaluation_in_the_group_of_who_came_last(self):
        state = coordinator()
        for incarnation, world in ((1, 2), (2, 4)):
            replies(state, attach(0, world, stream="dev", incarnation=incarnation))
        (answer,) = replies(state, m.StatusQuery())
        dev = json.loads(answer.report)["streams"]["dev"]
        assert (dev["group"], dev["batches"]) == (4, 100)
