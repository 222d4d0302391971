"""Where shared memory cannot be had, or is full, batches come by TCP, and the reason is in the log once."""

from __future__ import annotations

import json
import os
import resource
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.support.forked import start_code
from tests.support.loaders import Loaders, running, write_job

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: Two epochs, and what they were by, once both workers serve it; a limit on the size of files holds for memory files as
#: well.
_TRAINER = """
import json, logging, os, resource, sys, threading, trainer_client
both, served = threading.Event(), set()
class Listener(logging.Handler):
    def emit(self, record):
        if record.getMessage().startswith("worker serves us"):
            served.add(record.getMessage().partition(" by=")[0])
            if len(served) == 2:
                both.set()
logging.basicConfig(level="INFO", format="%(message)s")
logging.getLogger().addHandler(Listener())
limit, user = int(sys.argv[2]), int(sys.argv[3])
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
if user:
    os.setuid(user)
with trainer_client.connect(sys.argv[1], prefetch=250) as feed:
    read = [[(batch.number, batch.digest) for batch in feed] for _ in range(2)]
    assert both.wait(60), "a worker does not serve us"
    print(json.dumps(read))
"""


@pytest.fixture(scope="module")
def loaders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loaders]:
    with running(write_job(tmp_path_factory.mktemp("job"))) as one:
        yield one


def _read(loaders: Loaders, *, limit: int = 0, user: int = 0) -> tuple[list[list[list[int]]], list[str]]:
    """Two epochs as (number, digest), and the trainer's log."""
    with start_code(_TRAINER, loaders.endpoint, str(limit), str(user)) as process:
        try:
            said, complained = process.communicate(100)
        finally:
            process.kill()
    assert process.returncode == 0, complained
    return json.loads(said), complained.splitlines()


def _served(log: list[str]) -> list[str]:
    """By what each worker serves us; one that was silent for long is met again."""
    told = [line.partition(" by=") for line in log if line.startswith("worker serves us")]
    return sorted({worker: way for worker, _, way in told}.values())


@pytest.fixture(scope="module")
def calm(loaders: Loaders) -> list[list[list[int]]]:
    """By TCP as well, if asked for."""
    read, log = _read(loaders)
    assert _served(log) == ['"shared memory" reason=""'] * 2
    assert len(read[0]) > 5
    return read


@pytest.mark.fault(10)
def test_a_trainer_that_can_make_none_is_served_by_tcp_and_says_why_once(loaders: Loaders, calm) -> None:
    read, log = _read(loaders, limit=2**16)
    assert read == calm
    assert [way.split()[0] for way in _served(log)] == ["TCP"] * 2
    (said,) = [line for line in log if "no shared memory" in line]
    assert "File too large" in said


@pytest.mark.fault(10)
def test_workers_that_cannot_map_it_send_by_tcp_and_say_why_once_each(tmp_path: Path) -> None:
    """A limit on their memory leaves room for batches, but not for a trainer's 250 slots of 640 kB."""
    with running(write_job(tmp_path, samples=300, budget="40 s")) as loaders:
        calm, _ = _read(loaders)
        for worker in loaders.workers():
            limit = psutil.Process(worker.pid).memory_info().vms + 120_000_000
            resource.prlimit(worker.pid, resource.RLIMIT_AS, (limit, limit))
        read, log = _read(loaders)
    assert read == calm, loaders.text()
    assert [line.startswith('TCP reason="shared memory cannot be had') for line in _served(log)] == [True] * 2


@pytest.mark.fault(10)
@pytest.mark.skipif(os.getuid() != 0, reason="only root can run a trainer as another user")
def test_a_trainer_of_another_user_is_served_by_tcp(loaders: Loaders, calm) -> None:
    read, log = _read(loaders, user=12345)
    assert read == calm
    said = f'TCP reason="shared memory cannot be had: the trainer runs as user 12345, this worker as {os.getuid()}"'
    assert _served(log) == [said] * 2
