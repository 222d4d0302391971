"""Children that a transform forked and left behind: they keep nothing that their worker's successor needs."""

from __future__ import annotations

import json
import os
import signal
import time
from typing import TYPE_CHECKING

import pytest

import trainer_client
from tests.support.behind import SLACK_S
from tests.support.fleet import fleet
from tests.support.loaders import running, wait_until, write_job

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_TRANSFORMS = ("tests.support.transforms:leaves_a_child", "tests.support.transforms:slow", "logmel", "characters")


@pytest.fixture
def children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder that says who forked whom; all are killed at the end."""
    folder = tmp_path / "children"
    folder.mkdir()
    monkeypatch.setenv("STOKER_TEST_CHILDREN", str(folder))
    yield folder
    for mark in folder.iterdir():
        os.kill(int(mark.read_text()), signal.SIGKILL)


def _said(text: str, event: str) -> list[dict[str, object]]:
    lines = (json.loads(line) for line in text.splitlines() if line.startswith("{"))
    return [line for line in lines if line["event"] == event]


@pytest.mark.slow
@pytest.mark.fault(44)
@pytest.mark.parametrize("by", ["python", "c"])
def test_a_killed_workers_successor_attaches_though_a_child_lives_on(
    tmp_path: Path, children: Path, monkeypatch: pytest.MonkeyPatch, read, by: str
) -> None:
    """Forked by C code, no hook of Python's runs in the child: it keeps the port, and the successor takes another."""
    monkeypatch.setenv("STOKER_TEST_FORK", by)
    with running(
        write_job(tmp_path, samples=300, transforms=_TRANSFORMS), workers=1, arguments=("--log-level", "debug")
    ) as loaders:
        got = []
        victim = loaders.workers()[0]
        with trainer_client.connect(loaders.endpoint) as feed:
            for batch in feed:
                got.append((batch.number, batch.digest))
                if len(got) == 3:
                    assert (children / str(victim.pid)).exists()
                    victim.kill()
                    killed_s = time.monotonic()
                if len(got) == 12:
                    back_s = time.monotonic() - killed_s
        assert [number for number, _ in got] == list(range(len(got)))
        assert got == read(loaders)
        child = int((children / str(victim.pid)).read_text())
        os.kill(child, 0)
        came = _said(loaders.text(), "trainer came")
        # To its worker, to the successor, and of `read`; more often only if one was silent for long.
        assert len(came) >= 3
        assert all(one["shared_memory"] for one in came), came
        ready = [one["endpoint"] for one in _said(loaders.text(), "ready") if one["child"] == "worker-0"]
        assert len(ready) == 2
        assert (ready[0] == ready[1]) == (by == "python")
    assert back_s < 10 + SLACK_S
    wait_until(lambda: not victim.is_running(), "it is gone")


def test_a_worker_that_was_started_alone_ends_in_good_order_though_a_child_lives_on(
    tmp_path: Path, children: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The child holds what its worker had open, the socket to the nursery as well."""
    monkeypatch.setenv("STOKER_TEST_FORK", "python")
    with fleet(write_job(tmp_path, samples=40, transforms=_TRANSFORMS), "alone") as one:
        with trainer_client.connect(one.endpoint) as feed:
            next(iter(feed))
        worker = one.processes["alone"]
        os.kill(int((children / str(worker.pid)).read_text()), 0)
        worker.terminate()
        assert worker.wait(60) == 0
