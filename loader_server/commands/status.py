"""`loader-server status`: the state of a running job, live, once, or as JSON."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.live import Live

from loader_server.commands.ask import ask_coordinator
from loader_server.commands.progress import plain_console
from loader_server.commands.status_view import tables
from loader_server.job_folder import JobFolder
from loader_server.machine.job_socket import ask_machine
from shared.errors import LostError
from shared.stations.limit import sentence
from shared.stations.reported import limit_of_report, queued_s_of_report, stations_of_report
from shared.wire.messages import Status, StatusQuery

if TYPE_CHECKING:
    import argparse

    from rich.console import Console, Group

__all__ = ["ask", "ask_all", "run", "tables", "with_limit"]

_REFRESH_S = 0.5

#: Lines of a live status besides those of workers, and the least for workers.
_OTHER_LINES, _LEAST_WORKERS = 12, 3


def run(options: argparse.Namespace) -> int:
    """Print the status of the job at an endpoint, or of all jobs served beside a job file's; return the exit code.

    In a terminal it is live, unless `once` or `json` is set, until an interrupt or an error ends it. Raises LostError
    if nobody answers in time, RefusedError if the coordinator refuses, SettingsError if a key, the job file or the
    machine's socket cannot be used, ProtocolError if an answer cannot be decoded, or MachineError if there is no room
    for a connection. Other errors of asking pass through.
    """

    def look() -> dict[str, Any]:
        if "://" in options.endpoint:
            return with_limit(ask(options.endpoint, keys=options.keys, timeout_s=options.timeout_seconds))
        jobs = ask_all(Path(options.endpoint), timeout_s=options.timeout_seconds)["jobs"]
        return {"jobs": [job | {"report": job["report"] and with_limit(job["report"])} for job in jobs]}

    console = plain_console()
    if options.json:
        print(json.dumps(look()))
    elif options.once or not console.is_terminal:
        console.print(tables(look()))
    else:
        # On a screen of its own, whole pictures only: what does not fit is cut at the end, where it matters least.
        with Live(_screen(look(), console), console=console, auto_refresh=False, screen=True) as live:
            while True:
                time.sleep(_REFRESH_S)
                live.update(_screen(look(), console), refresh=True)
    return 0


def _screen(report: dict[str, Any], console: Console) -> Group:
    """Return what fits on a terminal's screen of a report, with the workers that are out of line first."""
    return tables(report, most_workers=max(_LEAST_WORKERS, console.height - _OTHER_LINES))


def ask_all(path: Path, *, timeout_s: float = 30.0) -> dict[str, Any]:
    """Return the jobs of the machine that serves this one, each with its report, or None if it does not answer.

    Raises LostError if no process serves this job, SettingsError if a job file, a key or the machine's socket cannot be
    used, or the error with which the process or a coordinator refuses. Other errors of `ask` pass through.
    """
    jobs = ask_machine(JobFolder(path).state, timeout_s=timeout_s, do="jobs")["jobs"]
    return {"jobs": [job | {"report": _report_of(job, timeout_s)} for job in jobs]}


def _report_of(job: dict[str, Any], timeout_s: float) -> dict[str, Any] | None:
    """Return the report of a job's coordinator; None if it does not serve yet, or does not answer in time.

    Raises RefusedError if it refuses, and SettingsError if its job file or a key cannot be read; other errors of `ask`
    pass through.
    """
    if job["endpoint"] is not None:
        with contextlib.suppress(LostError):
            return ask(job["endpoint"], keys=JobFolder(job["file"]).keys, timeout_s=timeout_s)
    return None


def ask(endpoint: str, *, keys: str | Path | None = None, timeout_s: float = 30.0) -> dict[str, Any]:
    """Return the coordinator's status report on its job, as plain facts; `with_limit` works out what limits the job.

    Raises LostError if it does not answer in time, RefusedError if it refuses, SettingsError if a key or the endpoint
    cannot be used, ProtocolError if the answer cannot be decoded, or MachineError if there is no room for a connection.
    """
    status = ask_coordinator(endpoint, StatusQuery(), Status, keys=keys, timeout_s=timeout_s)
    report: dict[str, Any] = json.loads(status.report)
    return report


def with_limit(report: dict[str, Any]) -> dict[str, Any]:
    """Return a coordinator's report and, as `limit`, what limits its job.

    That is the facts of `JobLimit`, the `sentence`, how busy `stations` are, and `queued_s`, how long wants wait in the
    queues of workers (None: unknown).
    """
    limit = limit_of_report(report)
    more = {
        "sentence": sentence(limit),
        "stations": stations_of_report(report),
        "queued_s": queued_s_of_report(report),
    }
    return report | {"limit": dataclasses.asdict(limit) | more}
