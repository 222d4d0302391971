"""`--strategy parameter-server --validate`: every worker takes evaluation work between its training batches."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import trainer_client
from loader_server.commands import status
from shared.quick_import import quick_import
from tests.support.loaders import running, wait_until, write_job
from tests.support.served_cluster import ServedCluster
from trainer_client.training.checkpoints.checkpoint_folder import CheckpointFolder

with quick_import():
    import keras

    from trainer_client.training.evaluating.evaluator import Evaluator

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MODULE = """
import json
import os
import pathlib
import time

import keras
import tensorflow as tf


def paced(level, trains):
    task = json.loads(os.environ.get("TF_CONFIG", '{"task": {"type": "alone", "index": 0}}'))["task"]
    pathlib.Path(f"{task['type']}-{task['index']}-{'trains' if trains else 'evaluates'}").touch()
    time.sleep(float(os.environ.get("STEP_S", "0")))
    return level


class MeanLevel(keras.layers.Layer):
    def call(self, audio, training=False):
        level = keras.ops.mean(audio, axis=1)
        return tf.ensure_shape(tf.numpy_function(paced, [level, bool(training)], tf.float32), level.shape)


def model():
    audio = keras.Input((None, 40))
    level = keras.layers.BatchNormalization()(MeanLevel()(audio))
    return keras.Model(audio, keras.layers.Dense(1, kernel_initializer="ones")(level), name="levels")


loss = "mse"


def optimizer():
    return keras.optimizers.SGD(0.01)


def eval_metrics():
    return [keras.metrics.RootMeanSquaredError(name="root")]


feed_keys = {"inputs": "audio", "targets": "weight", "weights": "weight"}
"""
#: The same with a table that no worker holds: a row for each length.
TABLED = MODULE.replace(
    '    return keras.Model(audio, keras.layers.Dense(1, kernel_initializer="ones")(level), name="levels")',
    """    length = keras.Input((), dtype="int32")
    row = ServedEmbedding("lengths", 40, "normal")(length)
    both = keras.layers.Concatenate()([level, row])
    return keras.Model((audio, length), keras.layers.Dense(1, kernel_initializer="ones")(both), name="levels")""",
).replace('"inputs": "audio"', '"inputs": ("audio", "audio_length")')
TABLED = "from trainer_client.layers import ServedEmbedding\n" + TABLED
SAMPLES = 48
LINE = re.compile(r"dev at step (\d+), after (\d) epochs: loss (\S+), root (\S+) \((\d+) samples\)")
PART = re.compile(r"dev at step (\d+), after \d epochs: (\d+) batch(?:es were| was) evaluated here")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("joint")
    write_job(folder, samples=SAMPLES, longest_s=0.5, budget="1 s", stream='mode = "queue"')
    (folder / "levels.py").write_text(MODULE)
    (folder / "tabled.py").write_text(TABLED)
    return folder


@pytest.fixture(scope="module")
def endpoint(folder: Path) -> Iterator[str]:
    with running(folder / "job.toml", workers=1) as loaders:
        yield loaders.endpoint


def evaluated_here(endpoint: str, folder: Path) -> dict[str, float]:
    """The last checkpoint's values, evaluated by one process."""
    found = CheckpointFolder(folder, 3).read_last()
    assert found is not None
    audio = keras.Input((None, 40))
    level = keras.layers.BatchNormalization()(keras.layers.GlobalAveragePooling1D()(audio))
    model = keras.Model(audio, keras.layers.Dense(1)(level))
    with trainer_client.connect(endpoint, stream="dev", rank=0) as feed:
        data = feed.dataset(inputs="audio", targets="weight", weights="weight")
        arrays = [found[0][str(at)] for at in range(found[1]["model_variables"])]
        return Evaluator(model, "mse", [keras.metrics.RootMeanSquaredError(name="root")]).evaluate(data, arrays)


def parts(output: str) -> list[tuple[int, int]]:
    """Return step and batches of each evaluation that a worker took part in, as it prints."""
    found = [PART.fullmatch(line) for line in output.splitlines()]
    return [(int(line[1]), int(line[2])) for line in found if line]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.heritage("E24")
