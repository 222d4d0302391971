"""Silent is suspect, not dead: stopped and hanging workers."""

from __future__ import annotations

import itertools
import os
import signal
import time
from typing import TYPE_CHECKING

import pytest

import trainer_client
from loader_server.commands import status
from tests.support.behind import SLACK_S
from tests.support.loaders import ask, running, wait_until, write_job

if TYPE_CHECKING:
    from pathlib import Path

_SLOW = ("tests.support.transforms:slow", "tests.support.transforms:noise", "logmel", "characters")


@pytest.mark.fault(4)
@pytest.mark.parametrize("shared_memory", [True, False])
def test_a_stopped_worker_holds_nobody_up_and_writes_nowhere_afterwards(
    tmp_path: Path,
    read,
    shared_memory: bool,
) -> None:
    with running(
        write_job(tmp_path, samples=300, budget="4 s", transforms=_SLOW, job='heartbeat_timeout = "1 s"')
    ) as loaders:
        calm = read(loaders)
        victim = loaders.workers()[0]
        got, arrived_s = [], []
        with trainer_client.connect(loaders.endpoint, shared_memory=shared_memory) as feed:
            tickets = feed._session.receiver.stream.tickets
            for batch in feed:
                got.append((batch.number, batch.digest))
                arrived_s.append(time.monotonic())
                if len(got) == 8:
                    victim.send_signal(signal.SIGSTOP)
                if len(got) == len(calm) - 4:
                    wait_until(lambda: tickets.suspected, "it is suspected")
                    victim.send_signal(signal.SIGCONT)
        assert got == calm
        assert max(b - a for a, b in itertools.pairwise(arrived_s)) < 1.0 + SLACK_S


@pytest.mark.slow
@pytest.mark.fault(5)
def test_transforms_that_hold_the_interpreter_in_each_worker_are_slow_but_lose_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    read,
) -> None:
    (tmp_path / "turns").mkdir()
    monkeypatch.setenv("STOKER_TEST_TURNS", str(tmp_path / "turns"))
    monkeypatch.setenv("STOKER_TEST_HOLD_S", "7")
    with running(
        write_job(tmp_path, transforms=("tests.support.transforms:holds_the_gil", "logmel", "characters"))
    ) as loaders:
        held = read(loaders)
        assert len(list((tmp_path / "turns").iterdir())) == 2
        assert held == read(loaders)
        assert "died" not in loaders.text()


@pytest.mark.fault(6)
def test_a_much_slower_worker_is_hedged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read) -> None:
    marker = tmp_path / "slow-worker"
    monkeypatch.setenv("STOKER_TEST_SLOW_WORKER", str(marker))
    job = write_job(
        tmp_path, samples=300, transforms=("tests.support.transforms:slow_in_named_worker", "logmel", "characters")
    )
    with running(job) as loaders:
        calm = read(loaders)
        marker.write_text(str(loaders.workers()[0].pid))
        with trainer_client.connect(loaders.endpoint) as feed:
            got = [(batch.number, batch.digest) for batch in feed]
            wants = feed._session.receiver.stream.wants
    assert got == calm
    assert 1 <= wants.hedged <= 1 + wants.asked / 20


@pytest.mark.slow
def test_without_workers_the_feed_says_who_was_tried(tmp_path: Path) -> None:
    said = r"expected a live worker, got none for 4 s; tried 2 of 2: .*-0 \(silent\), .*-1 \(silent\)"
    with (
        running(write_job(tmp_path, samples=300, transforms=_SLOW)) as loaders,
        trainer_client.connect(loaders.endpoint, lost_timeout_s=4.0) as feed,
    ):
        with feed.open() as reading:
            next(reading)
            connections = feed._session.receiver.stream.connections
            wait_until(lambda: len(connections.serving()) == 2, "both serve us")
            for worker in loaders.workers():
                os.kill(worker.pid, signal.SIGSTOP)
            with pytest.raises(trainer_client.LostError, match=said) as caught:
                list(reading)
        assert feed._session.error is caught.value
        for worker in loaders.workers():
            os.kill(worker.pid, signal.SIGCONT)


@pytest.mark.fault(16)
def test_a_coordinator_that_stalls_expires_nobody(tmp_path: Path, read) -> None:
    with running(write_job(tmp_path, job='heartbeat_timeout = "500 ms"')) as loaders:
        calm = read(loaders)
        coordinator = loaders.coordinator()
        with trainer_client.connect(loaders.endpoint) as feed, feed.open() as reading:
            first = next(reading)
            coordinator.send_signal(signal.SIGSTOP)
            with pytest.raises(trainer_client.LostError):
                status.ask(loaders.endpoint, timeout_s=4.0)
            coordinator.send_signal(signal.SIGCONT)
            wait_until(lambda: len(ask(loaders.endpoint)["workers"]) == 2, "both workers are still members")
            assert [(first.number, first.digest), *((batch.number, batch.digest) for batch in reading)] == calm
            assert feed._session.error is None


@pytest.mark.slow
def test_workers_that_served_and_are_gone_are_named_though_nobody_lists_them_any_more(tmp_path: Path) -> None:
    gone = r"\(served us, and is gone\)"
    said = rf"expected a live worker, got none for 2 s; tried 2, and 0 are listed now: .*-0 {gone}, .*-1 {gone}"
    job = write_job(tmp_path, samples=300, transforms=_SLOW, job='heartbeat_timeout = "200 ms"')
    with (
        running(job) as loaders,
        trainer_client.connect(loaders.endpoint, lost_timeout_s=2.0) as feed,
        feed.open() as reading,
    ):
        next(reading)
        connections = feed._session.receiver.stream.connections
        wait_until(lambda: len(connections.serving()) == 2, "both serve us")
        loaders.process.send_signal(signal.SIGSTOP)  # nobody starts others
        for worker in loaders.workers():
            worker.kill()
        with pytest.raises(trainer_client.LostError, match=said):
            list(reading)
        loaders.process.send_signal(signal.SIGCONT)
