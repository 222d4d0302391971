"""The job that every engine serves: its folder, with data, a transform of its own, keys and index; and its digest.

The transform waits some milliseconds for each sample, so that an epoch lasts 10 to 20 s with three workers on any
machine, however many cores it has, and a node can be lost in its middle. The reference digest comes from one machine:
`loader-server run job.toml` and `trainer-client verify`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.support.forked import ROOT
from tests.support.loaders import running

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = [
    "BATCHES",
    "BUILD_S",
    "HEARTBEAT_TIMEOUT_S",
    "SAMPLE_S",
    "copy_job",
    "longest_gap_s",
    "reference",
    "verify",
    "write_job",
]

HEARTBEAT_TIMEOUT_S = 2.0
_ROWS, _LONGEST, BATCHES = 16, 200, 320
_SAMPLE_MS = 5
#: What a sample takes to transform, and one batch to build.
SAMPLE_S = _SAMPLE_MS / 1000
BUILD_S = _ROWS * SAMPLE_S

_JOB = f"""\
[job]
name = "fleet"
seed = 7
listen = "tcp://127.0.0.1:*"
keys = "keys"
state = "{{state}}"
heartbeat_timeout = "{HEARTBEAT_TIMEOUT_S:g} s"

[streams.train]
source = "numpy"
paths = ["data"]
transforms = ["features:features"]
length = "tokens"
budget = "{_ROWS * _LONGEST} tokens"
max_rows = {_ROWS}
"""

_TRANSFORM = f"""\
import time

import numpy as np

from loader_server.transforms import transform

_SCALE = np.arange(1, 81, dtype="float32") / 80


@transform({{"tokens": ("float32", None, 80)}}, lengths={{"tokens": lambda lengths: lengths["tokens"]}})
def features(sample, rng):
    time.sleep({SAMPLE_S:g})
    shift = rng.random(dtype="float32")
    sample["tokens"] = (sample["tokens"].astype("float32") + shift)[:, None] * _SCALE
"""


def longest_gap_s() -> float:
    """Return the longest gap that losing a node may make."""
    return HEARTBEAT_TIMEOUT_S + BUILD_S + 0.5


def write_job(folder: Path, state: Path | None = None) -> Path:
    """Write the job into a folder, with keys for all roles in `keys`, and index it; return the job file.

    What is written while it is served goes to `state` (`.stoker` in the folder).
    """
    data = folder / "data"
    data.mkdir(parents=True)
    draws = np.random.default_rng(7)
    lengths = draws.integers(20, _LONGEST + 1, _ROWS * BATCHES)
    np.save(data / "tokens_offsets.npy", np.concatenate([[0], np.cumsum(lengths)]))
    np.save(data / "tokens_values.npy", draws.integers(0, 30_000, int(lengths.sum()), dtype="int32"))
    (folder / "features.py").write_text(_TRANSFORM)
    job = folder / "job.toml"
    job.write_text(_JOB.format(state=state or ".stoker"))
    _run("loader_server", "keys", str(folder / "keys"))
    _run("loader_server", "index", str(job))
    return job


def copy_job(job: Path, into: Path) -> Path:
    """Copy a job that nobody has served yet, so that each case begins at its first epoch; return the copy's file."""
    shutil.copytree(job.parent, into)
    return into / job.name


def reference(job: Path) -> tuple[str, int]:
    """Serve the job on one machine; return the digest of its first epoch and how many batches that has."""
    with running(job, workers=3) as loaders:
        return verify((), loaders.endpoint, job.parent / "keys")


def verify(prefix: Sequence[str], endpoint: str, keys: Path, *options: str) -> tuple[str, int]:
    """Run `trainer-client verify`, behind a prefix such as `ip netns exec NAME`; return digest and batches."""
    said: dict[str, Any] = json.loads(
        _run("trainer_client", "verify", endpoint, "--keys", str(keys), "--json", *options, prefix=prefix)
    )
    return said["digest"], said["batches"]


def _run(*words: str, prefix: Sequence[str] = ()) -> str:
    """Run a module of ours; return the last line that it printed."""
    done = subprocess.run(
        [*prefix, sys.executable, "-m", *words],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
        timeout=200,
    )
    return (done.stdout.splitlines() or [""])[-1]
