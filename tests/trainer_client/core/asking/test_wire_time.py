"""For how long batches are on their way by TCP: each moment counts once, and what came by shared memory not at all."""

from __future__ import annotations

import pytest

from tests.support.lone_core import LoneCore, address, pushed
from trainer_client.core import events as e
from trainer_client.core.asking.wire_time import WireTime


@pytest.mark.parametrize(
    ("arrivals", "busy_s"),
    [
        pytest.param([(1.0, 3.0)], 2.0, id="one batch"),
        pytest.param([(1.0, 3.0), (1.5, 5.0), (2.0, 7.0)], 6.0, id="three in a line, each behind the last"),
        pytest.param([(1.0, 2.0), (8.0, 9.0)], 2.0, id="the pause between two is none"),
        pytest.param([(1.0, 3.0), (2.0, 3.0)], 2.0, id="two that are read in one turn"),
        pytest.param([(5.0, 4.0)], 0.0, id="one that seems to be early"),
    ],
)
def test_the_time_in_which_a_batch_was_on_its_way_counts_once(arrivals, busy_s):
    wire = WireTime()
    for pushed_s, now_s in arrivals:
        wire.arrive(pushed_s, now_s)
    assert wire.busy_s == pytest.approx(busy_s)


def test_what_a_worker_held_and_the_way_of_a_short_message_are_not_the_wire_s():
    lone = LoneCore(prefetch=1)
    (want,) = lone.with_workers(1)
    answers = lone.core.stream.answers
    (worker,) = lone.core.stream.connections._workers.values()
    (ask,) = worker.asks.values()
    ask.in_slot, worker.delay_s = False, 0.5
    by_tcp = pushed(want, in_slot=False, held_us=2_000_000)
    answers.receive(worker, by_tcp, b"", ask.sent_s + 6.0)
    assert answers.wire.busy_s == pytest.approx(6.0 - 2.0 - 0.5)


def test_a_batch_in_shared_memory_was_on_no_wire():
    lone = LoneCore(prefetch=1)
    (want,) = lone.with_workers(1)
    (worker,) = lone.core.stream.connections._workers.values()
    (ask,) = worker.asks.values()
    lone.core.stream.answers.receive(worker, pushed(want, held_us=0), None, ask.sent_s + 6.0)
    assert lone.core.stream.answers.wire.busy_s == 0


def test_the_way_there_and_back_is_known_from_the_answer_to_hello():
    lone = LoneCore()
    lone.attach(address(1), batches=0)
    lone.tell(e.ConnectionUp(lone.connection_id(1)))
    lone.now_s += 0.25
    lone.welcome(1, shared=False)
    (worker,) = lone.core.stream.connections._workers.values()
    assert worker.delay_s == pytest.approx(0.25, abs=0.02)
