"""Evaluations by several processes: each prints what all samples come to, whoever dies or evaluates something else."""

from __future__ import annotations

import json
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import trainer_client
from tests.support.loaders import ask, running, wait_until, write_job
from tests.support.programs import Program
from tests.support.two_devices import mirrored  # devices are set before TensorFlow starts

import keras  # isort: skip - after the devices are set

from trainer_client.training.checkpoints.checkpoint_folder import CheckpointFolder  # isort: skip
from trainer_client.training.evaluating.evaluation_sums import Judged, sums_of  # isort: skip
from trainer_client.training.evaluating.evaluator import Evaluator  # isort: skip

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.loaders import Loaders

#: The process with STOPS_AT in its environment stops at so many batches, with one in hand.
MODULE = """
import os
import threading

import keras
import tensorflow as tf


class Level(keras.layers.Layer):
    calls = 0

    def call(self, audio):
        if "STOPS_AT" in os.environ:
            tf.numpy_function(self.stop, [], [])
        return keras.ops.mean(keras.ops.abs(audio), axis=(1, 2))[:, None]

    def stop(self):
        Level.calls += 1
        if Level.calls == int(os.environ["STOPS_AT"]):
            threading.Event().wait()


def model():
    return keras.Sequential([Level(), keras.layers.Dense(1, activation="sigmoid")])


loss = "binary_crossentropy"


def eval_metrics():
    return [
        keras.metrics.RootMeanSquaredError(name="rmse"),
        keras.metrics.AUC(name="auc"),
        keras.metrics.F1Score(threshold=0.5, name="f1"),
    ]


def divided(batch):
    return batch["audio"], keras.ops.cast(batch["audio_length"] > 50, "float32")[:, None], batch["weight"]


feed_keys = {"map": divided}


class Largest(keras.metrics.Metric):
    def __init__(self):
        super().__init__(name="largest")
        self.value = self.add_weight(shape=(), initializer="zeros", name="value")

    def update_state(self, targets, outputs, sample_weight=None):
        self.value.assign(keras.ops.maximum(self.value, keras.ops.max(outputs)))

    def result(self):
        return self.value


def largest():
    return [Largest()]


def fine():
    return [keras.metrics.AUC(num_thresholds=20_000, name="auc")]
"""
SAMPLES = 100
METRICS = ("loss", "rmse", "auc", "f1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("evaluations")
    write_job(folder, samples=SAMPLES, budget="4 s", transforms=("logmel",), job='heartbeat_timeout = "1 s"')
    (folder / "levels.py").write_text(MODULE)
    with (folder / "job.toml").open("a") as job:
        job.write('\nmode = "queue"\n\n[streams.alone]\nlike = "train"\norder = "sorted"\n')
        job.write('\n[streams.hasty]\nlike = "train"\norder = "sorted"\nmode = "queue"\ntries = 1\n')
    for name, step, slope in (("first", 11, 0.02), ("second", 11, -0.05)):
        arrays = {"0": np.array([[slope]], np.float32), "1": np.array([slope * 3], np.float32)}
        CheckpointFolder(folder / name, 1).write(arrays, {"epoch": 1, "step": step, "model_variables": 2})
    return folder


@pytest.fixture(scope="module")
def loaders(folder: Path) -> Iterator[Loaders]:
    with running(folder / "job.toml", workers=2) as loaders:
        yield loaders


@pytest.fixture(scope="module")
def want(folder: Path, loaders: Loaders) -> dict[str, dict[str, float]]:
    """What each model comes to in one process that has all samples."""
    found = {}
    for name in ("first", "second"):
        with start(folder, loaders, name, "--stream", "alone") as process:
            found[name] = values(process)
    assert found["first"]["rows"] == SAMPLES
    assert 0 < found["first"]["auc"] < 1
    assert 0 < found["first"]["f1"] < 1
    assert found["first"]["loss"] != pytest.approx(found["second"]["loss"], rel=0.01)
    return found


def start(folder: Path, loaders: Loaders, checkpoint: str, *arguments: str, **environment: str) -> Program:
    where = ("--feed", loaders.endpoint, "--model", "levels", "--checkpoint", checkpoint, "--json")
    return Program(folder, "evaluate", *where, *arguments, **environment)


def values(process: Program) -> dict[str, float]:
    code, said, complained = process.ended()
    assert code == 0, complained
    (line,) = map(json.loads, said.splitlines())
    found: dict[str, float] = line["values"]
    return found


def evaluating(loaders: Loaders, stream: str = "dev") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = ask(loaders.endpoint)["streams"][stream]["evaluating"]
    return found


def is_same(found: dict[str, float], want: dict[str, float]) -> bool:
    return found["rows"] == want["rows"] and all(
        abs(found[name] - want[name]) <= 1e-6 * max(1.0, abs(want[name])) for name in METRICS
    )


@pytest.mark.slow
@pytest.mark.fault(69)
@pytest.mark.parametrize("processes", [1, 2, 3])
def test_one_two_and_three_processes_of_which_one_is_killed_come_to_the_same(
    folder: Path, loaders: Loaders, want: dict[str, dict[str, float]], processes: int
) -> None:
    with ExitStack() as stack:
        killed = stack.enter_context(start(folder, loaders, "first", STOPS_AT="6"))
        wait_until(lambda: any(one["trainers"] and one["done"] >= 2 for one in evaluating(loaders)), "some are done")
        others = [stack.enter_context(start(folder, loaders, "first")) for _ in range(processes - 1)]
        killed.send_signal(signal.SIGKILL)
        assert killed.ended()[:2] == (-signal.SIGKILL, "")
        others = others or [stack.enter_context(start(folder, loaders, "first"))]
        found = [values(process) for process in others]
    assert all(is_same(one, want["first"]) for one in found), (found, want["first"])
    (shown,) = [one for one in evaluating(loaders) if one["done"]]
    assert (shown["done"], shown["given_up"]) == (shown["batches"], 0)


@pytest.mark.slow
@pytest.mark.fault(69)
def test_two_models_at_once_are_judged_apart_and_shown_apart(
    folder: Path, loaders: Loaders, want: dict[str, dict[str, float]]
) -> None:
    """Both are at the same step."""
    with start(folder, loaders, "first") as one, start(folder, loaders, "second") as other:
        found = {"first": values(one), "second": values(other)}
    for name, came_to in found.items():
        assert is_same(came_to, want[name]), (name, came_to, want[name])
    shown = ask(loaders.endpoint)["streams"]["dev"]["evaluations"]
    losses = {round(one["values"]["loss"], 5) for one in shown}
    assert losses == {round(want[name]["loss"], 5) for name in want}
    assert {(one["rows"], one["step"]) for one in shown} == {(SAMPLES, 11)}


@pytest.mark.slow
@pytest.mark.fault(69)
def test_what_lacks_batches_is_called_a_share_and_is_no_success(folder: Path, loaders: Loaders) -> None:
    where = ("--feed", loaders.endpoint, "--model", "levels", "--checkpoint", "first", "--stream", "hasty")
    with Program(folder, "evaluate", *where, "--json") as process:
        name = json.loads(process.ended()[1])["evaluation"]
    with trainer_client.connect(loaders.endpoint, stream="hasty", prefetch=1) as feed:
        leases = feed._session.leases
        assert leases is not None
        leases.begin_evaluation(name, 8)
        batch = next(iter(feed))
        batch.failed()
        wait_until(lambda: evaluating(loaders, "hasty")[-1]["given_up"] == 1, "it is given up")
    with Program(folder, "evaluate", *where) as process:
        code, said, complained = process.ended()
    assert code == 1, complained
    _, judged, finished = said.splitlines()
    assert judged.endswith(f" ({SAMPLES - batch.rows} samples: a share, 1 batch was given up)")
    assert finished.endswith(": 1 of the evaluations are those of a share, as batches were given up")


@pytest.mark.slow
@pytest.mark.fault(69)
def test_the_sums_survive_the_coordinator(folder: Path, loaders: Loaders, want: dict[str, dict[str, float]]) -> None:
    with start(folder, loaders, "second", STOPS_AT="6") as killed:
        wait_until(lambda: any(one["trainers"] and one["done"] >= 2 for one in evaluating(loaders)), "some are done")
        (before,) = [one for one in evaluating(loaders) if one["trainers"]]
        loaders.coordinator().kill()
        killed.kill()
    (after,) = [one for one in evaluating(loaders) if one["evaluation"] == before["evaluation"]]
    assert after["done"] >= before["done"]
    with start(folder, loaders, "second") as process:
        found = values(process)
    assert is_same(found, want["second"]), (found, want["second"])


@pytest.mark.slow
@pytest.mark.fault(69)
def test_a_metric_that_is_no_sum_is_refused_by_name_where_it_is_shared_and_counted_where_it_is_not(
    folder: Path, loaders: Loaders
) -> None:
    with start(folder, loaders, "first", "--eval-metrics", "largest") as process:
        code, said, complained = process.ended()
    assert (code, said) == (1, "")
    assert "expected metrics whose variables are sums over batches" in complained
    assert "largest (Largest)" in complained
    with start(folder, loaders, "first", "--eval-metrics", "largest", "--stream", "alone") as process:
        assert 0.5 < values(process)["largest"] < 1


@pytest.mark.slow
@pytest.mark.fault(69)
def test_states_of_640_kb_a_batch_come_in_pieces(folder: Path, loaders: Loaders) -> None:
    fine = ("--eval-metrics", "fine")
    with start(folder, loaders, "first", *fine) as one, start(folder, loaders, "first", *fine) as other:
        found = [values(one), values(other)]
    with start(folder, loaders, "first", *fine, "--stream", "alone") as process:
        alone = values(process)
    assert [one["auc"] for one in found] == [pytest.approx(alone["auc"], rel=1e-6)] * 2
    assert [one["rows"] for one in found] == [SAMPLES] * 2


@pytest.mark.slow
@pytest.mark.fault(69)
def test_ranks_in_lockstep_come_to_the_same_as_one(
    folder: Path, loaders: Loaders, want: dict[str, dict[str, float]]
) -> None:
    found = CheckpointFolder(folder / "first", 1).read_last()
    assert found is not None
    arrays = [found[0]["0"], found[0]["1"]]
    scope: dict[str, Any] = {}
    exec(MODULE, scope)  # the module above

    def judge(rank: int) -> dict[str, float]:
        with trainer_client.connect(loaders.endpoint, stream="alone", rank=rank, world=2) as feed:
            sums = sums_of(feed._session, Judged(label="", version="", epoch=1, step=11))
            evaluator = Evaluator(scope["model"](), scope["loss"], scope["eval_metrics"]())
            return evaluator.evaluate(feed.dataset(map=scope["divided"]), arrays, sums)

    keras.backend.clear_session()
    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(judge, range(2)))
    assert both[0] == both[1]
    assert is_same(both[0], want["first"]), (both, want["first"])
