"""The command `trainer-client load-test`: runs the test as often as asked, and reports the results.

Rules: figures go to standard output, everything else to standard error; the exit code is 0 only if nothing was lost or
repeated, no trainer failed, and every limit was kept; it distinguishes a lost server from other failures.
Loaders of its own are another program, started by its command and known by what it prints; none of their code is
imported here.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shared.errors import StokerError
from shared.extras import how_to_get
from shared.stores.own_files import refuse_closed
from trainer_client.load_test.conductor import Interrupts, conduct
from trainer_client.load_test.report.document import FORMAT, machine, markdown, read_report, versions, write_report
from trainer_client.load_test.report.figures import broken, curves_of, figures_of, together
from trainer_client.progress_bar import progress_bar

if TYPE_CHECKING:
    from trainer_client.load_test.report.figures import LoadLimits
    from trainer_client.load_test.thin_trainer import ThinRun

__all__ = ["JobError", "LoadTestOrder", "OwnJob", "load_test"]


#: Batches of about 64 rows of 50 tokens, 19 400 an epoch.
_JOB = """
[job]
name = "load-test"
seed = {seed}
listen = "tcp://127.0.0.1:*"

[streams.train]
source = "synthetic"
samples = 1_000_000
length = "tokens"
budget = "3200 tokens"
shapes = 8
"""

_SERVED = re.compile(rb"is served at (\S+)")
_READY_TIMEOUT_S = 60.0
_END_TIMEOUT_S = 15.0


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
        """Return the settings that affect the figures: `step_ms` None in drain, `workers` and `seed` of our own job."""
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
    """Run the test, print and write its report, and return the exit code.

    It is 0 if nothing is broken, else the highest code of the trainers' errors, at least 1. Raise SettingsError if the
    report's folder cannot be written or the older report is none of ours, JobError if our own loaders do not start,
    AttachError if a trainer cannot attach, CrewError if a process of the test ends early, ValueError if there are more
    trainers than batches in a group, KeyError or IndexError if the older report lacks a part, OSError if a process
    cannot be started or the disk is full, and KeyboardInterrupt at Ctrl-C or SIGTERM.
    """
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
    """Run all repeats and return the report's document: settings, machine, figures, runs.

    Raise JobError, AttachError, CrewError, ValueError, OSError and KeyboardInterrupt as `load_test` does.
    """
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
    """Run one repeat, with its own loaders unless running ones were named; return figures, exit code, limit and curves.

    Raise JobError if our own loaders do not start, AttachError if a trainer cannot attach, CrewError if a process of
    the test ends early, ValueError if there are more trainers than batches in a group, and KeyboardInterrupt at Ctrl-C
    or SIGTERM. OSError of `OwnJob` and of `conduct` passes through. The exit code is the highest of the trainers'
    errors, 0 without any; the first 20 errors are returned too.
    """
    with ExitStack() as stack:
        interrupts = stack.enter_context(Interrupts())
        progress = stack.enter_context(progress_bar())
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
            "limit": measured.limit,
            **curves_of(measured),
        }


class JobError(StokerError):
    """The loaders of the test did not start."""


class OwnJob:
    """Running synthetic job in a temporary folder, until `close`; trainers connect to `endpoint`.

    Making it raises JobError if the loaders do not start, KeyboardInterrupt at a signal, and OSError on a full disk.
    """

    def __init__(self, *, seed: int, workers: int, interrupts: Interrupts) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="stoker-load-test-"))
        self._process: subprocess.Popen[bytes] | None = None
        try:
            path = self.folder / "job.toml"
            path.write_text(_JOB.format(seed=seed), "utf-8")
            command = [sys.executable, "-m", "loader_server", "run", str(path), "--workers", str(workers)]
            with (self.folder / "loaders.log").open("wb") as log:
                # In a session of its own: a terminal's Ctrl-C would otherwise end the loaders before `close` does.
                self._process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, start_new_session=True
                )
            self.endpoint = self._wait_until_served(interrupts)
        except BaseException:  # re-raised, an interrupt too: nobody else knows the folder and the process yet
            self.close()
            raise

    def _wait_until_served(self, interrupts: Interrupts) -> str:
        """Return the endpoint that the loaders print; raise JobError if they end first, or take longer than a minute.

        Raise KeyboardInterrupt (or Terminated) at a signal.
        """
        assert self._process is not None
        assert self._process.stdout is not None
        pipe, output, until_s = self._process.stdout.fileno(), b"", time.monotonic() + _READY_TIMEOUT_S
        while time.monotonic() < until_s:
            ready = interrupts.wait([pipe], until_s - time.monotonic())
            received = os.read(pipe, 4096) if ready else b""
            output += received
            served = _SERVED.search(output)
            if served:
                return served[1].decode()
            if ready and not received:  # the end of their output: they have ended
                break
        raise JobError(
            expected="loaders that serve a synthetic job",
            got=self._last_words() or f"silence for {_READY_TIMEOUT_S:g} s",
            where="loader-server run, started by the load test",
            remedy=how_to_get("loader", "or name running loaders with --feed"),
        )

    def _last_words(self) -> str:
        lines = (self.folder / "loaders.log").read_text("utf-8", "replace").strip().splitlines()
        return " / ".join(lines[-3:])

    def cpu_s(self) -> float:
        """Return the processor time of all its processes that still run, in seconds."""
        assert self._process is not None
        return sum(_cpu_s(pid) for pid in (self._process.pid, *_children(self._process.pid)))

    def close(self) -> None:
        """End the loaders, kill them if that takes longer than 15 s, and remove the folder."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(_END_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()  # its children end with it
                self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def _children(pid: int) -> list[int]:
    """Return the ids of all processes below this one, each before its own children; none if it has ended."""
    try:
        children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split()]
    except OSError:
        return []
    return [descendant for child in children for descendant in (child, *_children(child))]


def _cpu_s(pid: int) -> float:
    """Return the processor time of a process; 0 if it has ended."""
    try:
        # From the last bracket on, because a program's name may have spaces and brackets.
        fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
