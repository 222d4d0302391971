"""The time of a consumer's own computation."""

from __future__ import annotations

import pytest

from trainer_client.network import standing as module
from trainer_client.network.standing import Standing


@pytest.fixture
def clock(monkeypatch):
    now = [10.0]
    monkeypatch.setattr(module.time, "perf_counter", lambda: now[0])
    return now


def test_computation_lasts_from_the_data_to_the_first_call(clock):
    standing = Standing()
    standing.begin_step()
    clock[0] += 0.5
    standing.end_computation()
    clock[0] += 3.0
    standing.end_computation()
    assert standing.computed_s == pytest.approx(0.5)
    standing.begin_step()
    clock[0] += 0.25
    standing.end_computation()
    assert standing.computed_s == pytest.approx(0.75)


def test_computation_before_any_data_counts_nothing(clock):
    standing = Standing()
    clock[0] += 1.0
    standing.end_computation()
    assert standing.computed_s == 0.0
