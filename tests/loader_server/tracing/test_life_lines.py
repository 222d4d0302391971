"""One batch's life in eight lines, and the slowest as a table."""

from __future__ import annotations

import json

from loader_server.tracing.life_lines import COLUMNS, life_facts, life_lines, slowest, slowest_lines
from loader_server.tracing.lives import lives_of
from shared.tracing.ring import StampKind
from tests.support.stamped_jobs import MS, StampedProcess, plain_life


def plain():
    trainer, worker = StampedProcess("gpu-1:7", 100, "train", rank=2), StampedProcess("worker-3", 200)
    plain_life(trainer, worker)
    return lives_of([trainer.gathered(), worker.gathered()])[0]


def test_a_batch_that_was_late():
    assert life_lines(plain()) == [
        "batch 7 of epoch 0, stream train, rank 2, built by worker-3",
        "waited for 30.0 ms, of that 18.0 ms being built by worker-3",
        "  asked     worker-3",
        "  network   there 1.0, back 1.0 ms",
        "  worker    read 5.0, turn 15.0, build 18.0, encode 1.0, send 2.0 ms",
        "  trainer   check 1.0, ready 1.0 ms",
        "  in all    45.0 ms until taken, trained on 55.0 ms later",
        "  missing   nothing",
    ]


def test_a_batch_in_time():
    life = plain()
    life.waited_ns = 0
    assert life_lines(life)[1] == "in time, ready 1.0 ms before; the longest gap: 18.0 ms being built by worker-3"


def test_two_attempts_and_a_batch_that_is_not_there_yet():
    trainer = StampedProcess("gpu-1:7", 100, "train")
    trainer.at(StampKind.ASKED, 1000, peer=200)
    trainer.at(StampKind.ASKED, 1300, peer=201, slot=2, attempt=1)
    lines = life_lines(lives_of([trainer.gathered(), StampedProcess("worker-4", 201).gathered()])[0])
    assert lines[1] == "not taken so far; the longest gap: 300.0 ms no answer from a worker that is gone"
    assert lines[2] == "  asked     a worker that is gone, then worker-4 after 300.0 ms (2 attempts)"
    assert lines[3] == "  network   nothing known"
    assert lines[7].startswith("  missing   stamps of a worker that is gone: it is gone, or was not asked")


def test_eight_lines_of_eighty_columns_whatever_names_there_are():
    trainer, worker = StampedProcess("gpu-1:7", 100, "train"), StampedProcess("w" * 150, 200)
    plain_life(trainer, worker)
    lines = life_lines(lives_of([trainer.gathered(), worker.gathered()])[0])
    assert len(lines) == 8
    assert all(len(line) <= COLUMNS == 80 for line in lines)


def test_the_error_between_hosts_is_shown():
    life = plain()
    life.answered.error_ns = int(0.2 * MS)
    assert "clocks within 0.2 ms" in life_lines(life)[6]


def test_the_slowest_come_first_and_those_in_time_not_at_all():
    lives = [plain() for _ in range(4)]
    for life, waited_ms, number in zip(lives, (5, 0, 30, 12), range(4), strict=True):
        life.waited_ns, life.number = waited_ms * MS, number
    worst = slowest(lives, 2)
    assert [life.number for life in worst] == [2, 3]
    assert slowest_lines(worst) == [
        " waited ms  epoch     batch  rank  longest part of the wait",
        "      30.0      0         2     2  18.0 ms being built by worker-3",
        "      12.0      0         3     2  6.0 ms being built by worker-3",
    ]


def test_facts_can_be_written_as_json():
    facts = json.loads(json.dumps(life_facts(plain())))
    assert (facts["batch"], facts["built_by"], facts["longest"]) == (7, "worker-3", "being built by worker-3")
    assert sum(part["waited_ms"] for part in facts["parts"]) == facts["waited_ms"] == 30
    assert facts["asked"] == [{"worker": "worker-3", "attempt": 0, "at_ms": 0.0}]
