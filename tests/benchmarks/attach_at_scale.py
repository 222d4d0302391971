"""Attaching at a billion samples: time and memory to open a kept plan, resume in mid-epoch, and plan the window there.

`python -m tests.benchmarks.attach_at_scale [--samples N] [--survey]` writes what a plan of a synthetic index would keep
(a pool of lengths over and over, in segments of 4 096), and opens it in a fresh process. `--survey` also
makes the one-off pass over all lengths, with its progress. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from loader_server.plan_keeper import PlanKeeper
from loader_server.planning import Plan
from tests.loader_server.planning.tables import RATES, log_normal, settings_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SEGMENT = 4096
_POOL = 64 * _SEGMENT
_BILLION = 1_000_000_000


class Repeated:
    """An index whose lengths are one pool over and over: any number of samples, no memory."""

    keys = ("audio",)

    def __init__(self, pool: NDArray[np.int64], samples: int) -> None:
        self.fingerprint = f"repeated {samples}"
        self.segments = np.append(np.arange(0, samples, _SEGMENT), samples).astype(np.int64)
        self._pool = np.concatenate([pool, pool])

    def lengths(self, key: str, start: int, stop: int) -> NDArray[np.int64]:
        """Of samples start to stop."""
        first = start % _POOL
        return (
            np.resize(self._pool[first:], stop - start)
            if stop - start > _POOL
            else self._pool[first : first + stop - start]
        )


def _plan(table: Repeated, keeper: PlanKeeper | None = None, progress: Any = None) -> Plan:
    return Plan.make(
        table, settings_of(shapes=16), key="audio", per_second=RATES, seed=7, keeper=keeper, progress=progress
    )


def keep(samples: int, keeper: PlanKeeper) -> None:
    """Keep what the one-off pass would find for so many samples, from a pass over one pool."""
    pool = log_normal(_POOL)
    arrays = _plan(Repeated(pool, _POOL)).recipe.tally.arrays()
    table = Repeated(pool, samples)
    segments = len(table.segments) - 1
    rest = samples % _SEGMENT
    for name in ("counts", "sums"):
        arrays[name] = np.resize(arrays[name], (segments, *arrays[name].shape[1:]))
    if rest:
        tail = table.lengths("audio", samples - rest, samples)
        arrays["counts"][-1] = np.bincount(np.searchsorted(arrays["edges"], tail), minlength=len(arrays["edges"]))
        arrays["sums"][-1] = tail.sum()
    arrays["samples"] = arrays["samples"] * (samples // _POOL)
    # Only the digest of the real pass is missing; it depends on nothing that the pass finds.
    keeper.save("survey", _digest_of(table), arrays)


def _digest_of(table: Repeated) -> str:
    """The digest of the plan of a table: that of a shorter one with the same name."""
    short = Repeated(log_normal(_POOL), _POOL)
    short.fingerprint = table.fingerprint
    return _plan(short).digest


def attached(folder: Path, samples: int) -> dict[str, float]:
    """In this process: open the kept plan, resume in the middle of epoch 3, and take the batch there."""
    table = Repeated(log_normal(_POOL), samples)
    started = time.perf_counter()
    reads: list[int] = []
    plan = _plan(table, PlanKeeper(folder), lambda done, total: reads.append(done))
    epoch = plan.epoch(3, 8)
    batch = epoch.batch(epoch.batches // 2)
    took = time.perf_counter() - started
    assert not reads, "the kept plan was not used"
    assert len(batch.samples)
    return {"attach_1e9_s": took, "attach_1e9_mb": _peak_mib()}


def _peak_mib() -> float:
    """Peak memory of this process alone: getrusage would count what the parent had when it forked."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) / 1024


def measured(samples: int = _BILLION) -> dict[str, float]:
    """The same in a fresh process, whose peak memory is all its own."""
    with tempfile.TemporaryDirectory() as folder:
        keep(samples, PlanKeeper(Path(folder)))
        command = [
            sys.executable,
            "-m",
            "tests.benchmarks.attach_at_scale",
            "--attach",
            folder,
            "--samples",
            str(samples),
        ]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def survey(samples: int) -> dict[str, float]:
    """The one-off pass over so many lengths, showing its progress."""
    started = time.perf_counter()

    def show(done: int, total: int) -> None:
        if done * 20 // total != (done - _POOL) * 20 // total:
            print(f"{done / total:4.0%} after {time.perf_counter() - started:.0f} s", file=sys.stderr)

    plan = _plan(Repeated(log_normal(_POOL), samples), progress=show)
    took = time.perf_counter() - started
    assert sum(plan.dropped.values()) == 0
    return {"survey_samples": samples, "survey_s": took, "survey_ns_per_sample": took / samples * 1e9}


def main() -> None:
    """Measure, and print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=_BILLION)
    parser.add_argument("--survey", action="store_true", help="also make the one-off pass")
    parser.add_argument("--attach", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.attach:
        print(json.dumps(attached(asked.attach, asked.samples)))
    else:
        print(json.dumps(measured(asked.samples) | (survey(asked.samples) if asked.survey else {})))


if __name__ == "__main__":
    main()
