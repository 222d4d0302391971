"""Files and maps of both sides return to their count after many attaches and crashes."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

import trainer_client
from tests.support.forked import start_code
from tests.support.loaders import running, wait_until, write_job

if TYPE_CHECKING:
    from tests.support.loaders import Loaders

_ATTACHES, _CRASHES = 90, 10

#: Attaches, holds batches, and dies with its slots open, again and again: a fork a crash.
_CRASHER = """
import os, sys
import trainer_client
for _ in range(int(sys.argv[2])):
    child = os.fork()
    if not child:
        feed = trainer_client.connect(sys.argv[1], prefetch=2)
        reading = feed.open()
        batches = [next(reading) for _ in range(2)]
        os.kill(os.getpid(), 9)
    os.waitpid(child, 0)
"""


def _slot_maps(pid: int) -> int:
    return Path(f"/proc/{pid}/maps").read_text().count("stoker-slots")


def _attach(endpoint: str, times: int) -> None:
    for _ in range(times):
        with trainer_client.connect(endpoint, stream="dev", prefetch=2) as feed, feed.open() as reading:
            next(reading)


@pytest.mark.slow
@pytest.mark.fault(32)
def test_a_hundred_attaches_and_crashes_leave_nothing_open(tmp_path: Path) -> None:
    with running(write_job(tmp_path, samples=30, job='heartbeat_timeout = "300 ms"'), workers=1) as loaders:
        _attach(loaders.endpoint, 2)  # what is made once
        worker, own = loaders.workers()[0], psutil.Process()
        wait_until(lambda: _slot_maps(worker.pid) == 0, "the worker forgets trainers that are gone")
        gc.collect()
        before = (worker.num_fds(), own.num_fds(), _slot_maps(own.pid))
        _attach(loaders.endpoint, _ATTACHES)
        _crash(loaders)
        gc.collect()
        wait_until(lambda: _slot_maps(worker.pid) == 0, "the worker lets go of their slots")
        wait_until(lambda: worker.num_fds() <= before[0], "the worker's files are closed")
        wait_until(lambda: own.num_fds() <= before[1], "our own files are closed")
        wait_until(lambda: _slot_maps(own.pid) <= before[2], "our own slots are given back")
        assert not any("stoker" in path.name for path in Path("/dev/shm").iterdir())


def _crash(loaders: Loaders) -> None:
    crasher = start_code(_CRASHER, loaders.endpoint, str(_CRASHES))
    _, errors = crasher.communicate(100)
    assert crasher.returncode == 0, errors
