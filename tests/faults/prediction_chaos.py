"""Three trainers predict a stream together, while one of them is killed (kill -9) and started again five times.

    python -m tests.faults.prediction_chaos [--samples 10000] [--kills 5] [--seed 1] --json

The trainers are `trainer-client predict` as a user starts it. Afterwards the output is read: `lost` and `repeated` are
samples that are missing or there more than once, `out_of_order` those that come before a smaller one, `wrong` those
whose outputs are another sample's. The last line is one JSON object; the exit code is 1 if a promise was broken.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np

from tests.support.loaders import ROOT, running
from trainer_client.training.checkpoints.checkpoint_folder import CheckpointFolder

_JOB = """
[job]
name = "chaos"
seed = 7
listen = "tcp://127.0.0.1:*"
heartbeat_timeout = "400 ms"

[streams.train]
source = "synthetic"
kind = "tokens"
samples = {samples}
length = "tokens"
budget = "1000 steps"
shapes = 4

[streams.test]
like = "train"
order = "sorted"
mode = "queue"
"""

#: Each batch takes a while, so that the others are not through before the victim is back.
_MODULE = """
import time

import keras
import tensorflow as tf


class Times(keras.layers.Layer):
    def build(self, shape):
        self.factor = self.add_weight(shape=(), name="factor")

    def call(self, tag):
        tf.numpy_function(lambda: time.sleep(0.15), [], [])
        return keras.ops.cast(tag, "float32") * self.factor


def model():
    return keras.Sequential([Times()])


feed_keys = {"inputs": "tag"}
"""


def run(samples: int, kills: int, seed: int) -> dict[str, object]:
    """The whole run, and what its output says."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "job.toml").write_text(_JOB.format(samples=samples))
        (folder / "times.py").write_text(_MODULE)
        arrays = {"0": np.array(3.0, np.float32)}
        CheckpointFolder(folder / "checkpoints", 1).write(arrays, {"epoch": 1, "step": 1, "model_variables": 1})
        with running(folder / "job.toml", workers=1) as loaders:
            others = [_start(folder, loaders.endpoint) for _ in range(2)]
            killed = _kill(folder, loaders.endpoint, kills, random.Random(seed))
            for process in [*others, _start(folder, loaders.endpoint)]:
                said, complained = process.communicate(timeout=500)
                if process.returncode:
                    raise AssertionError(complained)
        lines = [json.loads(line) for line in (folder / "output.jsonl").read_text().splitlines()]
        return {**_check(lines, samples), "kills": killed, "told": json.loads(said)["samples"]}


def _start(folder: Path, endpoint: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "trainer_client", "predict", "--feed", endpoint, "--model", "times", "--json"]
    command += ["--checkpoint", "checkpoints", "--stream", "test", "--output", "output.jsonl"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def _kill(folder: Path, endpoint: str, kills: int, chance: random.Random) -> int:
    """Kill a trainer in the midst of its work, again and again; returns how often the work was not over yet."""
    wait, killed = threading.Event().wait, 0
    for _ in range(kills):
        with _start(folder, endpoint) as victim:
            while victim.poll() is None and not _has_slots(victim):
                wait(0.05)
            wait(chance.uniform(0.5, 3.0))
            killed += not (folder / "output.jsonl").exists()
            victim.kill()
    return killed


def _has_slots(process: subprocess.Popen[str]) -> bool:
    """Whether it has memory for batches: then it is attached."""
    try:
        return "memfd" in Path(f"/proc/{process.pid}/maps").read_text()
    except OSError:
        return False


def _check(lines: list[dict[str, object]], samples: int) -> dict[str, object]:
    got = Counter(line["sample"] for line in lines)
    return {
        "samples": len(lines),
        "lost": len(set(range(samples)) - set(got)),
        "repeated": sum(count > 1 for count in got.values()),
        "out_of_order": sum(before["sample"] >= after["sample"] for before, after in pairwise(lines)),
        "wrong": sum(line["output"] != 3.0 * line["sample"] for line in lines),
    }


def broken(result: dict) -> bool:
    """Whether a promise was broken."""
    return any(result[name] for name in ("lost", "repeated", "out_of_order", "wrong"))


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="only the last line")
    options = parser.parse_args()
    began_s = time.monotonic()
    result = run(options.samples, options.kills, options.seed)
    if not options.json:
        print(f"a trainer was killed {result['kills']} times in {time.monotonic() - began_s:.0f} s, and started again")
    print(json.dumps(result))
    return broken(result)


if __name__ == "__main__":
    sys.exit(main())
