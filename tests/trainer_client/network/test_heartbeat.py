"""Heartbeats of a trainer: which part of the time it waited, and the lines on waiting that begins and ends."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from shared.logs import Log
from tests.support.log_lines import Lines
from trainer_client.core.settings import CoreSettings
from trainer_client.core.upcoming import Ranks
from trainer_client.network.heartbeat import Heartbeat
from trainer_client.network.standing import Standing

LOG = Log("trainer", trainer="here:1", run="7")
STREAM: Any = SimpleNamespace(
    wants=SimpleNamespace(prefetch=8), answers=SimpleNamespace(wire=SimpleNamespace(busy_s=1.5))
)


class Consumer:
    """Waits as a test says, and is asked every two seconds."""

    def __init__(self) -> None:
        core = CoreSettings(
            job="", stream="train", ranks=Ranks(rank=3, replicas=1, world=4), incarnation=7, name="here:1", boot_id=""
        )
        self.standing, self.now_s, self.waits_s = Standing(), 100.0, 0.0
        outbox = SimpleNamespace(read_to=(2, 9), batches_read=29, waiting_s=lambda _now_s: self.waits_s)
        self._heartbeat = Heartbeat(core, self.standing, outbox)  # type: ignore[arg-type]

    def told(self, waited_s: float, *, waits_s: float = 0.0, after_s: float = 2.0) -> int:
        self.now_s += after_s
        self.standing.waited_s += waited_s
        self.waits_s = waits_s
        return self._heartbeat.make(5, STREAM, self.now_s, LOG).waited_permille


def test_it_says_who_how_far_and_what_was_read() -> None:
    consumer = Consumer()
    consumer.standing.trained_to = (2, 7)
    said = consumer._heartbeat.make(5, STREAM, 101.0, LOG)
    assert (said.stream, said.rank, said.incarnation, said.members) == ("train", 3, 7, 5)
    assert (said.prefetch, said.wire_us) == (8, 1_500_000)
    assert (said.epoch, said.number, said.read_epoch, said.read_number, said.batches_read) == (2, 7, 2, 9, 29)


def test_the_share_of_time_waited_is_that_since_the_last_one() -> None:
    consumer = Consumer()
    assert consumer.told(0.0) == 0
    assert consumer.told(30.0, after_s=100.0) == 300
    assert consumer.told(30.0, waits_s=40.0, after_s=100.0) == 700
    assert consumer.told(200.0, after_s=100.0) == 1000
    assert consumer.told(-5.0, after_s=100.0) == 0, "what was counted as waiting meanwhile is counted once"


@pytest.mark.parametrize("every_s", [0.5, 2.0, 7.0])
def test_waiting_that_begins_and_waiting_that_ends_are_a_line_each(every_s: float) -> None:
    consumer = Consumer()
    with Lines() as lines:
        for share, for_s in ((0.0, 30), (0.8, 60), (0.2, 60), (0.0, 60), (0.15, 60)):
            for _ in range(int(for_s / every_s)):
                consumer.told(share * every_s, after_s=every_s)
    assert lines.events == ["waits for data", "waits for data no longer"]
    (began,), (ended,) = map(lines.fields, lines.events)
    assert began == {"trainer": "here:1", "run": "7", "waited": pytest.approx(0.5, abs=0.31)}
    about = {"trainer": "here:1", "run": "7", "waited": pytest.approx(0.1, abs=0.1)}
    assert ended == {**about, "seconds": pytest.approx(125, abs=15)}
