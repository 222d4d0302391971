"""What one worker says or is closes one connection, and never ends a feed; workers that come and go leave nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import zmq

import trainer_client
from shared.memory import boot_id
from shared.wire import messages as m
from tests.support.loaders import ROOT, ask, running, wait_until, write_job
from tests.support.strays import Greeter, Registrar

if TYPE_CHECKING:
    from pathlib import Path

_NONSENSE = ["bogus", "tcp://127.0.0.1:99999", "ipc:///tmp/x", "tcp://nowhere.invalid:7000"]

_SLOW = ("tests.support.transforms:slow", "logmel", "characters")


@pytest.fixture
def context():
    with zmq.Context() as one:
        one.linger = 0
        yield one


@pytest.mark.fault(39)
def test_workers_with_nonsense_endpoints_end_no_feed(tmp_path: Path, context, read) -> None:
    job = write_job(tmp_path, samples=200, transforms=_SLOW)
    with running(job, workers=1) as loaders:
        calm = read(loaders)
        registrar = Registrar(context, loaders.endpoint, job)
        with trainer_client.connect(loaders.endpoint) as feed:
            got = []
            for batch in feed:
                got.append((batch.number, batch.digest))
                if len(got) <= len(_NONSENSE):
                    registrar.register(len(got), _NONSENSE[len(got) - 1])
        registrar.close()
        assert got == calm


@pytest.mark.fault(39)
@pytest.mark.fault(40)
def test_a_worker_of_another_job_on_a_known_address_is_turned_away_alone(
    tmp_path: Path, context, read, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "other").mkdir()

    def closed() -> list[str]:
        lines = [one.getMessage() for one in caplog.records]
        return [line for line in lines if "connection to a worker is closed" in line]

    job = write_job(tmp_path, samples=300, transforms=_SLOW)
    other = write_job(tmp_path / "other", samples=20)
    other.write_text(other.read_text().replace('name = "tones"', 'name = "others"'))
    with running(job, workers=1) as loaders, running(other, workers=1) as others:
        calm = read(loaders)
        stranger = ask(others.endpoint)["workers"][0]["endpoint"]
        registrar = Registrar(context, loaders.endpoint, job)
        with trainer_client.connect(loaders.endpoint) as feed:
            got = []
            for batch in feed:
                got.append((batch.number, batch.digest))
                if len(got) == 2:
                    assert isinstance(registrar.register(77, stranger), m.Registered)
                    # The stranger is met while there is something to read.
                    wait_until(closed, "the connection to it is closed")
        registrar.close()
        assert got == calm
    (line,) = closed()
    assert stranger in line
    assert "job" in line


_FEED = """
import gc, json, sys, threading
import psutil
import trainer_client
me = psutil.Process()
def say():
    gc.collect()
    print(json.dumps([me.num_fds(), threading.active_count(), me.num_threads(), me.memory_info().rss]), flush=True)
with trainer_client.connect(sys.argv[1], lost_timeout_s=60) as feed:
    for batch in feed:
        pass
    say()
    for line in sys.stdin:
        for batch in feed:
            pass
        say()
"""


@pytest.mark.slow
@pytest.mark.fault(41)
@pytest.mark.parametrize("local", [True, False])
def test_a_thousand_workers_that_come_and_go_leave_nothing(tmp_path: Path, context, local: bool) -> None:
    """They come by the score, are met or not, and leave without a word to the trainer."""
    context.max_sockets = 4096
    job = write_job(tmp_path, samples=24)
    with running(job, workers=1) as loaders:
        registrar = Registrar(context, loaders.endpoint, job)
        command = [sys.executable, "-c", _FEED, loaders.endpoint]
        trainer = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        with trainer:
            assert trainer.stdin is not None
            assert trainer.stdout is not None
            trainer.stdout.readline()
            figures, met = [], 0
            for first in range(1000, 2000, 20):
                strays = [Greeter(context, incarnation) for incarnation in range(first, first + 20)]
                for one in strays:
                    registrar.register(one.incarnation, one.endpoint, boot_id=boot_id() if local else "elsewhere")
                wait_until(lambda strays=strays: _served(strays) >= 16, "the trainer greets them")
                met += _served(strays)
                for one in strays:
                    registrar.leave(one.incarnation)
                    one.close()
                if first % 100 == 0:
                    trainer.stdin.write("\n")
                    trainer.stdin.flush()
                    figures.append(json.loads(trainer.stdout.readline()))
            trainer.stdin.close()
            assert trainer.wait(60) == 0
        registrar.close()
    assert met >= 800
    handles, threads, all_threads, memory = zip(*figures[2:], strict=True)
    assert max(handles) - min(handles) <= 300, handles  # of a thousand; some are not closed yet on a busy machine
    assert max(threads) == min(threads)
    assert max(all_threads) == min(all_threads)
    assert memory[-1] - memory[0] < 8 * 2**20, memory


def _served(strays: list[Greeter]) -> int:
    for one in strays:
        one.serve()
    return sum(one.greeted.is_set() for one in strays)
