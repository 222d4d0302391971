"""Reads one job's epoch from several engines, undisturbed and with a node lost, and compares the digests.

    python -m tests.fleet --engines hosts,containers,slurm,ray,kubernetes --json

The reference is `loader-server run` on one machine. With the hosts, the lines of the page that lead from nothing to
training are typed as well. An engine that cannot be had here is left out, with the reason. The exit code is 1 if
digests differ, a batch is lost or came again, or a bound is not held.
"""

from __future__ import annotations

import argparse
import importlib
import json
import signal
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from tests.fleet.hosts import FOUND_WITHIN_S
from tests.fleet.job import copy_job, longest_gap_s, reference, write_job
from tests.fleet.judging import Expected, faults_of
from tests.fleet.ray_scale import MOST_CHANGES, RIGHT_WITHIN_S
from tests.fleet.steps import type_steps

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]

_ENGINES = ("hosts", "containers", "slurm", "ray", "kubernetes")


@dataclass(slots=True)
class _Outcome:
    """What came of the engines."""

    digest: str = ""
    batches: int = 0
    engines: dict[str, dict[str, Any]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    #: How many lines were typed from nothing to training; None: there are no hosts to type them on.
    steps: int | None = None

    @property
    def faults(self) -> list[str]:
        """What is wrong."""
        expected = Expected(
            digest=self.digest,
            batches=self.batches,
            longest_gap_s=longest_gap_s(),
            found_within_s=FOUND_WITHIN_S,
            right_within_s=RIGHT_WITHIN_S,
            most_changes=MOST_CHANGES,
        )
        return faults_of(self.engines, expected)

    def document(self) -> dict[str, Any]:
        """Return all of it as plain values."""
        return {
            "digest": self.digest,
            "batches": self.batches,
            "steps": self.steps,
            "engines": self.engines,
            "left_out": self.left_out,
            "scale": self.engines.get("ray", {}).get("scale"),
            "bound_s": longest_gap_s(),
            "faults": self.faults,
        }


def main(words: Sequence[str] | None = None) -> int:
    """Run the engines that the arguments name."""
    options = _options(words)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that engines are taken down
    outcome = _Outcome()
    with tempfile.TemporaryDirectory(prefix="stoker-fleet-", ignore_cleanup_errors=True) as folder:
        work = Path(folder)
        work.chmod(0o755)  # containers read it as another user
        job = write_job(work / "job")
        outcome.digest, outcome.batches = reference(copy_job(job, work / "one-machine"))
        for name in options.engines:
            _run_engine(name, job, work / name, outcome)
    _print_table(outcome)
    if options.json:
        print(json.dumps(outcome.document(), ensure_ascii=False))
    return 1 if outcome.faults else 0


def _options(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", type=_engines, default=_ENGINES, help=f"some of {','.join(_ENGINES)} (all)")
    parser.add_argument("--json", action="store_true", help="print one line of JSON as the last one")
    return parser.parse_args(words)


def _engines(text: str) -> list[str]:
    names = text.split(",")
    if unknown := set(names) - set(_ENGINES):
        raise argparse.ArgumentTypeError(f"expected some of {', '.join(_ENGINES)}, got {', '.join(sorted(unknown))}")
    return names


def _run_engine(name: str, job: Path, work: Path, outcome: _Outcome) -> None:
    """Measure one engine, or note why it cannot be had or what it failed of."""
    engine = importlib.import_module(f"tests.fleet.{name}")
    reason = engine.reason_not_here()
    if reason:
        outcome.left_out[name] = reason
        return
    print(f"{name} …", file=sys.stderr, flush=True)
    begun_s = time.monotonic()
    work.mkdir()
    try:
        result: dict[str, Any] = engine.measure(job, work)
        if name == "hosts":
            outcome.steps = type_steps(work / "steps")
    except Exception as error:  # the other engines are still to be measured
        traceback.print_exc()
        result = {"error": f"{type(error).__name__}: {error}"}
    outcome.engines[name] = result | {"seconds": round(time.monotonic() - begun_s, 1)}


def _print_table(outcome: _Outcome) -> None:
    table = Table("engine", "case", "digest", "longest gap", "seconds")
    table.add_row("one machine", "undisturbed", outcome.digest, "", "")
    for name, engine in outcome.engines.items():
        table.add_row(name, "undisturbed", engine.get("digest", engine.get("error")), "", str(engine["seconds"]))
        for case, figures in engine.items():
            if isinstance(figures, dict) and "gap_s" in figures:
                table.add_row("", case.replace("_", " "), figures["digest"], f"{figures['gap_s']:.2f} s", "")
    for name, reason in outcome.left_out.items():
        table.add_row(name, "left out", reason, "", "")
    Console(width=120).print(table)
    if outcome.steps is not None:
        print(f"{outcome.steps} lines were typed from nothing to training on three hosts.")
    for fault in outcome.faults:
        print(f"FAULT {fault}")


if __name__ == "__main__":
    sys.exit(main())
