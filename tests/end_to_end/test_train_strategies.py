"""`trainer-client train` with strategies of several processes: real ones, killed and told to end; each sample counts
once in the model that is committed.
"""

from __future__ import annotations

import re
import signal
from contextlib import ExitStack
from typing import TYPE_CHECKING

import numpy as np
import pytest

from loader_server.commands import status
from tests.support.counting_model import MODULE, counted, start_workers
from tests.support.loaders import running, wait_until, write_job
from tests.support.programs import Program

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SAMPLES = 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("strategies")
    write_job(folder, samples=SAMPLES, longest_s=0.5, budget="1 s")
    (folder / "counts.py").write_text(MODULE)
    return folder


@pytest.fixture(scope="module")
def endpoint(folder: Path) -> Iterator[str]:
    with running(folder / "job.toml", workers=1) as loaders:
        yield loaders.endpoint


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.heritage("L8")
def test_two_processes_killed_and_told_to_end_train_on_each_sample_once_an_epoch(folder: Path, endpoint: str) -> None:
    checkpoints = folder / "workers"
    words = (
        "train", "--feed", endpoint, "--model", "counts", "--param", f"samples={SAMPLES}",
        "--checkpoint", str(checkpoints),
        "--strategy", "multi-worker", "--epochs", "3", "--log-every", "1", "--validate", "dev",
        "--validate-every", "5", "steps",
    )  # fmt: skip
    slowly = ("--param", "pause_s=1", "--save-every", "1", "steps")
    with ExitStack() as stack:
        first, second = start_workers(stack, folder, 2, *words, *slowly)
        first.wait_for_text(", step 3: ")
        first.kill()
        first.ended(180)
        code, said, complained = second.ended(180)
        assert code == 3, (said, complained)
        assert "expected all 2 processes of the run" in complained
        assert "Start all of them again: they go on from the newest checkpoint." in complained
        killed_at = counted(checkpoints)[1]["step"]
        first, second = start_workers(stack, folder, 2, *words, *slowly)
        first.wait_for_text(f", step {killed_at + 3}: ")
        second.send_signal(signal.SIGTERM)
        code, said, complained = second.ended(180)
        assert code == 143, (said, complained)
        assert first.ended(180)[0] == 130, "it stops as well, after the same step"
        seen, record = counted(checkpoints)
        assert record["step"] >= killed_at + 3
        assert seen.max() - seen.min() <= 1
        first, second = start_workers(stack, folder, 2, *words)
        for one in (first, second):
            code, said, complained = one.ended(180)
            assert code == 0, (said, complained)
    assert second.output().splitlines() == [
        "STRATEGY: multi-worker: process 1 of 2, 1 of 2 replicas; gradients by ring"
    ], "the chief alone tells how it goes"
    steps = range(record["step"] + 1, counted(checkpoints)[1]["step"] + 1)
    judged = [int(one) for one in re.findall(r"^dev at step (\d+), ", first.output(), re.MULTILINE)]
    assert judged == [step for step in steps if step % 5 == 0] != []
    assert f"from epoch {record['epoch']}, step {record['step']}, until 3 epochs" in first.output()
    np.testing.assert_array_equal(counted(checkpoints)[0], np.full(SAMPLES, 3))
    np.testing.assert_array_equal(np.load(folder / "seen-0.npy"), np.load(folder / "seen-1.npy"))

    def rows() -> list[int]:
        shown = status.ask(endpoint)["streams"]
        return [shown[stream]["results"]["rows"] for stream in ("train", "dev")]

    wait_until(lambda: rows() == [SAMPLES, SAMPLES], "all samples are shown")


_DYING = """
import signal

from counts import *


class Dying(keras.metrics.Mean):
    def result(self):
        if json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().result()


def eval_metrics():
    return [Dying()]
"""


@pytest.mark.timeout(300)
def test_a_process_that_is_killed_while_it_judges_is_missed_by_the_one_that_waits(folder: Path, endpoint: str) -> None:
    (folder / "dying.py").write_text(_DYING)
    words = (
        "train", "--feed", endpoint, "--model", "dying", "--param", f"samples={SAMPLES}",
        "--checkpoint", str(folder / "judged"), "--strategy", "multi-worker", "--epochs", "2", "--validate", "dev",
    )  # fmt: skip
    with ExitStack() as stack:
        first, second = start_workers(stack, folder, 2, *words)
        assert first.ended(180)[0] == -signal.SIGKILL
        code, said, complained = second.ended(180)
    assert code == 3, (said, complained)
    assert "--strategy multi-worker: expected all 2 processes" in complained


def test_a_process_without_others_is_refused(folder: Path, endpoint: str) -> None:
    words = ("--feed", endpoint, "--model", "counts", "--checkpoint", str(folder / "alone"), "--epochs", "1")
    with Program(folder, "train", *words, "--strategy", "multi-worker", JOB_NAME="worker", WORKER_HOSTS="one:1") as one:
        code, _, complained = one.ended(180)
    assert code == 1
    assert "expected a worker of a cluster with two or more, got worker 0 of 1" in complained
