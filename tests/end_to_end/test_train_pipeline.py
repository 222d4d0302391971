"""`trainer-client train` on a stream that is a pipeline of the user's: one module for workers and trainer; stopped in
an epoch, resumed, exported, and trained on by several replicas.
"""

from __future__ import annotations

import re
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests.support.counting_model import start_workers
from tests.support.loaders import running
from tests.support.programs import Program
from trainer_client.training.checkpoints.checkpoint_folder import CheckpointFolder

if TYPE_CHECKING:
    from pathlib import Path

LINES, ROWS, PRODUCERS, EPOCHS = 50, 4, 2, 2
#: Of one epoch: each producer has half of the lines.
STEPS = PRODUCERS * -(-LINES // PRODUCERS // ROWS)

_JOB = f"""
[job]
name = "sentences"
seed = 5
group = 2
listen = "tcp://127.0.0.1:*"

[streams.sentences]
source = "lines"
paths = ["text.txt"]
transforms = ["characters"]
length = "text"
budget = "100 characters"

[streams.train]
source = "pipeline"
pipeline = "lengths:dataset_pipeline"
base = "sentences"
producers = {PRODUCERS}
max_rows = {ROWS}
"""
_MODULE = """
import tensorflow as tf


def dataset_pipeline(context):
    data = context.padded_batch(context.add_lengths(context.base_dataset.shuffle(50)))
    data = context.map_producer_to_consumer(data)
    return data.map(lambda batch: (batch["text"], tf.cast(batch["text_length"], tf.float32)))


def model():
    import keras

    layers = [keras.layers.Embedding(64, 4), keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(1)]
    return keras.Sequential(layers)


loss = "mse"


def optimizer():
    import keras

    return keras.optimizers.Adagrad(1.0)
"""


def _train(folder: Path, endpoint: str, *arguments: str, processes: int = 1) -> list[str]:
    checkpoints = str(folder / "checkpoints")
    given = ("--feed", endpoint, "--model", "lengths", "--checkpoint", checkpoints, "--log-every", "1", *arguments)
    with ExitStack() as stack:
        if processes == 1:
            programs = [stack.enter_context(Program(folder, "train", *given))]
        else:
            programs = start_workers(stack, folder, processes, "train", *given)
        for program in programs:
            code, said, complained = program.ended(180)
            assert code == 0, (said, complained)
            assert "a step was traced again" not in complained
    return programs[0].output().splitlines()


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.heritage("E11")
def test_a_pipeline_is_trained_on_from_either_side_of_one_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "text.txt").write_text("".join(chr(97 + n % 26) * (1 + n % 7) + "\n" for n in range(LINES)))
    (tmp_path / "job.toml").write_text(_JOB)
    (tmp_path / "lengths.py").write_text(_MODULE)
    monkeypatch.syspath_prepend(tmp_path)  # of the loaders too
    exported = tmp_path / "exported"
    with running(tmp_path / "job.toml", workers=1, tensorflow=True) as loaders:
        first = _train(tmp_path, loaders.endpoint, "--steps", "3")
        lines = _train(tmp_path, loaders.endpoint, "--epochs", str(EPOCHS), "--export", str(exported))
        alone = CheckpointFolder(tmp_path / "checkpoints", 3).read_last()
        mirrored = ("--strategy", "mirrored", "--replicas", "2")
        spread = _train(tmp_path, loaders.endpoint, *mirrored, "--epochs", "+1")
        together = _train(tmp_path, loaders.endpoint, "--strategy", "multi-worker", "--epochs", "+1", processes=2)
    for at, said in enumerate((spread, together), EPOCHS):
        assert said[1] == f"STARTING: training train from epoch {at}, step {_after(at)}, until {at + 1} epochs"
        assert said[-1].startswith(f"FINISHED: {at + 1} epochs, {_after(at + 1)} steps, ")
    assert first[-1].startswith("FINISHED: 0 epochs, 3 steps, ")
    assert lines[0] == f"STARTING: training train from epoch 0, step 3, until {EPOCHS} epochs"
    assert lines[-2].startswith(f"FINISHED: {EPOCHS} epochs, {EPOCHS * STEPS} steps, ")
    assert lines[-1] == f"EXPORTED: {exported}"
    told = [re.match(r"epoch [\d.]+, step (\d+): loss ([\d.]+)", line) for line in [*first, *lines]]
    losses = {int(one[1]): float(one[2]) for one in told if one}
    assert list(losses) == list(range(1, EPOCHS * STEPS + 1))
    assert sum(list(losses.values())[-STEPS:]) < sum(list(losses.values())[:STEPS])
    assert alone is not None
    assert (alone[1]["epoch"], alone[1]["feed"]["number"]) == (EPOCHS, 0)
    _serve(exported)


def _after(epochs: int) -> int:
    """How many steps so many epochs have, of which the first ones were taken by one replica and others by two."""
    return EPOCHS * STEPS + (epochs - EPOCHS) * STEPS // 2


def _serve(exported: Path) -> None:
    import tensorflow as tf  # it takes seconds

    served = tf.saved_model.load(str(exported))
    for rows, length in ((1, 3), (5, 9)):
        assert served.serve(tf.ones((rows, length), tf.int32)).shape == (rows, 1)
