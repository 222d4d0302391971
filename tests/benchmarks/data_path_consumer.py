"""The consumer of one path and payload: a process that runs a while whenever it is told to, and says what that cost.

    python -m tests.benchmarks.data_path_consumer PATH PAYLOAD FOLDER

Rules: it is idle between two lines of its input (seconds to run), answers each with one line of JSON, and ends with
its input. Its loader side are its child processes, so CPU time is told apart by process.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil

from tests.benchmarks.data_path_payloads import PAYLOADS, read_shapes
from tests.benchmarks.data_path_peers import PEERS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from tests.benchmarks.data_path_payloads import Payload

__all__ = ["children_cpu_s", "cpu_s"]

#: Batches that may be ready before the clock starts: they go first, uncounted.
_AHEAD = 24


def cpu_s(process: psutil.Process) -> float:
    """CPU that a process has used, the kernel's on its behalf included."""
    times = process.cpu_times()
    return float(times.user + times.system)


def children_cpu_s() -> float:
    """CPU of the loader side."""
    return sum(cpu_s(child) for child in psutil.Process().children(recursive=True))


def _opened(path: str, payload: Payload, folder: Path) -> AbstractContextManager[Iterator[Any]]:
    if path in PEERS:
        return PEERS[path](read_shapes(folder / "shapes.json"))
    from tests.benchmarks.data_path_stoker import opened  # imports the trainer's side

    return opened(folder / path / "job.toml", payload, path)


def _run(elements: Iterator[Any], seconds: float) -> dict[str, float]:
    for _ in range(_AHEAD):
        next(elements)
    own, children, batches = psutil.Process(), children_cpu_s(), 0
    before = cpu_s(own)
    began_s = now_s = time.perf_counter()
    while now_s - began_s < seconds:
        next(elements)
        batches += 1
        now_s = time.perf_counter()
    return {
        "batches_per_s": batches / (now_s - began_s),
        "trainer_cpu_ms": 1000 * (cpu_s(own) - before) / batches,
        "worker_cpu_ms": 1000 * (children_cpu_s() - children) / batches,
    }


def _check_stamps(elements: Iterator[Any]) -> None:
    """Two batches in a row have different first steps: neither is the other sent again."""
    first, second = (np.array(next(elements)[0]).tobytes() for _ in range(2))
    assert first != second, "two equal batches"


def main() -> None:
    """Serve the benchmark."""
    path, payload, folder = sys.argv[1:]
    sys.stdout = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print is not for the benchmark
    with _opened(path, PAYLOADS[payload], Path(folder)) as elements:
        _check_stamps(elements)
        print(json.dumps({"ready": True}))
        for line in sys.stdin:
            print(json.dumps(_run(elements, float(line))))
    sys.stdout.flush()
    os._exit(0)  # torch and Grain wait for their processes


if __name__ == "__main__":
    main()
