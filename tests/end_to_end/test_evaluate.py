"""`trainer-client evaluate` as its user meets it: a module, a folder of checkpoints, loaders; once, and following."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

import trainer_client
from loader_server.commands import status
from tests.support.loaders import running, wait_until, write_job
from tests.support.programs import Program
from tests.support.summary_files import scalars
from tests.support.two_devices import mirrored  # devices are set before TensorFlow starts

import keras  # isort: skip - after the devices are set

from trainer_client.training.checkpoints.checkpoint_folder import CheckpointFolder  # isort: skip
from trainer_client.training.evaluating.evaluator import Evaluator  # isort: skip

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MODULE = """
import keras


class MeanLevel(keras.layers.Layer):
    def call(self, audio):
        return keras.ops.mean(audio, axis=1)


def model(units=1):
    return keras.Sequential([MeanLevel(), keras.layers.Dense(units)])


loss = "mse"


def eval_metrics():
    return [keras.metrics.MeanAbsoluteError(name="error")]


feed_keys = {"inputs": "audio", "targets": "audio_length", "weights": "weight"}
"""
#: Two inputs and no targets.
PAIRS = """
import keras


class Frames(keras.layers.Layer):
    def call(self, inputs):
        audio, length = inputs
        return keras.ops.sum(keras.ops.ones_like(audio[:, :, 0]), axis=1) + 0.0 * keras.ops.cast(length, "float32")


class Largest(keras.metrics.Metric):
    def __init__(self):
        super().__init__(name="largest")
        self.value = self.add_weight(shape=(), initializer="zeros", name="value")

    def update_state(self, targets, outputs, sample_weight=None):
        assert targets is None
        self.value.assign(keras.ops.maximum(self.value, keras.ops.max(outputs)))

    def result(self):
        return self.value


def model():
    return keras.Sequential([Frames()])


def eval_metrics():
    return [Largest()]


