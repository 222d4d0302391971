"""What our training loop costs, how well the demo's model is fed by it, and how fast PyTorch and JAX are fed.

    python -m tests.benchmarks.trainers [--only loop,demo,torch] [--json]

loop: CPU of the loop over that of a bare `for x in data` loop, for batches in memory: for two dense layers and plain
SGD, whose step takes some milliseconds, and for the demo's recogniser (`demo_...`); both take the same batches in short
turns, and the median of the pairs counts. demo: `trainer-client train` on the
demo's job with two workers: seconds from the command to its first step, the share of time that it waited for data once
each worker had begun (from the second epoch on), and how often a step was traced in the midst of training. torch:
10 MB batches a second by each adapter, of a torch DataLoader's in the same rounds, where both packages are installed.
--json adds one JSON object as last line.
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
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loader_server.demo import corpus
from shared.quick_import import quick_import
from tests.benchmarks.data_path import Consumer
from tests.benchmarks.data_path_payloads import PAYLOADS, write_shapes
from tests.benchmarks.data_path_stoker import make_job, planned_shapes
from tests.support.fake_feed import FakeFeed
from tests.support.loaders import ROOT, running
from trainer_client.training.runs.until import Until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["loop_overhead", "main"]

_STEPS = 30
_TURNS = 41
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


def loop_overhead(steps: int = _STEPS, turns: int = _TURNS) -> dict[str, float]:
    """CPU of our loop over that of a bare one, and of one bare step in milliseconds, for two models."""
    with quick_import():
        import keras  # seconds
        import tensorflow as tf

        from trainer_client import demo
    keras.utils.set_random_seed(7)
    inputs = tf.random.normal((128, _WIDTH))

    def dense() -> Any:
        layers = [keras.layers.Dense(_WIDTH, activation="relu") for _ in range(2)]
        return keras.Sequential([keras.layers.Input((_WIDTH,)), *layers, keras.layers.Dense(1)])

    def mse(targets: Any, outputs: Any, weight: Any) -> Any:
        per_row = keras.losses.mean_squared_error(targets, outputs)
        return tf.reduce_sum(weight * per_row) / tf.reduce_sum(weight)

    small = tf.data.Dataset.from_tensors((inputs, inputs[:, :1], tf.ones(128)))
    gc.freeze()  # collecting what the imports left is nobody's part
    found = _overhead(_Trained(dense, "sgd", "mse", mse), small, steps, turns)
    recogniser = _Trained(demo.model, demo.optimizer(), demo.loss, demo.loss)
    of_demo = _overhead(recogniser, _recordings(), steps, max(turns // 2, 3))
    return found | {f"demo_{name}": value for name, value in of_demo.items()}


@dataclass(frozen=True, slots=True)
class _Trained:
    """A model as our loop trains it, and the same loss for the bare one: of targets, outputs and weights."""

    model: Callable[[], Any]
    optimizer: Any
    loss: Any
    bare_loss: Callable[[Any, Any, Any], Any]

    def compiled(self, element: Any) -> Any:
        import keras

        made = self.model()
        made(element[0])
        optimizer = keras.optimizers.get(self.optimizer)
        made.compile(type(optimizer).from_config(optimizer.get_config()), self.loss)
        made.optimizer.build(made.trainable_variables)
        return made


def _recordings() -> Any:
    """Batches of 40 s of digits in several padded shapes, as the demo's job has them, with random values."""
    import tensorflow as tf

    data: Any = None
    for frames in (120, 170, 220, 280):
        rows = 4000 // frames
        audio = {"audio": tf.random.normal((rows, frames, 40)) - 4.0, "audio_length": tf.fill((rows,), frames)}
        text = tf.random.uniform((rows, 6), 1, 11, tf.int32)
        one = tf.data.Dataset.from_tensors((audio, text, tf.ones(rows)))
        data = one if data is None else data.concatenate(one)
    return data