def test_each_worker_evaluates_between_its_batches_and_results_are_those_of_all_samples(
    folder: Path, endpoint: str
) -> None:
    """Each epoch's, also the last one's; by one version of the model, whose batch statistics are the chief's."""
    checkpoints = folder / "checkpoints"
    with ServedCluster(
        folder, "--model", "levels", "--feed", endpoint, "--checkpoint", str(checkpoints), "--epochs", "3",
        "--validate", "dev", servers=2, workers=2, environment={"STEP_S": "0.2"},
    ) as processes:  # fmt: skip
        for kind, index in (("ps", 0), ("ps", 1), ("worker", 1)):
            processes.start(kind, index)
        wait_until((folder / "worker-1-trains").exists, "it has warmed up, and waits for the chief", 200)
        processes.start("worker", 0)
        ended = {name: program.ended(300) for name, program in processes.running.items()}
    assert {code for code, _, _ in ended.values()} == {0}, ended
    lines = [found for line in ended["worker 0"][1].splitlines() if (found := LINE.fullmatch(line))]
    assert [line[2] for line in lines] == ["1", "2", "3"], ended["worker 0"]
    assert {line[5] for line in lines} == {str(SAMPLES)}
    took = parts(ended["worker 1"][1])
    assert [step for step, _ in took] == [int(line[1]) for line in lines], ended["worker 1"]
    batches = status.ask(endpoint)["streams"]["dev"]["batches"]
    assert all(0 < part < batches for _, part in took), "the chief and this worker have a share each"
    want = evaluated_here(endpoint, checkpoints)
    assert [float(lines[-1][at]) for at in (3, 4)] == pytest.approx([want["loss"], want["root"]], rel=1e-3)
    assert not parts(ended["worker 0"][1])


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("killed", [0, 1], ids=["the chief", "another worker"])
def test_one_that_is_killed_as_it_evaluates_leaves_no_sample_out_and_counts_none_twice(
    folder: Path, endpoint: str, killed: int
) -> None:
    """The others evaluate its batches. A chief that comes back goes on with the next epoch."""
    for path in folder.glob("worker-*"):
        path.unlink()
    checkpoints = folder / f"killed-{killed}"
    with ServedCluster(
        folder, "--model", "levels", "--feed", endpoint, "--checkpoint", str(checkpoints), "--epochs", "3",
        "--validate", "dev", servers=1, workers=2, environment={"STEP_S": "0.3"},
    ) as processes:  # fmt: skip
        processes.start_all()
        marks = [folder / f"worker-{at}-evaluates" for at in range(2)]
        for at, mark in enumerate(marks):
            wait_until((folder / f"worker-{at}-trains").exists, "it has warmed up", 200)
            mark.unlink(missing_ok=True)  # building the model is no evaluation
        wait_until(lambda: all(mark.exists() for mark in marks), "both evaluate", 200)
        before = processes.running["worker 0"].output()
        processes.kill(f"worker {killed}")
        processes.start("worker", killed)
        ended = {name: program.ended(300) for name, program in processes.running.items()}
    assert {code for code, _, _ in ended.values()} == {0}, ended
    lines = [found for line in (before + ended["worker 0"][1]).splitlines() if (found := LINE.fullmatch(line))]
    assert lines[-1][2] == "3"
    assert {line[5] for line in lines} == {str(SAMPLES)}
    batches = status.ask(endpoint)["streams"]["train"]["batches"]
    assert int(lines[-1][1]) == 3 * batches
    want = evaluated_here(endpoint, checkpoints)
    assert [float(lines[-1][at]) for at in (3, 4)] == pytest.approx([want["loss"], want["root"]], rel=1e-3)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_workers_evaluate_rows_of_a_table_of_the_same_cut(folder: Path, endpoint: str) -> None:
    for path in folder.glob("worker-*"):
        path.unlink()
    checkpoints = folder / "tabled"
    words = ("--model", "tabled", "--feed", endpoint, "--checkpoint", str(checkpoints))
    with ServedCluster(
        folder, *words, "--epochs", "2", "--validate", "dev", servers=2, workers=2, environment={"STEP_S": "0.2"}
    ) as processes:
        for kind, index in (("ps", 0), ("ps", 1), ("worker", 1)):
            processes.start(kind, index)
        wait_until((folder / "worker-1-trains").exists, "it has warmed up, and waits for the chief", 200)
        processes.start("worker", 0)
        ended = {name: program.ended(300) for name, program in processes.running.items()}
    assert {code for code, _, _ in ended.values()} == {0}, ended
    lines = [found for line in ended["worker 0"][1].splitlines() if (found := LINE.fullmatch(line))]
    assert [(line[2], line[5]) for line in lines] == [("1", str(SAMPLES)), ("2", str(SAMPLES))], ended["worker 0"]
    assert [step for step, _ in parts(ended["worker 1"][1])] == [int(line[1]) for line in lines], ended["worker 1"]
    command = [sys.executable, "-m", "trainer_client", "evaluate", *words, "--json"]
    alone = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200, check=False)
    assert alone.returncode == 0, alone
    loss = json.loads(alone.stdout.splitlines()[-1])["values"]["loss"]
    assert loss == pytest.approx(float(lines[-1][3]), rel=1e-3)
