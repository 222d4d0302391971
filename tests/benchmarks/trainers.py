"""What our training loop costs, and how well the demo's model is fed by it.

    python -m tests.benchmarks.trainers [--only loop,demo] [--json]

loop: CPU of the loop over that of a bare `for x in data` loop, for batches in memory and a step of some milliseconds;
both take the same batches in turns, and the median of the pairs counts. demo: `trainer-client train` on the demo's job
with two workers: seconds from the command to its first step, the share of time that it waited for data from the second
line on, and steps that were traced in the midst of training. --json adds one JSON object as last line.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loader_server.demo import corpus
from shared.quick_import import quick_import
from tests.support.fake_feed import FakeFeed
from tests.support.loaders import ROOT, running
from trainer_client.runs.until import Until

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["loop_overhead", "main"]

_STEPS = 150
_PAIRS = 7
_WIDTH = 768

_JOB = """
[job]
name = "digits"
seed = 7
listen = "tcp://127.0.0.1:*"

[streams.train]
source = "manifest"
paths = ["train.csv"]
transforms = ["logmel", "characters"]
length = "audio"
budget = "40 s"
curriculum_epochs = 1

[streams.train.logmel]
rate = 8000
bands = 40

[streams.train.characters]
alphabet = "0123456789"
"""


def loop_overhead(steps: int = _STEPS, pairs: int = _PAIRS) -> dict[str, float]:
    """CPU of our loop over that of a bare one, and of one bare step in milliseconds."""
    with quick_import():
        import keras  # noqa: PLC0415 - seconds
        import tensorflow as tf  # noqa: PLC0415 - as above

        from trainer_client.strategies.single import Single  # noqa: PLC0415
        from trainer_client.training.loop import LoopSettings, TrainingData, TrainingLoop  # noqa: PLC0415
    keras.utils.set_random_seed(7)
    inputs = tf.random.normal((128, _WIDTH))
    data = tf.data.Dataset.from_tensors((inputs, inputs[:, :1], tf.ones(128))).cache().repeat(steps)
    options = tf.data.Options()
    options.autotune.enabled = False  # as of a feed's: it takes CPU of its own
    data = data.with_options(options)

    def model() -> Any:
        layers = [keras.layers.Dense(_WIDTH, activation="relu") for _ in range(2)]
        made = keras.Sequential([keras.layers.Input((_WIDTH,)), *layers, keras.layers.Dense(1)])
        made.compile("sgd", "mse")
        made.optimizer.build(made.trainable_variables)
        return made

    ours, theirs = model(), model()

    @tf.function  # type: ignore[untyped-decorator] # TensorFlow has no types
    def bare_step(x: Any, y: Any, weight: Any) -> Any:
        with tf.GradientTape() as tape:
            per_row = keras.losses.mean_squared_error(y, theirs(x, training=True))
            loss = tf.reduce_sum(weight * per_row) / tf.reduce_sum(weight)
        gradients = tape.gradient(loss, theirs.trainable_variables)
        theirs.optimizer.apply(gradients, theirs.trainable_variables)
        return loss

    def bare() -> None:
        for x, y, weight in data:
            loss = bare_step(x, y, weight)
        loss.numpy()

    def loop(folder: Path) -> TrainingLoop:
        feed = FakeFeed(epochs=(steps,))
        elements = TrainingData(feed=feed, elements=data, for_each_shape=lambda call: call(next(iter(data))))
        settings = LoopSettings(until=Until(epochs=1), checkpoints=folder, tell_every=steps)
        return TrainingLoop(ours, elements, Single(), settings)

    with tempfile.TemporaryDirectory() as folder:
        bare()
        ratios, bare_s = [], []
        for pair in range(pairs):
            ready = loop(Path(folder) / str(pair))
            ready._begin()
            ready._begin = lambda: None  # type: ignore[method-assign] # traced by now, as the bare step is
            ready._save = lambda: None  # type: ignore[method-assign] # and a bare loop saves nothing
            gc.collect()  # what tracing left is not the loop's
            bare_s.append(_cpu_s(bare))
            ratios.append(_cpu_s(ready.run) / bare_s[-1])
    return {"loop_overhead": statistics.median(ratios) - 1, "bare_step_ms": statistics.median(bare_s) / steps * 1000}


def _cpu_s(call: Callable[[], object]) -> float:
    began_s = time.process_time()
    call()
    return time.process_time() - began_s


def fed_demo(samples: int = 1500, epochs: int = 3) -> dict[str, Any]:
    """How long it takes to the first step, and what the demo's model waits for."""
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "digits"
        corpus.make_corpus(made, samples=samples, job=_JOB, progress=lambda _done, _all: None)
        with running(made / "job.toml", workers=2) as loaders:
            return _trained(loaders.endpoint, made, epochs)


def _trained(endpoint: str, folder: Path, epochs: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "trainer_client", "train", "--model", "trainer_client.demo", "--feed", endpoint]
    command += ["--checkpoint", str(folder / "checkpoints"), "--epochs", str(epochs), "--log-every", "1"]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    began_s, first_s, waits, losses = time.monotonic(), 0.0, [], []
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            found = re.search(r"step (\d+): loss ([\d.]+), .* waiting ([\d.]+)%", line)
            if found and found[1] == "1":
                first_s = time.monotonic() - began_s
            elif found:
                waits.append(float(found[3]) / 100)
                losses.append(float(found[2]))
    return {
        "first_step_s": first_s,
        "data_wait_ratio": {"single": statistics.mean(waits)},
        "median_data_wait_ratio": statistics.median(waits),
        "steps": len(waits) + 1,
        "last_loss": losses[-1],
    }


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="loop,demo", help="parts, such as loop")
    parser.add_argument("--json", action="store_true", help="one JSON object as last line")
    options = parser.parse_args()
    parts: dict[str, Callable[[], dict[str, Any]]] = {"loop": loop_overhead, "demo": partial(fed_demo)}
    found: dict[str, Any] = {}
    for part in options.only.split(","):
        found |= parts[part]()
    for name, value in found.items():
        print(f"{name:>24}  {value}")
    if options.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
