"""The nursery that all loaders of a machine are forked from is killed or stopped, while its supervisor lives on."""

from __future__ import annotations

import contextlib
import signal
import time
from typing import TYPE_CHECKING

import psutil
import pytest

import trainer_client
from tests.support.behind import SLACK_S
from tests.support.loaders import Loaders, ask, running, wait_until, write_job

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: How long a machine may be without a nursery, and how long its end may take.
_NURSERY_S, _END_S = 2.0, 5.0


def nurseries(loaders: Loaders) -> list[psutil.Process]:
    """The living nursery, alone in its list, once it is ready; an empty list while there is none."""
    return [child for child in _children(loaders) if _is_nursery(child)]


def _children(loaders: Loaders) -> list[psutil.Process]:
    """The nursery or its successor, which need not be ready: nothing else is a child of the supervisor itself."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return [child for child in psutil.Process(loaders.process.pid).children() if _lives(child)]
    return []


def _is_nursery(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return " ".join(process.cmdline()).split() == ["loader-server", "nursery"]
    return False


def _lives(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


def kill_nursery(loaders: Loaders) -> float:
    """Kill it; how long it took until there was another one."""
    (victim,) = nurseries(loaders)
    victim.kill()
    killed_s = time.monotonic()
    wait_until(
        lambda: loaders.process.poll() is not None or any(new.pid != victim.pid for new in nurseries(loaders)),
        "there is another nursery, or the supervisor has ended",
    )
    return time.monotonic() - killed_s


@contextlib.contextmanager
def stopped(process: psutil.Process) -> Iterator[None]:
    """Stop a process for the length of a block; it may be killed meanwhile."""
    process.suspend()
    try:
        yield
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.resume()


@pytest.mark.slow
@pytest.mark.fault(57)
def test_a_killed_nursery_has_a_successor_and_all_that_it_had_forked_come_back(tmp_path: Path, read) -> None:
    """A worker that is stopped, and so deaf to SIGTERM, is ended as well. Nothing of the old family lives on."""
    with running(write_job(tmp_path, samples=250)) as loaders:
        calm = read(loaders, stream="dev")
        coordinator, workers = loaders.coordinator(), loaders.workers()
        trained, rest = [], []
        with (
            trainer_client.connect(loaders.endpoint) as feed,
            trainer_client.connect(loaders.endpoint, stream="dev") as other,
            other.open() as reading,
        ):
            rest.append(next(reading))
            for batch in feed:
                trained.append(batch.number)
                feed.trained()
                if len(trained) == 3:
                    workers[0].suspend()
                    gap_s = kill_nursery(loaders)
            rest += reading
        assert trained == list(range(len(trained)))
        assert len(trained) > 6
        assert [(batch.number, batch.digest) for batch in rest] == calm
        assert not any(map(_lives, [coordinator, *workers]))
        wait_until(lambda: len(ask(loaders.endpoint)["workers"]) == 2, "both workers are registered again")
        assert loaders.coordinator().pid != coordinator.pid
        assert read(loaders, stream="dev") == calm
        assert gap_s < _NURSERY_S + SLACK_S
        assert loaders.close() == 0


@pytest.mark.slow
@pytest.mark.fault(57)
def test_the_fifth_death_of_a_nursery_in_a_minute_ends_the_machine_with_the_reason(tmp_path: Path) -> None:
    loaders = Loaders(write_job(tmp_path, samples=20), workers=1)
    try:
        family = psutil.Process(loaders.process.pid).children(recursive=True)
        for number in range(5):  # at once: on a slow machine a minute is soon over
            wait_until(lambda: _children(loaders), f"there is a nursery after {number} deaths")
            (victim,) = _children(loaders)
            victim.kill()
            wait_until(lambda victim=victim: not _lives(victim), "it is dead")
        assert loaders.process.wait(60) == 1
        assert "5 times in a minute, at last by signal SIGKILL" in loaders.text()
        wait_until(lambda: not any(map(_lives, family)), "all have ended")
    finally:
        loaders.close()


@pytest.mark.slow
@pytest.mark.fault(57)
@pytest.mark.parametrize("lacks_worker", [False, True])
def test_a_machine_ends_in_time_though_its_nursery_is_stopped(tmp_path: Path, lacks_worker: bool) -> None:
    """Also while it waits for a worker to be forked."""
    loaders = Loaders(write_job(tmp_path, samples=60))
    (nursery,) = nurseries(loaders)
    family = psutil.Process(loaders.process.pid).children(recursive=True)
    with trainer_client.connect(loaders.endpoint) as feed, feed.open() as reading:
        next(reading)
        if lacks_worker:
            loaders.workers()[0].kill()
            wait_until(lambda: "died and is started again" in loaders.text(), "a worker is to be started again")
        with stopped(nursery):
            loaders.process.send_signal(signal.SIGTERM)
            told_s = time.monotonic()
            assert loaders.process.wait(60) == 0
            assert time.monotonic() - told_s < _END_S + SLACK_S
    wait_until(lambda: not any(map(_lives, family)), "all have ended")
