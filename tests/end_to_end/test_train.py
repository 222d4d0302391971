"""`trainer-client train` as its user meets it: a module, loaders, checkpoints; killed, ended by signals, resumed."""

from __future__ import annotations

import re
import signal
import socket
import urllib.error
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import trainer_client
from loader_server.commands import status
from tests.support.loaders import running, wait_until, write_job
from tests.support.programs import Program
from tests.support.scraping import fetch_metrics, read_targets
from tests.support.summary_files import scalars
from trainer_client.training.checkpoints.checkpoint_folder import CheckpointFolder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MODULE = """
import os
import time

import keras
import tensorflow as tf


class MeanLevel(keras.layers.Layer):
    def call(self, audio):
        return keras.ops.mean(audio, axis=1)


def model(units=4):
    return keras.Sequential(
        [MeanLevel(), keras.layers.Dense(units), keras.layers.Dropout(0.2, seed=3), keras.layers.Dense(1)]
    )


loss = "mse"


def optimizer(rate=0.01):
    return keras.optimizers.Adagrad(rate)


def eval_metrics():
    return [keras.metrics.MeanAbsoluteError(name="error")]


class Slow(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.2)


def slow():
    return [Slow()]


def held(steps):
    class Held(keras.callbacks.Callback):
        done = 0

        def on_train_batch_end(self, batch, logs=None):
            self.done += 1
            while self.done > steps and not os.path.exists("go on"):
                time.sleep(0.02)

    return [Held()]


def callbacks():
    class Tell(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            print("callback:", epoch, sorted(logs), flush=True)

    return [Tell()]


class Infinite(keras.layers.Layer):
    def call(self, audio):
        return keras.ops.mean(audio, axis=1) * float("inf")


def broken():
    return keras.Sequential([Infinite(), keras.layers.Dense(1)])


feed_keys = {"inputs": "audio", "targets": "audio_length", "weights": "weight"}
"""
SAMPLES = 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("train")
    write_job(folder, samples=SAMPLES, longest_s=0.5, budget="2 s")
    (folder / "levels.py").write_text(MODULE)
    (folder / "slow_levels.py").write_text("from levels import *\n\ncallbacks = slow\n")
    (folder / "held_levels.py").write_text("from levels import *\n\ncallbacks = held\n")
    with (folder / "job.toml").open("a") as job:
        job.write(
            '\n[streams.test]\nlike = "train"\nmode = "queue"\n[streams.again]\nlike = "train"\nevaluation = false\n'
            '[streams.pairs]\nlike = "train"\nevaluation = false\n'
        )
    return folder


@pytest.fixture(scope="module")
def endpoint(folder: Path) -> Iterator[str]:
    with running(folder / "job.toml", workers=1) as loaders:
        yield loaders.endpoint


def start(folder: Path, endpoint: str, command: str, *arguments: str) -> Program:
    return Program(folder, command, "--feed", endpoint, "--model", "levels", *arguments)


def ended(program: Program, code: int = 0) -> tuple[list[str], str]:
    with program:
        got, said, complained = program.ended(180)
    assert got == code, (said, complained)
    return said.splitlines(), complained


def saved(folder: Path) -> tuple[list[Any], dict[str, Any]]:
    found = CheckpointFolder(folder, 3).read_last()
    assert found is not None
    arrays, record = found
    return [arrays[str(at)] for at in range(len(arrays))], record


def results(endpoint: str, stream: str) -> dict[str, Any]:
    found: dict[str, Any] = status.ask(endpoint)["streams"][stream]["results"]
    return found


def ahead(logs: Path) -> dict[str, list[float]]:
    """What a run's summaries say of the batches before its model."""
    names = ("batches_ready", "batches_staged")
    return {name: [one.value for one in scalars(logs) if one.name == name] for name in names}


