"""A wall clock that is moved by an hour, forward and back, under coordinator, workers and trainer: nothing happens."""

from __future__ import annotations

import itertools
import json
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import psutil
import pytest

import trainer_client
from shared.silence import GONE_AFTER
from tests.support.behind import SLACK_S
from tests.support.forked import start_code
from tests.support.loaders import Loaders, ask, running, wait_until, write_job
from tests.support.moved_clock import clock_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_HOUR_S = 3600
_TIMEOUT_S = 0.5
#: How long a trainer reads before and after the clock is moved.
_READS_S = 1.2

#: From the cursor that it is given, if any, it reads on for so many seconds for each line. It says what time of day it
#: is, what it read, how long it waited for a batch at most, and its cursor.
_TRAINER = """
import itertools, json, sys, time, trainer_client
with trainer_client.connect(sys.argv[1]) as feed:
    for state in sys.argv[2:]:
        feed.restore(json.loads(state))
    batches = (batch for _ in itertools.count() for batch in feed)
    for line in sys.stdin:
        until_s, read, longest_s = time.perf_counter() + float(line), [], 0.0
        while (began_s := time.perf_counter()) < until_s:
            batch = next(batches)
            longest_s = max(longest_s, time.perf_counter() - began_s)
            read.append((batch.number, batch.digest))
            feed.trained()
        said = {"at_s": time.time(), "read": read, "longest_s": longest_s, "state": feed.state()}
        print(json.dumps(said), flush=True)
"""


class _Trainer:
    """A trainer in a process of its own, under the moved clock."""

    def __init__(self, loaders: Loaders, folder: Path, *state: dict[str, Any]) -> None:
        self._process = start_code(_TRAINER, loaders.endpoint, *map(json.dumps, state), folder=folder)

    def close(self) -> None:
        """Let it end, in good order."""
        self._process.communicate(timeout=100)
        assert self._process.returncode == 0

    def read(self, seconds: float) -> dict[str, Any]:
        """What it says after that."""
        print(seconds, file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())


@pytest.fixture
def move(tmp_path: Path) -> Callable[[int], None]:
    return clock_in(tmp_path)


@pytest.fixture
def loaders(tmp_path: Path, move: Callable[[int], None]) -> Iterator[Loaders]:
    noisy = ("tests.support.transforms:slow", "tests.support.transforms:noise", "logmel", "characters")
    job = write_job(tmp_path, samples=300, transforms=noisy, job=f'heartbeat_timeout = "{1000 * _TIMEOUT_S:g} ms"')
    with running(job) as loaders:
        yield loaders


def _calm(loaders: Loaders, first: dict[str, Any], count: int) -> list[list[int]]:
    """So many batches from a cursor on, read at leisure."""
    with trainer_client.connect(loaders.endpoint) as feed:
        feed.restore(first)
        batches = (batch for _ in itertools.count() for batch in feed)
        return [[batch.number, batch.digest] for batch in itertools.islice(batches, count)]


def _beginning(state: dict[str, Any]) -> dict[str, Any]:
    return {**state, "epoch": 0, "number": 0}


def _progress(loaders: Loaders) -> tuple[int, int]:
    stream = ask(loaders.endpoint)["streams"]["train"]
    return stream["epoch"], stream["number"]


def _restart_coordinator(loaders: Loaders) -> None:
    """It is killed, and its successor goes by the journal."""
    old = loaders.coordinator()
    old.kill()
    wait_until(lambda: not psutil.pid_exists(old.pid), "the coordinator is gone")
    wait_until(lambda: len(ask(loaders.endpoint)["workers"]) == 2, "its successor has the workers")


def _freeze_worker(loaders: Loaders) -> None:
    """It is noticed in time that one falls silent, and that it is back."""
    worker = loaders.workers()[0]
    worker.suspend()
    try:
        wait_until(lambda: len(ask(loaders.endpoint)["workers"]) == 1, "a silent worker is noticed")
    finally:
        worker.resume()
    wait_until(lambda: len(ask(loaders.endpoint)["workers"]) == 2, "it is back")


@pytest.mark.slow
@pytest.mark.fault(27)
def test_a_moved_clock_ends_nothing_early_or_late_under_a_reading_trainer(tmp_path, loaders, move) -> None:
    said = []
    with closing(_Trainer(loaders, tmp_path)) as trainer:
        for offset_s in (0, _HOUR_S, -_HOUR_S, 0):
            move(offset_s)
            said.append(trainer.read(seconds=_READS_S))
            assert said[-1]["at_s"] == pytest.approx(time.time() + offset_s, abs=60)
            status = ask(loaders.endpoint)
            (reader,) = status["streams"]["train"]["trainers"]
            silent_s = [one["silent_s"] for one in (reader, *status["workers"])]
            assert len(silent_s) == 3
            assert 0 <= min(silent_s) <= max(silent_s) < GONE_AFTER * _TIMEOUT_S
            _freeze_worker(loaders)
        assert status["attaches"] == 1
    assert max(one["longest_s"] for one in said) < _TIMEOUT_S + SLACK_S
    read = [batch for one in said for batch in one["read"]]
    assert read == _calm(loaders, _beginning(said[0]["state"]), len(read))
    assert "died" not in loaders.text()


@pytest.mark.slow
@pytest.mark.fault(27)
def test_what_was_saved_before_the_clock_moved_is_gone_on_from_after_it(tmp_path, loaders, move) -> None:
    with closing(_Trainer(loaders, tmp_path)) as trainer:
        before = trainer.read(seconds=_READS_S)
        wait_until(lambda: _progress(loaders) > (0, 0), "progress is in the journal")
        known = _progress(loaders)
        move(_HOUR_S)
        _restart_coordinator(loaders)
        assert _progress(loaders) >= known
        later = trainer.read(seconds=_READS_S)
    move(-_HOUR_S)
    _restart_coordinator(loaders)
    with closing(_Trainer(loaders, tmp_path, before["state"])) as trainer:
        again = trainer.read(seconds=_READS_S)
    read = before["read"] + later["read"]
    assert read == _calm(loaders, _beginning(before["state"]), len(read))
    assert again["read"] == _calm(loaders, before["state"], len(again["read"]))
