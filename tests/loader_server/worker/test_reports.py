"""What a worker reports of its building: the header of a batch, and the fields of a heartbeat."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from loader_server.building.build_counts import BuildCounts, Built
from loader_server.worker import reports
from loader_server.worker.reports import build_report, pushed_of
from shared.wire.batch_layout import BucketShape
from shared.wire.message_parts import Ticket

if TYPE_CHECKING:
    import pytest


def test_a_header_has_the_facts_of_the_batch_and_how_long_the_want_was_held() -> None:
    want = SimpleNamespace(ticket=Ticket(3, 4), epoch=1, number=7, empty=False, in_slot=True)
    outcome: Any = SimpleNamespace(
        build=SimpleNamespace(want=want, accepted_s=time.monotonic() - 5.0),
        built=Built(rows=6, masked=2, digest=9, build_us=1000, reason="a.wav", reasons=(("bad", 2),)),
        shape=BucketShape(rows=8, lengths={"audio": 100}),
        payload=SimpleNamespace(nbytes=640),
    )
    header = pushed_of(outcome, waiting=11)
    assert (header.ticket, header.epoch, header.number, header.nbytes, header.waiting) == (Ticket(3, 4), 1, 7, 640, 11)
    assert (header.rows, header.masked, header.reason, header.build_us) == (6, 2, "a.wav", 1000)
    assert 5_000_000 <= header.held_us < 60_000_000


def test_a_heartbeat_has_sums_over_all_streams_and_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "throttled_us", lambda: 77)
    times = {"busy_s": lambda: 2.0, "awaited_s": lambda: 0.5, "held_up_s": lambda: 0.25, "queued_s": 0.125}
    thread: Any = SimpleNamespace(load=3, **times)
    streams = [
        BuildCounts(kept_samples=1, decoded_samples=10, taken=100, read_us=1000),
        BuildCounts(kept_samples=2, decoded_samples=20, taken=200, read_us=2000),
    ]
    assert build_report(thread, streams) == {
        "building": 3, "kept": 3, "decoded": 30, "taken": 300,
        "busy_us": 2_000_000, "awaited_us": 500_000, "read_us": 3000, "held_up_us": 250_000,
        "throttled_us": 77, "queued_us": 125_000,
    }  # fmt: skip
