"""Loaders whose reads are slow: what a worker more brings, and what asking for more batches ahead.

    python -m tests.benchmarks.slow_reads [--json]

Each sample takes 10 ms to read, so that readers sleep and the figures are those of the scheduling, on any machine. A
worker has four readers, and a batch eight samples: two workers could give 100 batches a second, three 150.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import trainer_client
from tests.support.loaders import running
from tests.support.slowed.delays import FILE, write_delays
from tests.support.slowed.jobs import job_text
from tests.support.slowed.situations import Setup

_READ_S = 0.01
_ROWS = 8
#: Workers, and how many batches are asked for ahead at first (None: as users have it).
_CASES = ((2, None), (3, None), (2, 8), (3, 8), (2, 24), (3, 24))


def measured(workers: int, prefetch: int | None, *, warm_s: float = 25.0, seconds: float = 20.0) -> dict[str, Any]:
    """Run a job, and return its batches a second in the first three seconds and later, and the prefetch at the end."""
    setup = Setup(right=(), step_s=0.0, prefetch=prefetch or 0, rows=_ROWS, workers=workers)
    with tempfile.TemporaryDirectory(prefix="stoker-slow-reads-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        delays, job = folder / "delays.json", folder / "job.toml"
        write_delays(delays, {"read_s": _READ_S})
        os.environ[FILE] = str(delays)
        job.write_text(job_text(folder, setup, delays, stack))
        loaders = stack.enter_context(running(job, workers=workers))
        feed = stack.enter_context(trainer_client.connect(loaders.endpoint, prefetch=prefetch))
        batches = (batch for _ in range(10_000) for batch in feed)
        next(batches)
        first = _rate(batches, 3.0)
        _rate(batches, warm_s)
        return {
            "workers": workers,
            "prefetch": prefetch,
            "first_batches_s": round(first, 1),
            "batches_s": round(_rate(batches, seconds), 1),
            "prefetch_at_end": feed._session.receiver.stream.prefetch.size,
            "possible_batches_s": round(workers * 4 / (_ROWS * _READ_S), 1),
        }


def _rate(batches: Any, seconds: float) -> float:
    """Return how many batches a second come in the next seconds."""
    began_s, count = time.monotonic(), 0
    while time.monotonic() - began_s < seconds:
        next(batches)
        count += 1
    return count / (time.monotonic() - began_s)


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.slow_reads")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    results = [measured(*case) for case in _CASES]
    if options.json:
        print(json.dumps(results))
    else:
        for result in results:
            print("  ".join(f"{name} {value}" for name, value in result.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
