"""Counting the batches of an epoch off the loop."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from loader_server.coordinator.streams import views as module
from loader_server.coordinator.streams.views import CountingThread, View
from tests.support.loaders import wait_until


class Plan:
    """A plan whose epochs take as long to count as one says."""

    def __init__(self) -> None:
        self.dropped: dict[str, int] = {}
        self.may_end = threading.Event()
        self.may_end.set()
        self.asked = 0
        self.counted: list[tuple[int, int]] = []
        self.failure: Exception | None = None

    def epoch(self, epoch: int, group: int) -> SimpleNamespace:
        assert threading.current_thread() is not threading.main_thread()
        self.may_end.wait(60)
        self.counted.append((epoch, group))
        if self.failure is not None:
            raise self.failure
        return SimpleNamespace(batches=100 * epoch + group)

    def most_batches(self, group: int) -> int:
        self.asked += 1
        return 1000 * group

    def objection(self, group: int) -> str:
        self.asked += 1
        return f"no {group}"


@pytest.fixture
def plan():
    plan = Plan()
    yield plan
    plan.may_end.set()


@pytest.fixture
def view(plan, monkeypatch):
    monkeypatch.setattr(module, "_MOMENT_S", 0.0)
    stream = SimpleNamespace(
        name="train", plan=plan,
        digest="plan-1", settings=SimpleNamespace(evaluation=False, mode="lockstep"), samples=7,
        bad_rows={}, fields=(), shapes=(), producers=0, base_fields=(), carries=False, unproved_code={},
    )  # fmt: skip
    return View(stream, CountingThread())


def test_most_counts_are_had_at_once(view, monkeypatch):
    monkeypatch.setattr(module, "_MOMENT_S", 60.0)
    assert view.batches(3, 8) == 308


def test_a_long_one_is_begun_once_and_told_when_it_is_known(view, plan):
    plan.may_end.clear()
    assert [view.batches(3, 8) for _ in range(3)] == [None, None, None]
    plan.may_end.set()
    wait_until(lambda: view.batches(3, 8) is not None, "it is counted")
    assert view.batches(3, 8) == 308
    assert plan.counted == [(3, 8)]


def test_what_needs_no_count_is_answered_meanwhile(view, plan):
    plan.may_end.clear()
    assert view.batches(3, 8) is None
    for _ in range(3):
        assert (view.most_batches(2), view.objection(9)) == (2000, "no 9")
    assert plan.asked == 2, "every rank of a world asks the same"


def test_counts_are_bounded_and_the_oldest_goes_first(view, plan, monkeypatch):
    monkeypatch.setattr(module, "_MOMENT_S", 60.0)
    monkeypatch.setattr(module, "_MOST_COUNTS", 3)
    for epoch in (1, 2, 3, 4):
        view.batches(epoch, 1)
    assert len(view._counts) == 3
    for epoch in (4, 3, 2):
        view.batches(epoch, 1)
    assert plan.counted == [(1, 1), (2, 1), (3, 1), (4, 1)]
    view.batches(1, 1)
    assert plan.counted[4:] == [(1, 1)]


def test_too_many_at_a_time_have_to_wait(view, plan, monkeypatch):
    monkeypatch.setattr(module, "_MOST_COUNTS", 2)
    plan.may_end.clear()
    assert [view.batches(epoch, 1) for epoch in (1, 2, 3)] == [None, None, None]
    plan.may_end.set()
    wait_until(lambda: view.batches(3, 1) == 301, "the third is counted once another is through")
    assert sorted(plan.counted) == [(1, 1), (2, 1), (3, 1)]


def test_one_that_fails_is_logged_and_tried_again(view, plan, monkeypatch, caplog):
    monkeypatch.setattr(module, "_MOMENT_S", 60.0)
    plan.failure = MemoryError("no room")
    assert view.batches(3, 8) is None
    (record,) = caplog.records
    assert record.event == "batches cannot be counted"
    assert record.fields == {"stream": "train", "epoch": 3, "group": 8, "error": "MemoryError('no room')"}
    plan.failure = None
    assert view.batches(3, 8) == 308


def test_native_code_that_the_level_may_not_reach_is_named_when_a_stream_is_opened(plan, caplog):
    stream = SimpleNamespace(
        name="train", plan=plan,
        digest="plan-1", settings=SimpleNamespace(evaluation=False, mode="lockstep"), samples=7,
        bad_rows={}, fields=(), shapes=(), producers=0, base_fields=(), carries=False,
        unproved_code={"own:denoise": ["torch"]},
    )  # fmt: skip
    view = View(stream, CountingThread())
    assert view.native_code == {"own:denoise": ["torch"]}
    (record,) = caplog.records
    assert "may not keep to the job's processor level" in record.event
    assert record.fields == {"stream": "train", "used_by": "own:denoise", "code": "torch"}
