"""kill -9 of workers, coordinator, supervisor and trainer."""

from __future__ import annotations

import contextlib
import json
import signal
from pathlib import Path

import psutil
import pytest

import trainer_client
from tests.faults import kill_workers
from tests.support.behind import SLACK_S
from tests.support.forked import start_code
from tests.support.loaders import Loaders, ask, running, wait_until, write_job


@pytest.mark.slow
@pytest.mark.fault(1)
@pytest.mark.fault(2)
@pytest.mark.fault(3)
@pytest.mark.fault(11)
@pytest.mark.heritage("E18")
@pytest.mark.parametrize("way", ["shared_memory", "tcp_keys"])
def test_killing_a_worker_all_workers_and_the_coordinator_changes_nothing(way: str) -> None:
    """Three rounds here, one of each kind; `python -m tests.faults.kill_workers` does twenty."""
    total = kill_workers.run(rounds=3, seed=3, say=lambda _: None, way=way)
    gap_s = total.pop("worst_gap_s")
    assert total == {"rounds": 3, "lost": 0, "repeated": 0, "digest_mismatch": 0}
    assert gap_s < 2.0 + SLACK_S  # the heartbeat timeout, and a build


@pytest.mark.fault(11)
def test_ranks_go_on_in_step_while_the_coordinator_is_killed_and_comes_back(tmp_path: Path) -> None:
    """Both come back to the new one, from the middle of an epoch, and it goes on with what they trained."""
    with running(write_job(tmp_path, samples=250), workers=1) as loaders, contextlib.ExitStack() as stack:
        ranks = [stack.enter_context(trainer_client.connect(loaders.endpoint, rank=rank, world=2)) for rank in range(2)]
        readings = [stack.enter_context(feed.open()) for feed in ranks]
        victim, trained = loaders.coordinator(), []
        for step in range(ranks[0].rounds_left()):
            trained.append([next(reading).number for reading in readings])
            for feed in ranks:
                feed.trained()
            if step == 2:
                victim.kill()
        assert [number for numbers in trained for number in numbers] == list(range(2 * len(trained)))
        assert len(trained) > 6

        def known() -> set[tuple[int, int, int]]:
            trainers = ask(loaders.endpoint)["streams"]["train"]["trainers"]
            return {(one["rank"], one["epoch"], one["number"]) for one in trainers}

        reached = {(rank, feed.epoch, feed.number) for rank, feed in enumerate(ranks)}
        wait_until(lambda: known() == reached, "the new coordinator knows how far both ranks are")


_TRAINER = """
import json, os, sys, trainer_client
endpoint, checkpoint, die_at = sys.argv[1], sys.argv[2], int(sys.argv[3])
with trainer_client.connect(endpoint) as feed:
    committed = []
    if os.path.exists(checkpoint):
        saved = json.load(open(checkpoint))
        committed = saved["trained"]
        feed.restore(saved["cursor"])
    for batch in feed:
        committed.append(batch.number)
        feed.trained()
        if len(committed) % 4 == 0:  # model and cursor in one file, replaced whole
            with open(checkpoint + ".new", "w") as file:
                json.dump({"trained": committed, "cursor": feed.state()}, file)
            os.replace(checkpoint + ".new", checkpoint)
        if len(committed) == die_at:
            os.kill(os.getpid(), 9)
print(json.dumps(committed))
"""


@pytest.mark.fault(17)
@pytest.mark.fault(32)
@pytest.mark.heritage("D8")
def test_a_trainer_killed_in_a_step_goes_on_at_its_checkpoint(tmp_path: Path) -> None:
    with running(write_job(tmp_path, samples=250)) as loaders:
        for die_at in (3, 6, 9, 0):
            trainer = start_code(_TRAINER, loaders.endpoint, str(tmp_path / "checkpoint"), str(die_at))
            said, errors = trainer.communicate(100)
            assert trainer.returncode == (-signal.SIGKILL if die_at else 0), errors
        committed = json.loads(said)
    assert committed == list(range(len(committed)))
    assert len(committed) > 9


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_the_supervisors_end_is_the_end_of_all(tmp_path: Path, number: signal.Signals) -> None:
    loaders = Loaders(write_job(tmp_path, samples=20))
    family = [psutil.Process(loaders.process.pid), *psutil.Process(loaders.process.pid).children(recursive=True)]
    assert len(family) == 5  # with the nursery
    assert not any("/dev/shm" in Path(f"/proc/{one.pid}/maps").read_text() for one in family)  # no name to leave behind
    loaders.process.send_signal(number)
    assert loaders.process.wait(60) == (-9 if number is signal.SIGKILL else 0)
    wait_until(lambda: not any(map(_lives, family)), "all have ended")
    with running(tmp_path / "job.toml"):  # and nothing that is left is in the way
        pass


def _lives(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


@pytest.mark.fault(30)
@pytest.mark.heritage("D13")
def test_a_worker_that_is_told_to_end_drains(tmp_path: Path, read) -> None:
    with running(write_job(tmp_path, transforms=("tests.support.transforms:slow", "logmel", "characters"))) as loaders:
        calm = read(loaders)
        victim = loaders.workers()[0]
        got = []
        with trainer_client.connect(loaders.endpoint) as feed:
            for batch in feed:
                got.append((batch.number, batch.digest))
                if len(got) == 2:
                    victim.send_signal(signal.SIGTERM)
        assert got == calm
        wait_until(lambda: not victim.is_running(), "it has ended")
        wait_until(lambda: '"cause": "exit 0"' in loaders.text(), "its parent has told so")
