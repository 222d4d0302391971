"""Counters of what happened: a start of a trainer counts once, whatever it attaches again for."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from loader_server.coordinator import events
from loader_server.coordinator.events import Counts
from shared.wire.messages import Attach

if TYPE_CHECKING:
    import pytest

ATTACH = Attach(
    serial=1, job="digits", stream="train", rank=0, replicas=1, world=2, incarnation=7, name="vm:1", cursor=None,
    work=None, done=None, world_version=None, tenure=None,
)  # fmt: skip


def _counted(*attaches: Attach) -> tuple[int, int]:
    counts = Counts()
    for attach in attaches:
        counts.note_attach(attach)
    report = counts.report()
    return report["attaches"], report["reattaches"]


def test_nothing_is_counted_from_zero() -> None:
    assert _counted() == (0, 0)


def test_a_start_counts_once_and_a_restored_checkpoint_or_a_coordinator_that_is_back_does_not() -> None:
    assert _counted(ATTACH, replace(ATTACH, serial=2)) == (1, 1)
    assert _counted(replace(ATTACH, serial=2)) == (0, 1)  # the coordinator is new, its trainer is not


def test_a_trainer_that_is_started_again_counts_again() -> None:
    assert _counted(ATTACH, replace(ATTACH, incarnation=8)) == (2, 0)


def test_a_trainer_of_an_elastic_run_counts_once_for_all_its_worlds() -> None:
    first = replace(ATTACH, world_version=1)
    second = replace(ATTACH, world_version=2, incarnation=8, rank=1)
    other = replace(second, name="vm:2", incarnation=9)
    assert _counted(first, second) == (1, 1)
    assert _counted(first, second, other, replace(other, stream="dev")) == (3, 1)
    assert _counted(first, replace(second, world_version=None)) == (2, 0)


def test_trainers_of_elastic_runs_are_not_remembered_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_MOST_ELASTIC", 2)
    a, b, c = (replace(ATTACH, world_version=1, name=f"vm:{pid}", incarnation=pid) for pid in range(3))
    assert _counted(a, b, a, c, a) == (3, 2)  # the one that attached longest ago was forgotten
    assert _counted(a, b, a, c, b) == (4, 1)
