"""`loader-server status`: the state of a running job, as a live table, a table, or JSON."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.live import Live

from loader_server.commands.ask import ask_coordinator
from loader_server.commands.progress import filled_table
from loader_server.job_folder import JobFolder
from loader_server.machine.job_socket import ask_machine
from loader_server.processor.native_code import native_code_lines
from shared.errors import LostError
from shared.stations.limit import sentence
from shared.stations.reported import limit_of_report
from shared.wire.messages import Status, StatusQuery

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator

    from rich.table import Table

__all__ = ["ask", "ask_all", "run", "with_limit"]

_REFRESH_S = 0.5

#: Limit of names in a cell or line.
_MOST_NAMED = 8


def run(options: argparse.Namespace) -> int:
    """Print the status of the job at an endpoint, or of all jobs served beside a job file's; return the exit code.

    In a terminal it is live, unless `once` or `json` is set, until an interrupt or an error ends it. Raises LostError
    if nobody answers in time, RefusedError if the coordinator refuses, SettingsError if a key, the job file or the
    machine's socket cannot be used, ProtocolError if an answer cannot be decoded, or MachineError if there is no room
    for a connection. Other errors of asking pass through.
    """

    def look() -> dict[str, Any]:
        if "://" in options.endpoint:
            return ask(options.endpoint, keys=options.keys, timeout_s=options.timeout_seconds)
        return ask_all(Path(options.endpoint), timeout_s=options.timeout_seconds)

    console = Console()
    if options.json:
        print(json.dumps(look()))
    elif options.once or not console.is_terminal:
        console.print(tables(look()))
    else:
        with Live(tables(look()), console=console, auto_refresh=False) as live:
            while True:
                time.sleep(_REFRESH_S)
                live.update(tables(look()), refresh=True)
    return 0


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
    """Return the coordinator's status report on its job, as plain facts, with the `limit` that follows from it.

    Raises LostError if it does not answer in time, RefusedError if it refuses, SettingsError if a key or the endpoint
    cannot be used, ProtocolError if the answer cannot be decoded, or MachineError if there is no room for a connection.
    """
    status = ask_coordinator(endpoint, StatusQuery(), Status, keys=keys, timeout_s=timeout_s)
    return with_limit(json.loads(status.report))


def with_limit(report: dict[str, Any]) -> dict[str, Any]:
    """Return a coordinator's report with what limits its job, as `limit`."""
    verdict = limit_of_report(report)
    return report | {"limit": dataclasses.asdict(verdict) | {"sentence": sentence(verdict)}}


def tables(report: dict[str, Any]) -> Group:
    """Return the tables and lines of a report on one job or on several; a job whose report is None has only a row."""
    if "jobs" in report:
        of_jobs = [tables(job["report"]) for job in report["jobs"] if job["report"] is not None]
        return Group(filled_table(("job", "endpoint", "workers", "is"), map(_job_cells, report["jobs"])), *of_jobs)
    streams = report["streams"]
    parts: list[Table | str] = [
        filled_table(
            ("stream", "epoch", "trained", "read", "of", "done", "group", "waited", "trainers"),
            (_stream_cells(name, stream) for name, stream in streams.items()),
        ),
        *_some(
            ("queue", "work", "epoch", "open", "running", "done", "failed", "expired", "given back", "given up"),
            ((name, work, *_lease_cells(table)) for name, work, table in _leases(streams)),
        ),
        *_some(
            ("elastic", "world", "is", "trainers", "of", "waiting", "changes", "last change"),
            ((name, *_world_cells(stream["elastic"])) for name, stream in streams.items() if stream["elastic"]),
        ),
        *_some(("verified", "by", "epoch", "read", "of", "silent s"), _verifier_rows(streams)),
        *_some(("results", "after epochs", "step", "samples", "over all ranks"), _result_rows(streams)),
        filled_table(
            ("worker", "endpoint", "waiting", "building", "built", "masked", "from cache", "silent s"),
            map(_worker_cells, report["workers"]),
        ),
        *_some(("remote files of", "fetched", "blocks found", "waited for"), _remote_rows(report["workers"])),
        *_lines(report),
    ]
    return Group(f"job [bold]{report['job']}[/]", *parts)