@pytest.mark.timeout(300)
@pytest.mark.heritage("E5")
@pytest.mark.heritage("E7")
@pytest.mark.heritage("E11")
@pytest.mark.heritage("E19")
@pytest.mark.heritage("L7")
@pytest.mark.heritage("T11")
def test_one_module_is_trained_judged_exported_evaluated_and_predicted_with(folder: Path, endpoint: str) -> None:
    checkpoints, logs, exported = folder / "checkpoints", folder / "logs", folder / "model.keras"
    arguments = ("--checkpoint", str(checkpoints), "--param", "units=3", "--seed", "7", "--log-every", "5")
    lines, _ = ended(
        start(
            folder, endpoint, "train", *arguments, "--epochs", "2", "--validate", "dev", "--validate-every", "2",
            "epochs", "--summaries", str(logs), "--export", str(exported), "--save-every", "4", "steps", "--keep", "2",
        )
    )  # fmt: skip
    arrays, record = saved(checkpoints)
    assert (3, 1) in [array.shape for array in arrays], "the model has as many units as --param says"
    epoch_steps = record["step"] // 2
    assert lines[0] == "STARTING: training train from epoch 0, step 0, until 2 epochs"
    steps = [int(found[1]) for line in lines if (found := re.match(r"epoch [\d.]+, step (\d+): loss [\d.]+", line))]
    assert steps == list(range(5, 2 * epoch_steps + 1, 5))
    told = next(line for line in lines if ", step 5: " in line)
    assert re.fullmatch(
        rf"epoch {5 / epoch_steps:.2f}, step 5: loss [\d.]+, [\d.]+ steps/s, waiting [\d.]+%, padding [\d.]+%, "
        r"[\d:]+ left",
        told,
    )
    assert "callback: 0 ['loss']" in lines
    assert "callback: 1 ['loss', 'val_dev_error', 'val_dev_loss']" in lines
    assert any(line.startswith(f"dev at step {2 * epoch_steps}, after 2 epochs: loss ") for line in lines)
    assert lines[-2].startswith(f"FINISHED: 2 epochs, {2 * epoch_steps} steps, {2 * SAMPLES} samples, ")
    assert lines[-1] == f"EXPORTED: {exported}"
    assert len(list(checkpoints.glob("*.npz"))) == 2
    assert exported.stat().st_size > 1000
    assert [len(values) for values in ahead(logs).values()] == [2 * epoch_steps // 5] * 2
    wait_until(lambda: results(endpoint, "train")["ended"] == "2 epochs are reached", "its end is known")
    assert results(endpoint, "dev")["rows"] == SAMPLES
    others = ("--checkpoint", str(checkpoints), "--param", "units=3")
    evaluating = start(folder, endpoint, "evaluate", *others, "--json")
    predicting = start(folder, endpoint, "predict", *others, "--stream", "test", "--output", str(folder / "out.jsonl"))
    lines, _ = ended(evaluating)
    assert f'"step": {2 * epoch_steps}' in lines[0]
    ended(predicting)
    assert len((folder / "out.jsonl").read_text().splitlines()) == SAMPLES


@pytest.mark.heritage("L12")
def test_a_run_begins_with_a_part_of_another_model_and_says_what_was_not_taken(folder: Path, endpoint: str) -> None:
    """It has more units: all is refused, the layer that fits is taken when it is named, and later runs go on."""
    source, own = folder / "pretrained", folder / "tuned"
    stream = ("--stream", "again", "--save-every", "1", "steps")
    ended(start(folder, endpoint, "train", *stream, "--checkpoint", str(source), "--param", "units=3", "--steps", "2"))
    arrays, record = saved(source)
    how = (*stream, "--checkpoint", str(own), "--param", "units=4", "--initial", str(source))
    _, complained = ended(start(folder, endpoint, "train", *how, "--steps", "1"), 1)
    assert "other shapes: " in complained
    assert "name it behind the file" in " ".join(complained.split())
    assert not list(own.glob("*.npz"))
    (fits,) = [
        name for name, at in zip(record["names"], arrays, strict=False) if name.endswith("bias") and at.size == 1
    ]
    lines, _ = ended(start(folder, endpoint, "train", *how, fits, "--steps", "1"))
    assert lines[0].startswith(f"LOADED: 1 of 4 variables from {source}/0000000")
    assert lines[1] == "STARTING: training again from epoch 0, step 0, until 1 steps"
    lines, _ = ended(start(folder, endpoint, "train", *how, fits, "--steps", "2"))
    assert lines[0] == "STARTING: training again from epoch 0, step 1, until 2 steps"
    _, complained = ended(start(folder, endpoint, "train", *how[:-1], str(folder / "nowhere"), "--steps", "9"), 2)
    assert "nowhere: expected a folder of checkpoints" in " ".join(complained.split())


#: Modules that cannot be trained: what each holds, and what `train` says of it.
FAULTY = {
    "unimportable": ("import no_such_module_of_levels", "to be importable"),
    "modelless": ("loss = 'mse'", "expected model in modelless"),
    "raising": ("from levels import *\n\ndef model():\n    raise ValueError('three layers')", "three layers"),
    "keyless": ("from levels import *\n\nfeed_keys = {'input': 'audio'}", "expected feed_keys"),
}


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", FAULTY)
def test_a_faulty_module_takes_the_rank_from_nobody(folder: Path, endpoint: str, name: str) -> None:
    source, complaint = FAULTY[name]
    (folder / f"{name}.py").write_text(source + "\n")
    with trainer_client.connect(endpoint) as feed:
        batches = iter(feed)
        next(batches)
        arguments = ("--checkpoint", str(folder / name), "--epochs", "1", "--model", name)
        with Program(folder, "train", "--feed", endpoint, *arguments) as program:
            code, _, complained = program.ended(120)
        assert code != 0
        assert complaint in " ".join(complained.split())
        assert sum(1 for _ in batches) > 0, "the live trainer still has its rank"


@pytest.mark.timeout(300)
def test_killed_and_told_to_end_it_goes_on_and_the_weights_are_those_of_an_unbroken_run_of_that_seed(
    folder: Path, endpoint: str
) -> None:
    target = ("--seed", "5", "--epochs", "3", "--log-every", "1")
    whole = start(folder, endpoint, "train", "--checkpoint", str(folder / "whole"), "--stream", "again", *target)
    broken = ("--checkpoint", str(folder / "broken"), "--save-every", "1", "steps", *target)

    def until_step(step: int, number: signal.Signals, code: int, there: int = 0) -> int:
        """The signal comes in the step after this one, which waits for it."""
        held = ("--model", "held_levels", "--param", f"steps={step - there}")
        process = start(folder, endpoint, "train", *broken, *held)
        process.wait_for_text(f", step {step}: ")
        process.send_signal(number)
        (folder / "go on").touch()
        lines, _ = ended(process, code)
        assert not any(line.startswith("FINISHED") for line in lines)
        return int(saved(folder / "broken")[1]["step"])

    killed_at = until_step(4, signal.SIGKILL, -9)
    assert killed_at >= 3
    (folder / "go on").unlink()
    assert until_step(9, signal.SIGTERM, 143, killed_at) >= 9
    lines, _ = ended(start(folder, endpoint, "train", *broken))
    ended(whole)
    one, other = saved(folder / "whole"), saved(folder / "broken")
    steps = one[1]["step"]
    assert steps == other[1]["step"] > 12
    assert lines[-1].startswith(f"FINISHED: 3 epochs, {steps} steps, {3 * SAMPLES} samples, ")
    for left, right in zip(one[0], other[0], strict=True):
        np.testing.assert_array_equal(left, right)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.heritage("T9")
@pytest.mark.heritage("T11")
def test_two_towers_of_one_process_are_killed_go_on_and_are_judged_and_exported(folder: Path, endpoint: str) -> None:
    checkpoints, exported = folder / "mirrored", folder / "mirrored-model"
    towers = ("--strategy", "mirrored", "--replicas", "2", "--checkpoint", str(checkpoints), "--stream", "pairs")
    target = ("--validate", "dev", "--log-every", "1", "--export", str(exported), "--model", "slow_levels")
    killed = start(folder, endpoint, "train", *towers, *target, "--epochs", "999", "--save-every", "1", "steps")
    killed.wait_for_text(", step 3: ")
    killed.send_signal(signal.SIGKILL)
    ended(killed, -9)
    done = saved(checkpoints)[1]
    epochs = done["epoch"] + 2  # however late the kill came, there is more than an epoch left
    more = ("--all-reduce", "nccl", "--summaries", str(folder / "towers"), "--epochs", "+2")
    lines, _ = ended(start(folder, endpoint, "train", *towers, *target, *more))
    assert lines[:2] == [
        "STRATEGY: mirrored: 2 replicas on CPU:0, CPU:1; gradients by cpu, because nccl needs all replicas on GPUs, "
        "and they are on 2 x CPU",
        f"STARTING: training pairs from epoch {done['epoch']}, step {done['step']}, until {epochs} epochs",
    ]
    assert f", {epochs * SAMPLES} samples, " in lines[-2]
    assert all(max(values) > 0 for values in ahead(folder / "towers").values())
    assert any(line.startswith("dev at step ") for line in lines)
    assert exported.is_dir()
    alone = ("--checkpoint", str(checkpoints), "--param", "units=4")
    lines, _ = ended(start(folder, endpoint, "evaluate", *alone, "--json"))
    assert f'"step": {saved(checkpoints)[1]["step"]}' in lines[0]


@pytest.mark.heritage("T3")
@pytest.mark.heritage("T4")
@pytest.mark.heritage("T5")
def test_what_devices_cannot_do_is_refused_or_replaced_with_the_reason(folder: Path, endpoint: str) -> None:
    towers = ("--checkpoint", str(folder / "none"), "--epochs", "1", "--strategy", "mirrored", "--replicas", "2")
    ring = start(folder, endpoint, "train", *towers, "--all-reduce", "ring")
    tree = start(folder, endpoint, "train", *towers, "--all-reduce", "hierarchical")
    spread = ("--stream", "pairs", "--variables", "gpu", "--combine", "sum")
    central = start(folder, endpoint, "train", *towers, "--steps", "2", "--strategy", "central", *spread)
    lines, _ = ended(central)
    assert lines[0] == (
        "STRATEGY: central: 2 towers on CPU:0, CPU:1; variables on CPU:0 (cpu, because no tower is on a GPU); "
        "gradients times 2"
    )
    assert "2 steps are reached" in lines[-1]
    assert "got ring. TensorFlow has no ring within one process" in ended(ring, 1)[1]
    assert "expected 8 devices or more, over which it copies in two groups, got 2" in ended(tree, 1)[1]


@pytest.mark.heritage("E6")
def test_gradients_that_stay_infinite_end_training_with_the_batch_that_they_come_of(
    folder: Path, endpoint: str
) -> None:
    arguments = ("--checkpoint", str(folder / "infinite"), "--epochs", "1", "--retries", "3")
    process = start(folder, endpoint, "train", *arguments, "--model", "levels:broken", "--log-level", "warning")
    lines, complained = ended(process, 1)
    assert lines == ["STARTING: training train from epoch 0, step 0, until 1 epochs"]
    assert complained.count("gradients are not finite") == 4
    assert (
        "batch 0 of epoch 0 of train, step 0: expected finite loss and gradients, got others in each of 4" in complained
    )
    assert "loader-server show JOB --stream train --epoch 0 --batch 0" in complained


@pytest.mark.heritage("E13")
@pytest.mark.heritage("T11")
def test_how_long_each_phase_takes_is_a_metric_while_it_trains(folder: Path, endpoint: str) -> None:
    targets, token = folder / "port", folder / "token"
    token.write_text("0123456789abcdef\n")
    with socket.create_server(("", 0)) as free:
        port = free.getsockname()[1]
    arguments = ("--checkpoint", str(folder / "measured"), "--model", "slow_levels", "--max-time", "600")
    process = start(
        folder, endpoint, "train", *arguments,
        "--metrics-listen", f"0.0.0.0:{port}", str(targets), "--metrics-token", str(token),
        "--save-every", "2", "steps", "--log-every", "1",
    )  # fmt: skip
    with process:
        process.wait_for_text(", step 4: ")
        wait_until(lambda: list(targets.glob("*.json")), "the port of the metrics")
        (target,) = read_targets(targets).values()
        assert target["address"] == f"127.0.0.1:{port}"
        with pytest.raises(urllib.error.HTTPError, match="401") as refused:
            fetch_metrics(target["address"])
        refused.value.close()
        staged = ("stoker_staged_batches", (("stream", "train"),))
        wait_until(
            lambda: fetch_metrics(target["address"], "0123456789abcdef")[staged] > 0, "batches that TensorFlow has"
        )
        found = fetch_metrics(target["address"], "0123456789abcdef")
        process.send_signal(signal.SIGTERM)
        _, complained = ended(process, 143)
    words = complained.splitlines()[-1]
    assert re.fullmatch(rf"trainer-client: terminated: saved {folder}/measured/\d+\.npz, step \d+", words)
    phases = {
        dict(labels)["phase"]: value for (name, labels), value in found.items() if name == "stoker_phase_seconds_total"
    }
    assert phases.keys() == {"warm_up", "step", "checkpoint"}
    assert min(phases.values()) > 0
    assert found["stoker_step_wait_seconds_total", (("stream", "train"),)] > 0
    assert found["stoker_retraces_total", (("stream", "train"),)] == 0


def test_what_the_module_lacks_is_named_with_an_example(folder: Path, endpoint: str) -> None:
    (folder / "lacking.py").write_text(MODULE.replace("def optimizer", "def optimiser"))
    arguments = ("--checkpoint", str(folder / "none"), "--epochs", "1", "--model", "lacking")
    _, complained = ended(start(folder, endpoint, "train", *arguments), 1)
    assert 'expected optimizer in lacking, perhaps "optimiser", got nothing of that name' in complained
    assert "def optimizer(rate=1e-3):\n    return keras.optimizers.Adam(rate, clipnorm=1.0)" in complained
