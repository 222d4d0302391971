"""The coordinator's look at what limits each stream: when it looks, and what it tells."""

from __future__ import annotations

import math
from typing import Any

import pytest

from loader_server.coordinator.pace import limit_look as module
from loader_server.coordinator.pace.limit_look import LimitLook
from shared.stations.limit import Gains, JobLimit
from shared.stations.reported import StreamLimits
from tests.shared.stations.test_reported import report, trainer, worker

SLOW, FINE = [worker(build_s=0.05)], [worker(build_s=0.001)]


def test_nothing_is_known_before_a_trainer_has_sent_two_heartbeats() -> None:
    look = LimitLook()
    look.look(report(SLOW, [{"name": "t0", "prefetch": 8, "lately": None}]), 1.0)
    assert (look.limits, look.message("train"), look.workers_gain) == (None, None, None)
    look.look(report(SLOW, [trainer(waited_s=4.0)]), 1.5)
    told = look.message("train")
    assert told is not None
    assert (told.limit, told.who) == ("transforms", "")
    assert (told.loaders_gain, told.worker_gain) == (pytest.approx(4000, abs=300), pytest.approx(1000, abs=50))
    assert told.window_gain == pytest.approx(0, abs=30)
    assert look.workers_gain == pytest.approx(4.0, abs=0.3)


def test_it_looks_once_in_five_seconds_and_tells_the_same_message_in_between() -> None:
    look = LimitLook()
    look.look(report(SLOW, [trainer(waited_s=4.0)]), 10.0)
    first = look.message("train")
    look.look(report(FINE, [trainer()]), 14.9)
    assert look.message("train") is first, "what goes to many is encoded once"
    look.look(report(FINE, [trainer()]), 15.0)
    told = look.message("train")
    assert told is not None
    assert told.limit == "trainers"


def test_a_stream_that_is_not_there_has_no_message() -> None:
    look = LimitLook()
    look.look(report(SLOW, [trainer(waited_s=4.0)]), 1.0)
    assert look.message("dev") is None


@pytest.mark.parametrize(
    ("gain", "told"), [(0.0, 0), (-0.01, 0), (0.3904, 390), (math.inf, 10**9), (1e9, 10**9), (math.nan, None)]
)
def test_gains_are_told_within_the_bounds_of_the_message(
    gain: float, told: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = StreamLimits({"train": JobLimit("window", gains=Gains(gain, gain, gain))}, None)
    monkeypatch.setattr(module, "limits_of_streams", lambda _report: found)
    look = LimitLook()
    some: Any = report(SLOW, [trainer(waited_s=4.0)])
    look.look(some, 1.0)
    message = look.message("train")
    assert message is not None
    assert (message.loaders_gain, message.worker_gain, message.window_gain) == (told, told, told)