def _overhead(trained: _Trained, data: Any, steps: int, turns: int) -> dict[str, float]:
    import tensorflow as tf

    from trainer_client.training.loop.training_loop import LoopSettings, TrainingData, TrainingLoop
    from trainer_client.training.strategies.single import Single

    data = data.cache().repeat()
    options = tf.data.Options()
    options.autotune.enabled = False  # as of a feed's: it takes CPU of its own
    data = data.with_options(options)
    first = next(iter(data))
    ours, theirs = trained.compiled(first), trained.compiled(first)

    @tf.function  # type: ignore[untyped-decorator] # TensorFlow has no types
    def bare_step(x: Any, y: Any, weight: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = trained.bare_loss(y, theirs(x, training=True), weight)
        gradients = tape.gradient(loss, theirs.trainable_variables)
        theirs.optimizer.apply(gradients, theirs.trainable_variables)
        return loss

    bare_step.get_concrete_function(*data.element_spec)  # one graph for all shapes, as ours is

    class Turns:
        """The loop's elements; each so many, a bare loop takes a turn of its own."""

        element_spec = data.element_spec

        def __init__(self) -> None:
            self.ours_s: list[float] = []
            self.bare_s: list[float] = []

        def __iter__(self) -> Iterator[Any]:
            in_ours, in_bare = iter(data), iter(data)
            for _ in range(turns):
                began_s = time.process_time()
                for _ in range(steps):
                    yield next(in_ours)
                self.ours_s.append(time.process_time() - began_s)
                began_s = time.process_time()
                for _ in range(steps):
                    loss = bare_step(*next(in_bare))
                loss.numpy()
                self.bare_s.append(time.process_time() - began_s)

    elements = Turns()
    with tempfile.TemporaryDirectory() as folder:
        fed = TrainingData(
            feed=FakeFeed(epochs=(turns * steps,)), elements=elements, for_each_shape=lambda call: call(first)
        )
        settings = LoopSettings(until=Until(epochs=1), checkpoints=Path(folder), tell_every=100)
        TrainingLoop(ours, fed, Single(), settings).run()
    pairs = list(zip(elements.ours_s, elements.bare_s, strict=True))[1:]  # both begin in the first turn
    return {
        "loop_overhead": statistics.median(our_s / bare_s for our_s, bare_s in pairs) - 1,
        "bare_step_ms": statistics.median(bare_s for _, bare_s in pairs) / steps * 1000,
    }


def fed_demo(samples: int = 1500, epochs: int = 4) -> dict[str, Any]:
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
    with (
        (folder / "log").open("w+") as log,
        subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            found = re.search(r"epoch ([\d.]+), step (\d+): loss ([\d.]+), ([\d.]+) steps/s, waiting ([\d.]+)%", line)
            if not found:
                continue
            first_s = first_s or time.monotonic() - began_s
            losses.append(float(found[3]))
            if float(found[1]) > 1:
                step_s = 1 / float(found[4])
                waits.append((step_s * float(found[5]) / 100, step_s))
        process.wait()
        log.seek(0)
        retraces = log.read().count("a step was traced again")
    return {
        "first_step_s": first_s,
        "data_wait_ratio": {"single": sum(wait for wait, _ in waits) / sum(step for _, step in waits)},
        "median_data_wait_ratio": statistics.median(wait / step for wait, step in waits),
        "retraces": retraces,
        "steps": len(losses),
        "last_loss": losses[-1],
    }


def fed_by_adapters(rounds: int = 5, seconds: float = 1.0) -> dict[str, Any]:
    """Batches a second of each adapter, of a torch DataLoader's: medians of the rounds' ratios."""
    adapters = {"torch": "torch_tensors", "jax": "jax_arrays"}
    payload = PAYLOADS["features_10mb"]
    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder)
        for path in adapters.values():
            job = make_job(where / path, payload.stream)
        write_shapes(where / "shapes.json", [{key: planned_shapes(job, 1)[0][key] for key in payload.keys}])
        paths = (*adapters.values(), "torch")
        consumers = {path: Consumer(path, payload.name, where) for path in paths}
        try:
            there = {path: one for path, one in consumers.items() if not one.skipped}
            found = [{path: one.run(seconds)["batches_per_s"] for path, one in there.items()} for _ in range(rounds)]
        finally:
            for consumer in consumers.values():
                consumer.close()
    return {
        f"{name}_ratio_to_dataloader": statistics.median(one[path] / one["torch"] for one in found)
        if path in there and "torch" in there
        else None
        for name, path in adapters.items()
    }


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="loop,demo,torch", help="parts, such as loop")
    parser.add_argument("--json", action="store_true", help="one JSON object as last line")
    options = parser.parse_args()
    parts: dict[str, Callable[[], dict[str, Any]]] = {"loop": loop_overhead, "demo": fed_demo, "torch": fed_by_adapters}
    found: dict[str, Any] = {}
    for part in options.only.split(","):
        found |= parts[part]()
    for name, value in found.items():
        print(f"{name:>24}  {value}")
    if options.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
