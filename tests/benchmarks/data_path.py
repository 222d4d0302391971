"""The data path against its peers and against the raw limits of memory and sockets, interleaved in one session.

    python -m tests.benchmarks.data_path [--json] [--rounds 5] [--seconds 1.0] [--only PAYLOAD …] [--skip PART …]

Rules: all paths of a payload are open at once and run in turn, round after round, so that what else the machine does
meets all of them alike; figures are medians over rounds, ratios are medians of each round's ratio. CPU is counted for
both sides, the kernel's part included. A peer that is not installed is named in `skipped`. The last line is one JSON
object; with --json it is the only one.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.benchmarks.data_path_extras import grown_mb, scaling
from tests.benchmarks.data_path_payloads import PAYLOADS, write_shapes
from tests.benchmarks.data_path_peers import PEERS
from tests.benchmarks.data_path_speech import speech
from tests.benchmarks.data_path_stoker import make_job, planned_shapes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.benchmarks.data_path_payloads import Payload

__all__ = ["Consumer", "measured"]

_ROOT = Path(__file__).resolve().parents[2]
_STOKER = ("shared_memory", "torch_tensors", "jax_arrays", "tcp", "tcp_keys")
_PATHS = (*_STOKER, *PEERS)
_BASE = "tfdata_service"
_PARTS = ("growth", "scaling", "speech")

#: Shapes of bucketed batches that the peers go round in.
_SHAPES = 1000

Round = dict[str, float]


class Consumer:
    """One path's process, which runs when told to; `skipped` says why it cannot."""

    def __init__(self, path: str, payload: str, folder: Path) -> None:
        command = [sys.executable, "-m", "tests.benchmarks.data_path_consumer", path, payload, str(folder)]
        self._errors = (folder / f"{path}.log").open("w+")
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            cwd=_ROOT,
            env={**os.environ, "PYTHONPATH": str(_ROOT)},
            start_new_session=True,
        )
        self.skipped = "" if self._answer() else self._complaint()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        return json.loads(line) if line else None

    def _complaint(self) -> str:
        self._errors.seek(0)
        said = self._errors.read().strip().splitlines()
        return said[-1] if said else "it ended without a word"

    def run(self, seconds: float) -> Round:
        """Read for so long."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()
        answer = self._answer()
        if answer is None:
            raise RuntimeError(self._complaint())
        return dict(answer)

    def close(self) -> None:
        """End it, and whatever it started."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._errors.close()


def measured(
    payload: Payload, folder: Path, options: argparse.Namespace
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """The rows of one payload, and why paths were left out."""
    for path in _STOKER:
        job = make_job(folder / path, payload.stream, keys=path == "tcp_keys")
    shapes = [{key: shape[key] for key in payload.keys} for shape in planned_shapes(job, _SHAPES)]
    write_shapes(folder / "shapes.json", shapes if any(one != shapes[0] for one in shapes) else shapes[:1])
    consumers = {path: Consumer(path, payload.name, folder) for path in _PATHS}
    try:
        skipped = {path: one.skipped for path, one in consumers.items() if one.skipped}
        alive = {path: one for path, one in consumers.items() if not one.skipped}
        rounds = [{path: one.run(options.seconds) for path, one in alive.items()} for _ in range(options.rounds)]
    finally:
        for consumer in consumers.values():
            consumer.close()
    return [_row(payload.name, path, rounds) for path in alive], skipped


def _row(payload: str, path: str, rounds: list[dict[str, Round]]) -> dict[str, Any]:
    def middle(name: str) -> float:
        return round(statistics.median(one[path][name] for one in rounds), 3)

    ratios = [one[path]["batches_per_s"] / one[_BASE]["batches_per_s"] for one in rounds if _BASE in one]
    return {
        "payload": payload,
        "path": path,
        "batches_per_s": middle("batches_per_s"),
        "trainer_cpu_ms": middle("trainer_cpu_ms"),
        "worker_cpu_ms": middle("worker_cpu_ms"),
        "ratio_to_tfdata_service": round(statistics.median(ratios), 3) if ratios else None,
    }


def _table(rows: list[dict[str, Any]]) -> str:
    head = "| payload | path | batches/s | trainer CPU ms | loader CPU ms | of tf.data service |"
    return "\n".join([head, "|---|---|--:|--:|--:|--:|", *map(_line, rows)])


def _line(row: dict[str, Any]) -> str:
    ratio = row["ratio_to_tfdata_service"]
    return (
        f"| {row['payload']} | {row['path']} | {row['batches_per_s']:.0f} | {row['trainer_cpu_ms']:.2f} | "
        f"{row['worker_cpu_ms']:.2f} | {'' if ratio is None else format(ratio, '.2f')} |"
    )


def _extras(parts: set[str]) -> Mapping[str, Any]:
    found: dict[str, Any] = {}
    if "speech" in parts:
        found["speech"] = speech()
    if "scaling" in parts:
        found["scaling"] = scaling()
    if "growth" in parts:
        found |= grown_mb()
    return found


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print nothing but the JSON object")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each round and path")
    parser.add_argument("--only", nargs="*", choices=PAYLOADS, default=list(PAYLOADS), help="payloads")
    parser.add_argument("--skip", nargs="*", choices=_PARTS, default=[], help="parts beside the payloads")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    skipped: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="stoker-path-") as folder:
        for name in options.only:
            found, left_out = measured(PAYLOADS[name], Path(folder) / name, options)
            rows += found
            skipped |= left_out
            if not options.json:
                print(_table(found), flush=True)
    extras = _extras({*_PARTS} - {*options.skip})
    load = os.getloadavg()[2]
    print(json.dumps({"rows": rows, **extras, "skipped": skipped, "load_15_min": round(load, 2)}), flush=True)


if __name__ == "__main__":
    main()