def _some(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> list[Table]:
    """Return the table, or no table if there are no rows: most jobs have no queue, no elastic world, no verifier."""
    table = filled_table(columns, rows)
    return [table] if table.rows else []


# --- rows ---


def _job_cells(job: dict[str, Any]) -> list[str]:
    is_silent = job["endpoint"] is not None and job["report"] is None
    stage = "not answering" if is_silent else job["stage"]
    return [job["job"], job["endpoint"] or "-", str(job["workers"]), stage]


def _stream_cells(name: str, stream: dict[str, Any]) -> list[str]:
    batches, waited = stream["batches"], stream["waited_permille"]
    return [
        f"{name} (evaluation)" if stream["evaluation"] else name,
        str(stream["epoch"]),
        str(stream["number"]),
        _read(stream),
        str(batches or "-"),
        f"{stream['number'] / batches:.1%}" if batches else "-",
        str(stream["group"] or "-"),
        "-" if waited is None else f"{waited / 1000:.0%}",
        _named(map(_trainer, stream["trainers"][:_MOST_NAMED]), stream["attached"]) or "-",
    ]


def _read(stream: dict[str, Any]) -> str:
    """Return the next batch to be read, with its epoch if that is not the one being trained on; "-" if not known."""
    if stream["read_number"] is None:
        return "-"
    other_epoch = stream["read_epoch"] != stream["epoch"]
    return f"{stream['read_number']} of epoch {stream['read_epoch']}" if other_epoch else str(stream["read_number"])


def _named(names: Iterable[str], total: int) -> str:
    """Return these names in a line, and how many of the total are missing there."""
    named = list(names)
    more = [f"and {total - len(named)} more"] if total > len(named) else []
    return ", ".join(named + more)


def _trainer(trainer: dict[str, Any]) -> str:
    if trainer["rank"] is None:
        return str(trainer["name"])
    last = trainer["rank"] + trainer["replicas"] - 1
    ranks = f"rank {trainer['rank']}" if last == trainer["rank"] else f"ranks {trainer['rank']}-{last}"
    return f"{ranks} of {trainer['world']} ({trainer['name']})"


def _leases(streams: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield the name, work and lease table of each stream in queue mode."""
    for name, stream in streams.items():
        for work, table in (stream["queue"] or {}).items():
            yield name, work, table


def _lease_cells(table: dict[str, Any]) -> list[str]:
    first, last = table["epochs"]
    epochs = str(first) if first == last else f"{first} to {last}"
    counts = ("open", "leased", "done", "failed", "expired", "returned", "dead")
    return [epochs, *(str(table[key]) for key in counts)]


def _world_cells(world: dict[str, Any]) -> list[str]:
    limits = f"{world['least']} to {world['most']}"
    counts = (str(len(world["members"])), limits, str(len(world["waiting"])), str(world["changes"]))
    return [str(world["version"]), world["stage"], *counts, world["reason"] or "-"]


def _verifier_rows(streams: dict[str, Any]) -> list[list[str]]:
    """Return the rows on verifiers, which read a stream but train on nothing: the first eight, maybe none."""
    keys = ("name", "read_epoch", "read_number", "batches", "silent_s")
    verifiers = [(name, verifier) for name, stream in streams.items() for verifier in stream["verifiers"]]
    return [[name, *(str(verifier[key]) for key in keys)] for name, verifier in verifiers[:_MOST_NAMED]]


def _result_rows(streams: dict[str, Any]) -> Iterator[list[str]]:
    """Yield a row for each result over all ranks: title, epoch, step, samples, values; none without results."""
    for name, stream in streams.items():
        for title, results in _results_of(name, stream):
            values = ", ".join(f"{key} {_number(value)}" for key, value in results["values"].items())
            step = "-" if results["step"] is None else str(results["step"])
            yield [title, str(results["epoch"]), step, str(results["rows"]), values]


def _results_of(name: str, stream: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return a stream's latest results, or those of each evaluation if several are known.

    Evaluations are shown apart because they may be of different models. Return none if there are no results.
    """
    if len(stream["evaluations"]) > 1:
        return [(f"{name}, {results['evaluation']}", results) for results in stream["evaluations"]]
    return [(name, stream["results"])] if stream["results"] else []


def _number(value: float | None) -> str:
    return "not a number" if value is None else f"{value:.4g}"


def _worker_cells(worker: dict[str, Any]) -> list[str]:
    counts = [str(worker[key]) for key in ("waiting", "building", "built", "masked")]
    # The share of its samples that were feature cache hits.
    hits = f"{worker['kept'] / (worker['kept'] + worker['decoded']):.0%}" if worker["kept"] else "-"
    return [worker["name"], worker["endpoint"], *counts, hits, str(worker["silent_s"])]


def _remote_rows(workers: list[dict[str, Any]]) -> Iterator[list[str]]:
    """Yield the rows on remote reads (from stores, and from the disk cache) of workers that made some."""
    for worker in workers:
        if worker["remote_bytes"] or worker["remote_found"]:
            fetched = f"{worker['remote_bytes'] / 2**20:,.1f} MiB"
            yield [worker["name"], fetched, str(worker["remote_found"]), str(worker["remote_waited"])]


# --- lines below the tables ---


def _lines(report: dict[str, Any]) -> Iterator[str]:
    """Yield lines on what is not in the tables: what was cut, what fails, and what the bottleneck is.

    There may be none.
    """
    streams = report["streams"]
    for kind, count in report["cut"].items():
        yield f"and {count} more {kind}: the report is cut to what a message carries"
    yield from _about_journal(report["journal"])
    yield from _about_workers(report)
    ends = report["ends"]
    if ends is not None:
        yield f"the job ends: {ends['trainers']} trainers are attached, with {ends['leased']} leased batches to finish"
    for name, work, table in _leases(streams):
        yield from _failures(name, work, table)
        yield from _given_up(name, work, table)
    for name, stream in streams.items():
        yield from _about_run(name, stream)
        yield from (f"{name}: {line}" for line in native_code_lines(stream["native_code"]))
    if any(trainer["lately"] for stream in streams.values() for trainer in stream["trainers"]):
        yield report["limit"]["sentence"]


def _about_journal(journal: dict[str, Any]) -> Iterator[str]:
    if journal["lost"]:
        yield f"the journal is lost: {journal['lost']}. In queue mode nothing is leased until it is back"
    elif journal["waiting"]:
        yield f"the journal cannot be written: it lacks {journal['waiting']} facts, and in queue mode nothing is leased"


def _about_workers(report: dict[str, Any]) -> Iterator[str]:
    for failing in report["failing"]:
        extent = "serves only in part" if failing["in_part"] else "cannot serve"
        yield "worker {worker} {extent}: {where}: expected {expected}, got {got}. {remedy}".format(
            extent=extent, **failing
        )
    if report["workers_wanted"] is not None:
        yield _wanted(len(report["workers"]) + report["cut"].get("workers", 0), report["workers_wanted"])
    taken = sum(worker["taken"] for worker in report["workers"])
    if taken:
        built = sum(worker["built"] for worker in report["workers"])
        yield f"share: {taken} of the {built} batches that these workers pushed had been built by others"


def _wanted(there: int, wanted: int) -> str:
    is_there = "1 is" if there == 1 else f"{there} are"
    return f"workers: {is_there} there, {'1 is' if wanted == 1 else f'{wanted} are'} wanted"


def _failures(stream: str, work: str, table: dict[str, Any]) -> Iterator[str]:
    """Yield a line on why batches failed, the commonest reasons first; nothing if none failed."""
    reasons = list(table["reasons"].items())
    if reasons:
        named = [f"{reason} ({count})" for reason, count in reasons[:_MOST_NAMED]]
        more = sum(count for _, count in reasons[_MOST_NAMED:])
        yield f"{stream} ({work}): tries failed: {'; '.join([*named, *([f'and {more} others'] if more else [])])}"


def _given_up(stream: str, work: str, table: dict[str, Any]) -> Iterator[str]:
    if table["dead"]:
        batches = (
            "{number} of epoch {epoch} ({reason})".format(**dead) for dead in table["dead_letters"][:_MOST_NAMED]
        )
        named = _named(batches, table["dead"])
        yield f"{stream} ({work}): batches were given up because trainers failed at them too often: {named}"


def _about_run(stream_name: str, stream: dict[str, Any]) -> Iterator[str]:
    """Yield lines on a run that is over, or that waits for trainers; nothing for others."""
    results = stream["results"]
    if results and results["ended"] and not stream["attached"]:
        yield f"{stream_name}: the run came to its end after epoch {results['epoch']}: {results['ended']}"
    elastic = stream["elastic"]
    if elastic is None or elastic["stage"] in ("training", "ended"):
        return
    if elastic["leaving"]:
        named = ", ".join(elastic["leaving"][:_MOST_NAMED])
        yield f"{stream_name}: the next world begins once these have joined: {named}"
    elif len(elastic["waiting"]) < elastic["least"]:
        missing = elastic["least"] - len(elastic["waiting"])
        yield f"{stream_name}: nobody trains, {missing} more of at least {elastic['least']} trainers are waited for"
