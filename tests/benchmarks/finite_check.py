"""What looking for values that are NaN or infinite costs a batch: 10 MB of each dtype, and a small batch as a whole.

Run it as `python -m tests.benchmarks.finite_check`. Each figure is the least of many, since other work only adds.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as in workers

import json
import tempfile
import timeit
from pathlib import Path

import numpy as np

from loader_server.building.builder import Builder
from loader_server.building.not_finite import rows_not_finite
from loader_server.building.quarantine import Quarantine
from tests.support.in_memory import MemorySource, MemoryStream, Steps, memory_want

__all__ = ["main"]

_BYTES = 10_000_000
_ROWS = 40


def _least_ms(what: object, repeats: int = 60, number: int = 5) -> float:
    return 1e3 * min(timeit.repeat(what, number=number, repeat=repeats)) / number  # type: ignore[arg-type]


def _large() -> dict[str, float]:
    found = {}
    for dtype in ("float16", "float32", "float64"):
        count = _BYTES // np.dtype(dtype).itemsize // _ROWS
        values = np.random.default_rng(1).standard_normal((_ROWS, count)).astype(dtype)
        found[dtype] = _least_ms(lambda values=values: rows_not_finite(values))
    return found


def _small() -> tuple[float, float]:
    """How long a batch of four tiny samples takes, and the check in it."""
    with tempfile.TemporaryDirectory() as folder:
        builder, want = Builder(MemoryStream(MemorySource()), Quarantine(Path(folder) / "log"), Steps()), memory_want(1)
        prepared = builder.prepare(want)
        payload = np.zeros(prepared.layout.nbytes, np.uint8)
        arrays = prepared.layout.arrays(payload)
        whole = _least_ms(lambda: builder.build(want, builder.prepare(want), payload), number=200)
        check = _least_ms(lambda: builder._finite_check.suspects(arrays), number=200)
    return whole, check


def main() -> None:
    """Print all of it, as JSON in the last line."""
    large, (whole, check) = _large(), _small()
    for dtype, took_ms in large.items():
        print(f"10 MB of {dtype}: {took_ms:.3f} ms")
    print(f"a batch of four samples: {1e3 * whole:.1f} us, the check in it {1e3 * check:.2f} us, {check / whole:.1%}")
    print(json.dumps({"large_ms": large, "small_us": 1e3 * whole, "small_check_us": 1e3 * check}))


if __name__ == "__main__":
    main()
