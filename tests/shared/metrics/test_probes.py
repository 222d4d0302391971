"""What probes are answered, state by state."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shared.metrics.probes import (
    LOOP_S,
    REASONS,
    CoordinatorView,
    WorkerView,
    dead,
    unready_coordinator,
    unready_worker,
)

NOW_S = 1000.0

SERVING = WorkerView(
    turned_s=NOW_S,
    is_draining=False,
    has_data=True,
    was_registered=True,
    is_registered=True,
    is_refused=False,
    heard_s=NOW_S,
    heartbeat_timeout_s=2.0,
)
RUNNING = CoordinatorView(turned_s=NOW_S, is_stopping=False, facts_waiting=0, is_journal_lost=False)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, ""),
        ({"was_registered": False, "is_registered": False}, "starting"),
        ({"has_data": False, "was_registered": False, "is_registered": False}, "no_data"),
        ({"is_registered": False}, "coordinator"),
        ({"is_registered": False, "is_refused": True}, "refused"),
        ({"was_registered": False, "is_registered": False, "is_refused": True, "heard_s": 0.0}, "refused"),
        ({"has_data": False, "is_refused": True}, "no_data"),
        ({"heard_s": NOW_S - 2.0}, ""),
        ({"heard_s": NOW_S - 2.01}, "coordinator"),
        ({"turned_s": NOW_S - LOOP_S}, ""),
        ({"turned_s": NOW_S - LOOP_S - 0.01}, "loop"),
        ({"is_draining": True}, "draining"),
        ({"is_draining": True, "turned_s": NOW_S - 100, "is_registered": False}, "draining"),
    ],
)
def test_a_worker_is_ready_if_it_turns_and_the_coordinator_answers(change, reason):
    assert unready_worker(replace(SERVING, **change), NOW_S) == reason
    assert not reason or reason in REASONS


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, ""),
        ({"facts_waiting": 1}, "journal"),
        ({"is_journal_lost": True}, "journal"),
        ({"turned_s": NOW_S - LOOP_S}, ""),
        ({"turned_s": NOW_S - LOOP_S - 0.01, "facts_waiting": 1}, "loop"),
        ({"is_stopping": True}, "draining"),
    ],
)
def test_a_coordinator_is_ready_if_it_turns_and_writes_its_journal(change, reason):
    assert unready_coordinator(replace(RUNNING, **change), NOW_S) == reason
    assert not reason or reason in REASONS


def test_a_process_is_dead_only_after_longer_than_anything_takes():
    assert dead(NOW_S - 60, 60, NOW_S) == ""
    assert dead(NOW_S - 60.01, 60, NOW_S) == "loop"