feed_keys = {"inputs": ("audio", "audio_length")}
"""
SAMPLES = 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("evaluate")
    write_job(folder, samples=SAMPLES, longest_s=0.5)
    (folder / "levels.py").write_text(MODULE)
    (folder / "pairs.py").write_text(PAIRS)
    with (folder / "job.toml").open("a") as job:
        job.write('\n[streams.test]\nlike = "train"\norder = "sorted"\n')
    return folder


@pytest.fixture(scope="module")
def endpoint(folder: Path) -> Iterator[str]:
    with running(folder / "job.toml", workers=1) as loaders:
        yield loaders.endpoint


def start(folder: Path, endpoint: str, *arguments: str) -> Program:
    return Program(folder, "evaluate", "--feed", endpoint, *arguments)


class WaitForEvaluation(keras.callbacks.Callback):
    """After the first epoch, training goes on once an earlier checkpoint was evaluated."""

    def __init__(self, evaluator: Program) -> None:
        super().__init__()
        self._evaluator = evaluator

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if epoch == 0:
            self._evaluator.wait_for_lines(2)


def train(endpoint: str, folder: Path, *callbacks: Any) -> None:
    model = keras.Sequential([keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with trainer_client.connect(endpoint) as feed:
        data = feed.dataset(inputs="audio", targets="audio_length", weights="weight")
        model.fit(
            data, epochs=2, verbose=0, callbacks=[trainer_client.FeedCheckpoint(feed, folder, every=1), *callbacks]
        )


def judged_here(endpoint: str, folder: Path) -> dict[str, float]:
    """What an evaluator in this process says of the last checkpoint."""
    found = CheckpointFolder(folder, 1).read_last()
    assert found is not None
    model = keras.Sequential([keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(1)])
    with trainer_client.connect(endpoint, stream="dev", rank=0) as feed:
        data = feed.dataset(inputs="audio", targets="audio_length", weights="weight")
        arrays = [found[0][str(at)] for at in range(found[1]["model_variables"])]
        return Evaluator(model, "mse", [keras.metrics.MeanAbsoluteError(name="error")]).evaluate(data, arrays)


@pytest.mark.heritage("E8")
@pytest.mark.heritage("L9")
@pytest.mark.heritage("R14")
def test_each_new_checkpoint_is_evaluated_on_all_streams_until_training_ends(folder: Path, endpoint: str) -> None:
    checkpoints, logs = folder / "followed", folder / "logs"
    streams = ("--stream", "dev", "--stream", "test", "--param", "units=1")
    with start(
        folder, endpoint, "--model", "levels", "--checkpoint", str(checkpoints), *streams, "--follow", "--json",
        "--summaries", str(logs),
    ) as process:  # fmt: skip
        train(endpoint, checkpoints, WaitForEvaluation(process))
        code, said, complained = process.ended()
    assert code == 0, complained
    lines: list[dict[str, Any]] = [json.loads(line) for line in said.splitlines()]
    assert len(lines) >= 4
    assert [line["stream"] for line in lines] == ["dev", "test"] * (len(lines) // 2)
    steps = [line["step"] for line in lines]
    assert steps == sorted(steps)
    assert steps[0] < steps[-1]
    wait_until(lambda: status.ask(endpoint)["streams"]["test"]["results"]["step"] == steps[-1], "the last one is shown")
    shown = status.ask(endpoint)["streams"]["test"]["results"]
    assert shown["rows"] == SAMPLES
    assert shown["values"]["loss"] == lines[-1]["values"]["loss"]
    last, want = lines[-2], judged_here(endpoint, checkpoints)
    assert (last["epoch"], last["values"]["rows"]) == (2, SAMPLES)
    assert last["values"] == pytest.approx(want, rel=1e-4)
    names = ("loss", "error", "rows")
    written = [(one.name, one.step) for one in scalars(logs)]
    assert sorted(written) == sorted((f"{one['stream']}/{name}", one["step"]) for one in lines for name in names)


def test_once_it_says_what_it_found_or_what_is_missing(folder: Path, endpoint: str) -> None:
    train(endpoint, folder / "once")
    with start(folder, endpoint, "--model", "levels", "--checkpoint", str(folder / "once")) as process:
        code, said, complained = process.ended()
    assert code == 0, complained
    begin, first, last = said.splitlines()
    assert begin == f"STARTING: evaluating dev with the checkpoints in {folder / 'once'}"
    want = judged_here(endpoint, folder / "once")
    assert first.startswith("dev at step ")
    assert first.endswith(f", after 2 epochs: loss {want['loss']:.4f}, error {want['error']:.4f} ({SAMPLES} samples)")
    assert last.startswith(f"FINISHED: 1 checkpoints, {SAMPLES} samples, 0:0")


def test_several_inputs_without_targets_are_all_inputs(folder: Path, endpoint: str) -> None:
    """Keras would take the second for the targets."""
    CheckpointFolder(folder / "pairs", 1).write({}, {"epoch": 1, "step": 3, "model_variables": 0})
    with start(folder, endpoint, "--model", "pairs", "--checkpoint", str(folder / "pairs"), "--json") as process:
        code, said, complained = process.ended()
    assert code == 0, complained
    (line,) = map(json.loads, said.splitlines())
    assert line["values"]["rows"] >= SAMPLES
    assert line["values"]["largest"] > 0


def test_a_stream_that_is_trained_on_refuses_and_goes_on(folder: Path, endpoint: str) -> None:
    with trainer_client.connect(endpoint, rank=0) as feed, feed.open() as reading:
        next(reading)
        with start(folder, endpoint, "--model", "levels", "--checkpoint", str(folder), "--stream", "train") as process:
            code, _, complained = process.ended()
        assert code == 4, complained
        assert "evaluation = true" in complained
        assert feed.state()["number"] == 0
        next(reading)


@pytest.mark.slow
def test_one_that_waits_for_a_checkpoint_notices_that_its_loaders_are_gone(folder: Path, tmp_path: Path) -> None:
    with running(write_job(tmp_path, samples=8), workers=1) as loaders:
        with start(
            folder, loaders.endpoint, "--model", "levels", "--checkpoint", str(tmp_path / "none"), "--follow",
            "--timeout-seconds", "5",
        ) as process:  # fmt: skip
            process.wait_for_lines(1)
            loaders.close()
            code, said, complained = process.ended()
        assert code == 3, complained
        assert said.startswith("STARTING: evaluating dev")
        assert "expected a coordinator that answers within 5 s" in complained
