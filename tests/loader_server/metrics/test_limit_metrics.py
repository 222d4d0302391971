"""What limits each stream, as metrics."""

from __future__ import annotations

import math

from loader_server.metrics.limit_metrics import limit_metrics
from shared.stations.limit import LIMITS, Gains, JobLimit
from shared.stations.reported import StreamLimits


def values(limits: StreamLimits | None, *streams: str) -> tuple[dict[tuple[str, ...], float], ...]:
    return tuple(dict(samples.values) for samples in limit_metrics(limits, streams))


def test_before_the_first_look_nobody_limits_anything() -> None:
    limits, gains = values(None, "train", "dev")
    assert {labels for labels, value in limits.items() if value} == {("train", "nobody"), ("dev", "nobody")}
    assert len(gains) == 6, "a series is there from the beginning, so that nobody has to ask whether it is absent"
    assert all(math.isnan(gain) for gain in gains.values())


def test_of_all_limits_of_a_stream_exactly_one_is_1() -> None:
    for limit in LIMITS:
        limits, _ = values(StreamLimits({"train": JobLimit(limit)}, None), "train")
        assert limits == {("train", other): float(other == limit) for other in LIMITS}


def test_gains_are_numbers_while_they_are_known() -> None:
    known, unknown = JobLimit("transforms", gains=Gains(1.3, 0.39, 0.0)), JobLimit("host")
    _, gains = values(StreamLimits({"train": known, "dev": unknown}, None), "train", "dev")
    assert {labels: gain for labels, gain in gains.items() if not math.isnan(gain)} == {
        ("train", "endless_loaders"): 1.3, ("train", "one_worker"): 0.39, ("train", "twice_window"): 0.0,
    }  # fmt: skip


def test_a_stream_that_is_new_since_the_last_look_is_limited_by_nobody() -> None:
    limits, _ = values(StreamLimits({"train": JobLimit("wire")}, 0.0), "train", "sent")
    assert {labels for labels, value in limits.items() if value} == {("train", "wire"), ("sent", "nobody")}
