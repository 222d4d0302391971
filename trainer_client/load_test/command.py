"""The command `trainer-client load-test`: runs the test as often as asked, and reports the results.

Rules: figures go to standard output, everything else to standard error; the exit code is 0 only if nothing was lost or
repeated, no trainer failed, and every limit was kept; it distinguishes a lost server from other failures.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from shared.system.closed_places import refuse_closed
from trainer_client.load_test.conductor import LoadPlan, conduct
from trainer_client.load_test.interrupts import Interrupts
from trainer_client.load_test.own_job import OwnJob
from trainer_client.load_test.report.document import FORMAT, markdown, read_report, write_report
from trainer_client.load_test.report.figures import broken, curves_of, figures_of, together
from trainer_client.load_test.report.machine import machine, versions
from trainer_client.load_test.thin_trainer import ThinRun

if TYPE_CHECKING:
    from pathlib import Path

    from trainer_client.load_test.report.figures import LoadLimits

__all__ = ["Asked", "load_test"]

#: With more threads than this, threads of one Python process wait for each other more than for batches.
_TRAINERS_A_PROCESS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Options of the command line."""

    mode: str
    trainers: int
    step_ms: float
    seconds: float
    repeats: int
    processes: int
    prefetch: int
    tcp: bool
    feed: str
    stream: str
    keys: str
    connect_timeout_s: float
    workers: int
    seed: int
    limits: LoadLimits
    report: Path | None
    compare: Path | None
    as_json: bool

    @property
    def settings(self) -> dict[str, Any]:
        """Return the settings that affect the figures."""
        own = {} if self.feed else {"workers": self.workers or os.cpu_count() or 1, "seed": self.seed}
        return {
            "trainers": self.trainers,
            "step_ms": self.step_ms if self.mode == "train" else None,
            "seconds": self.seconds,
            "repeats": self.repeats,
            "processes": self.processes or _processes(self.trainers),
            "prefetch": self.prefetch,
            "by": "TCP" if self.tcp else "shared memory",
            "feed": self.feed,
            "stream": self.stream,
            **own,
        }


def _processes(trainers: int) -> int:
    return -(-trainers // _TRAINERS_A_PROCESS)


def load_test(asked: Asked) -> int:
    """Run the test, print and write its report, and return the exit code."""
    if asked.report is not None:
        refuse_closed(asked.report, where="--report")
    old = read_report(asked.compare) if asked.compare is not None else None
    document = _document(asked, machine())
    if asked.report is not None:
        for path in write_report(asked.report, document, old):
            print(f"wrote {path}", file=sys.stderr)
    for error in dict.fromkeys(error for run in document["runs"] for error in run["errors"]):
        print(f"trainer-client: {error}", file=sys.stderr)
    for said in document["broken"]:
        print(f"trainer-client: not kept: {said}", file=sys.stderr)
    print(json.dumps(document["figures"]) if asked.as_json else markdown(document, old), end="\n" * asked.as_json)
    return max([1, *(run["exit_code"] for run in document["runs"])]) if document["broken"] else 0


def _document(asked: Asked, where: dict[str, Any]) -> dict[str, Any]:
    """Run all repeats and return the report's document: settings, machine, figures, runs."""
    at = datetime.now(timezone.utc).isoformat(timespec="seconds")
    runs = [_run(asked, repeat) for repeat in range(asked.repeats)]
    figures = together([run["figures"] for run in runs])
    return {
        "format": FORMAT,
        "mode": asked.mode,
        "at": at,
        "settings": asked.settings,
        "seed": asked.seed,
        "limits": asdict(asked.limits),
        "machine": where,
        "versions": versions(),
        "figures": figures,
        "broken": broken(figures, asked.limits),
        "runs": runs,
    }


def _run(asked: Asked, repeat: int) -> dict[str, Any]:
    """Run one repeat, with loaders of its own unless running ones were named, and return its figures."""
    with ExitStack() as stack:
        interrupts = stack.enter_context(Interrupts())
        progress = stack.enter_context(_progress_bar())
        title = f"repeat {repeat + 1} of {asked.repeats}" if asked.repeats > 1 else asked.mode
        task = progress.add_task(f"{title}: starting", total=_expected_steps(asked))
        job = None
        if not asked.feed:
            job = stack.enter_context(
                OwnJob(seed=asked.seed, workers=asked.workers or os.cpu_count() or 1, interrupts=interrupts)
            )
        plan = LoadPlan(
            trainers=asked.trainers,
            processes=min(asked.processes or _processes(asked.trainers), asked.trainers),
            run=ThinRun(
                endpoint=job.endpoint if job else asked.feed,
                stream=asked.stream,
                world=asked.trainers,
                step_s=asked.step_ms / 1000 if asked.mode == "train" else 0.0,
                seconds=asked.seconds,
                prefetch=asked.prefetch,
                shared_memory=not asked.tcp,
                keys=asked.keys,
                connect_timeout_s=asked.connect_timeout_s,
            ),
        )
        measured = conduct(
            plan,
            interrupts,
            job.cpu_s if job else None,
            lambda steps: progress.update(task, completed=steps, description=f"{title}: {steps} batches"),
        )
        exit_code = max(measured.exit_codes, default=0)
        return {"figures": figures_of(measured, asked.trainers), "exit_code": exit_code, **curves_of(measured)}


def _expected_steps(asked: Asked) -> float | None:
    if asked.mode != "train" or not asked.step_ms:
        return None
    return asked.trainers * asked.seconds * 1000 / asked.step_ms


def _progress_bar() -> Progress:
    """Return a progress bar on standard error, which shows nothing unless that is a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, disable=not console.is_terminal, transient=True)
