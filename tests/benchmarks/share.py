"""What two jobs that share built batches spare: processor time of their workers, beside that of two that do not.

    python -m tests.benchmarks.share --json

Both read the same epochs of recordings with log-mel features, at the same time, from one `loader-server run`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import trainer_client
from loader_server.commands.status import ask
from tests.support.loaders import running, write_job

if TYPE_CHECKING:
    from tests.support.loaders import Loaders

_EPOCHS = 3
_JOBS = ("small", "large")


def measure(samples: int, *, share: bool) -> dict[str, float]:
    """Two jobs, one run; seconds of processor time of all workers, and how often a batch was built."""
    with tempfile.TemporaryDirectory() as folder:
        jobs = _make_jobs(Path(folder), samples, share=share)
        with running(*jobs, workers=2) as loaders, ThreadPoolExecutor() as pool:
            before_s = _cpu_s(loaders)
            batches = sum(pool.map(_read, [loaders.endpoint_of(name) for name in _JOBS]))
            return {"worker_cpu_s": round(_cpu_s(loaders) - before_s, 2), "batches": batches, "built": _built(loaders)}


def _make_jobs(folder: Path, samples: int, *, share: bool) -> list[Path]:
    first = write_job(
        folder, name=_JOBS[0], samples=samples, longest_s=8.0, budget="60 s", job=f"share = {str(share).lower()}"
    )
    made = []
    for name in _JOBS:
        made.append(folder / f"{name}.toml")
        made[-1].write_text(first.read_text().replace(f'name = "{_JOBS[0]}"', f'name = "{name}"'))
    return made


def _read(endpoint: str) -> int:
    with trainer_client.connect(endpoint, epochs=_EPOCHS, prefetch=4) as feed:
        return sum(1 for _ in range(_EPOCHS) for _ in feed)


def _cpu_s(loaders: Loaders) -> float:
    return sum(sum(worker.cpu_times()[:2]) for worker in loaders.workers())


def _built(loaders: Loaders) -> int:
    workers = [one for name in _JOBS for one in ask(loaders.endpoint_of(name))["workers"]]
    return sum(one["built"] - one["taken"] for one in workers)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=2000, help="recordings (2000)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    apart, together = (measure(options.samples, share=share) for share in (False, True))
    ratio = round(together["worker_cpu_s"] / apart["worker_cpu_s"], 3)
    if options.json:
        print(json.dumps({"apart": apart, "together": together, "cpu_ratio": ratio}))
    else:
        print(f"apart: {apart}\ntogether: {together}\nprocessor time together / apart: {ratio}")


if __name__ == "__main__":
    main()
