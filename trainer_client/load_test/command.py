"""The command `trainer-client load-test`: runs the test as often as asked, and reports the results.

Rules: figures go to standard output, everything else to standard error; the exit code is 0 only if nothing was lost or
repeated, no trainer failed, and every limit was kept; it distinguishes a lost server from other failures.
"""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from shared.stores.own_files import refuse_closed
from trainer_client.load_test.conductor import conduct
from trainer_client.load_test.interrupts import Interrupts
from trainer_client.load_test.own_job import OwnJob
from trainer_client.load_test.report.document import FORMAT, machine, markdown, read_report, versions, write_report
from trainer_client.load_test.report.figures import broken, curves_of, figures_of, together

if TYPE_CHECKING:
    from pathlib import Path

    from trainer_client.load_test.report.figures import LoadLimits
    from trainer_client.load_test.thin_trainer import ThinRun

__all__ = ["LoadTestOrder", "load_test"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadTestOrder:
    """Options of the command line."""

    mode: str
    #: What each trainer does; without an endpoint the test starts loaders of its own.
    run: ThinRun
    repeats: int
    processes: int
    #: Of the test's own job.
    workers: int
    seed: int
    limits: LoadLimits
    report: Path | None
    compare: Path | None
    as_json: bool

    @property
    def settings(self) -> dict[str, Any]:
        """Return the settings that affect the figures."""
        run = self.run
        own_job = {} if run.endpoint else {"workers": self.workers, "seed": self.seed}
        return {
            "trainers": run.world,
            "step_ms": round(1000 * run.step_s, 6) if self.mode == "train" else None,
            "seconds": run.seconds,
            "repeats": self.repeats,
            "processes": self.processes,
            "prefetch": run.prefetch,
            "by": "shared memory" if run.shared_memory else "TCP",
            "feed": run.endpoint,
            "stream": run.stream,
            **own_job,
        }


def load_test(order: LoadTestOrder) -> int:
    """Run the test, print and write its report, and return the exit code."""
    # Before anything runs: a folder or an old report that is of no use would be noticed only after minutes.
    if order.report is not None:
        refuse_closed(order.report, where="--report")
    old = read_report(order.compare) if order.compare is not None else None
    document = _document(order)
    if order.report is not None:
        for path in write_report(order.report, document, old):
            print(f"wrote {path}", file=sys.stderr)
    for error in dict.fromkeys(error for run in document["runs"] for error in run["errors"]):
        print(f"trainer-client: {error}", file=sys.stderr)
    for problem in document["broken"]:
        print(f"trainer-client: not kept: {problem}", file=sys.stderr)
    print(json.dumps(document["figures"]) if order.as_json else markdown(document, old), end="\n" * order.as_json)
    return max([1, *(run["exit_code"] for run in document["runs"])]) if document["broken"] else 0


def _document(order: LoadTestOrder) -> dict[str, Any]:
    """Run all repeats and return the report's document: settings, machine, figures, runs."""
    described = machine()  # first, because it has the load before the test
    at = datetime.now(timezone.utc).isoformat(timespec="seconds")
    runs = [_run(order, repeat) for repeat in range(order.repeats)]
    figures = together([run["figures"] for run in runs])
    return {
        "format": FORMAT,
        "mode": order.mode,
        "at": at,
        "settings": order.settings,
        "seed": order.seed,
        "limits": asdict(order.limits),
        "machine": described,
        "versions": versions(),
        "figures": figures,
        "broken": broken(figures, order.limits),
        "runs": runs,
    }


def _run(order: LoadTestOrder, repeat: int) -> dict[str, Any]:
    """Run one repeat, with loaders of its own unless running ones were named, and return its figures."""
    with ExitStack() as stack:
        interrupts = stack.enter_context(Interrupts())
        progress = stack.enter_context(_progress_bar())
        title = f"repeat {repeat + 1} of {order.repeats}" if order.repeats > 1 else order.mode
        steps = order.run.world * order.run.seconds / order.run.step_s if order.run.step_s else None
        task = progress.add_task(f"{title}: starting", total=steps)
        run, loader_cpu_s = order.run, None
        if not run.endpoint:
            job = stack.enter_context(closing(OwnJob(seed=order.seed, workers=order.workers, interrupts=interrupts)))
            run, loader_cpu_s = replace(run, endpoint=job.endpoint), job.cpu_s
        measured = conduct(
            run,
            min(order.processes, run.world),
            interrupts,
            loader_cpu_s,
            lambda done: progress.update(task, completed=done, description=f"{title}: {done} batches"),
        )
        return {
            "figures": figures_of(measured, run.world),
            "exit_code": max(measured.exit_codes, default=0),
            **curves_of(measured),
        }


def _progress_bar() -> Progress:
    """Return a progress bar on standard error, which shows nothing unless that is a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, disable=not console.is_terminal, transient=True)
