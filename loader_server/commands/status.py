"""`loader-server status`: the state of a running job, as a live table, a table, or JSON."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from loader_server.commands.ask import ask_coordinator
from loader_server.job_folder import JobFolder
from loader_server.machine.job_socket import ask_machine
from shared.errors import LostError
from shared.wire.messages import Status, StatusQuery

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["ask", "ask_all", "show"]

_REFRESH_S = 0.5

#: Limit of names in a cell or line.
_MOST_NAMED = 8


def show(of: str, *, keys: str, timeout_s: float, as_json: bool, once: bool) -> None:
    """Print the status of the job at an endpoint, or of all jobs served beside a job file's.

    In a terminal it is live, unless `once` or `as_json` is set.
    """

    def look() -> dict[str, Any]:
        if "://" in of:
            return ask(of, keys=keys, timeout_s=timeout_s)
        return ask_all(Path(of), timeout_s=timeout_s)

    console = Console()
    if as_json:
        print(json.dumps(look()))
    elif once or not console.is_terminal:
        console.print(tables(look()))
    else:
        with Live(tables(look()), console=console, auto_refresh=False) as live:
            while True:
                time.sleep(_REFRESH_S)
                live.update(tables(look()), refresh=True)


def ask_all(path: Path, *, timeout_s: float = 30.0) -> dict[str, Any]:
    """Return the jobs of the machine that serves this one, each with its report, or None if it does not answer."""
    jobs: list[dict[str, Any]] = ask_machine(JobFolder(path).state, timeout_s=timeout_s, do="jobs")["jobs"]
    return {"jobs": [job | {"report": _report_of(job, timeout_s)} for job in jobs]}


def _report_of(job: dict[str, Any], timeout_s: float) -> dict[str, Any] | None:
    if job["endpoint"] is None:
        return None
    with contextlib.suppress(LostError):
        return ask(job["endpoint"], keys=JobFolder(job["file"]).keys, timeout_s=timeout_s)
    return None


def ask(endpoint: str, *, keys: str | Path | None = None, timeout_s: float = 30.0) -> dict[str, Any]:
    """Return the coordinator's report.

    Raises LostError if it does not answer in time, or RefusedError if it refuses.
    """
    answer = ask_coordinator(endpoint, StatusQuery(), Status, keys=keys, timeout_s=timeout_s)
    report: dict[str, Any] = json.loads(answer.report)
    return report


def tables(report: dict[str, Any]) -> Group:
    """Return the tables and lines of a report on one job or on several."""
    if "jobs" in report:
        told = [tables(job["report"]) for job in report["jobs"] if job["report"] is not None]
        return Group(_jobs(report["jobs"]), *told)
    parts: list[Table | str] = [
        _streams(report),
        *_queues(report),
        *_worlds(report),
        *_verifiers(report),
        *_results(report),
        _workers(report),
        *_remote(report),
        *_lines(report),
    ]
    return Group(f"job [bold]{report['job']}[/]", *parts)


def _jobs(jobs: list[dict[str, Any]]) -> Table:
    table = Table("job", "endpoint", "workers", "is")
    for job in jobs:
        silent = job["endpoint"] is not None and job["report"] is None
        table.add_row(
            job["job"], job["endpoint"] or "-", str(job["workers"]), "not answering" if silent else job["stage"]
        )
    return table


def _streams(report: dict[str, Any]) -> Table:
    table = Table("stream", "epoch", "trained", "read", "of", "done", "group", "waited", "trainers")
    for name, stream in report["streams"].items():
        batches, waited = stream["batches"], stream["waited_permille"]
        table.add_row(
            f"{name} (evaluation)" if stream["evaluation"] else name,
            str(stream["epoch"]),
            str(stream["number"]),
            _read(stream),
            str(batches or "-"),
            f"{stream['number'] / batches:.1%}" if batches else "-",
            str(stream["group"] or "-"),
            "-" if waited is None else f"{waited / 1000:.0%}",
            _trainers(stream),
        )
    return table


def _queues(report: dict[str, Any]) -> Iterator[Table]:
    """Yield the table of leases, if a stream is in queue mode."""
    rows = [(name, work, one) for name, stream in report["streams"].items() for work, one in _leases(stream)]
    if rows:
        table = Table(
            "queue", "work", "epoch", "open", "running", "done", "failed", "expired", "given back", "given up"
        )
        for name, work, one in rows:
            counted = ("epoch", "open", "leased", "done", "failed", "expired", "returned", "dead")
            table.add_row(name, work, *(str(one[key]) for key in counted))
        yield table


def _worlds(report: dict[str, Any]) -> Iterator[Table]:
    """Yield the table of elastic worlds, if a stream has one."""
    rows = [(name, stream["elastic"]) for name, stream in report["streams"].items() if stream["elastic"]]
    if rows:
        table = Table("elastic", "world", "is", "trainers", "of", "waiting", "changes", "last change")
        for name, one in rows:
            limits = f"{one['least']} to {one['most']}"
            counted = (str(len(one["members"])), limits, str(len(one["waiting"])), str(one["changes"]))
            table.add_row(name, str(one["version"]), one["stage"], *counted, one["reason"] or "-")
        yield table


def _verifiers(report: dict[str, Any]) -> Iterator[Table]:
    """Yield the table of verifiers (readers that are not trainers), if there are any."""
    rows = [(name, verifier) for name, stream in report["streams"].items() for verifier in stream["verifiers"]]
    if rows:
        table = Table("verified", "by", "epoch", "read", "of", "silent s")
        for name, verifier in rows[:_MOST_NAMED]:
            counted = ("name", "read_epoch", "read_number", "batches", "silent_s")
            table.add_row(name, *(str(verifier[key]) for key in counted))
        yield table


def _results(report: dict[str, Any]) -> Iterator[Table]:
    """Yield the table of losses and metrics over all ranks, if any were reported."""
    rows = [row for name, stream in report["streams"].items() for row in _results_of(name, stream)]
    if rows:
        table = Table("results", "after epochs", "step", "samples", "over all ranks")
        for name, one in rows:
            values = ", ".join(f"{key} {_number(value)}" for key, value in one["values"].items())
            table.add_row(name, str(one["epoch"]), str(one["step"]), str(one["rows"]), values)
        yield table


def _results_of(name: str, stream: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return a stream's latest results, or those of each evaluation if several are known.

    Evaluations are shown apart because they may be of different models.
    """
    if len(stream["evaluations"]) > 1:
        return [(f"{name}, {one['evaluation']}", one) for one in stream["evaluations"]]
    return [(name, stream["results"])] if stream["results"] else []


def _number(value: float | None) -> str:
    return "not a number" if value is None else f"{value:.4g}"


def _leases(stream: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return list((stream["queue"] or {}).items())


def _read(stream: dict[str, Any]) -> str:
    """Return the next batch to be read, with its epoch if that is not the one being trained on."""
    if stream["read_number"] is None:
        return "-"
    other_epoch = stream["read_epoch"] != stream["epoch"]
    return f"{stream['read_number']} of epoch {stream['read_epoch']}" if other_epoch else str(stream["read_number"])


def _trainers(stream: dict[str, Any]) -> str:
    named = [_trainer(one) for one in stream["trainers"][:_MOST_NAMED]]
    more = stream["attached"] - len(named)
    return ", ".join([*named, *([f"and {more} more"] if more else [])]) or "-"


def _trainer(trainer: dict[str, Any]) -> str:
    last = trainer["rank"] + trainer["replicas"] - 1
    ranks = f"rank {trainer['rank']}" if last == trainer["rank"] else f"ranks {trainer['rank']}-{last}"
    return f"{ranks} of {trainer['world']} ({trainer['name']})"


def _workers(report: dict[str, Any]) -> Table:
    table = Table("worker", "endpoint", "waiting", "building", "built", "masked", "from cache", "silent s")
    for one in report["workers"]:
        table.add_row(
            one["name"],
            one["endpoint"],
            *(str(one[key]) for key in ("waiting", "building", "built", "masked")),
            _share_kept(one),
            str(one["silent_s"]),
        )
    return table


def _remote(report: dict[str, Any]) -> Iterator[Table]:
    """Yield the table of remote reads (from stores, and from the disk cache), if there are any."""
    rows = [one for one in report["workers"] if one["remote_bytes"] or one["remote_found"]]
    if rows:
        table = Table("remote files of", "fetched", "blocks found", "waited for")
        for one in rows:
            fetched = f"{one['remote_bytes'] / 2**20:,.1f} MiB"
            table.add_row(one["name"], fetched, str(one["remote_found"]), str(one["remote_waited"]))
        yield table


def _share_kept(worker: dict[str, Any]) -> str:
    """Return the share of a worker's samples that were feature cache hits."""
    return f"{worker['kept'] / (worker['kept'] + worker['decoded']):.0%}" if worker["kept"] else "-"


def _lines(report: dict[str, Any]) -> Iterator[str]:
    """Yield lines on what is not in the tables: what was cut, what fails, and what the bottleneck is."""
    for what, count in report["cut"].items():
        yield f"and {count} more {what}: the report is cut to what a message carries"
    yield from _about_journal(report["journal"])
    yield from _about_workers(report)
    ends = report["ends"]
    if ends is not None:
        yield f"the job ends: {ends['trainers']} trainers are attached, with {ends['leased']} leased batches to finish"
    for name, stream in report["streams"].items():
        for work, one in _leases(stream):
            yield from _failures(name, work, one)
            yield from _given_up(name, work, one)
    for name, stream in report["streams"].items():
        results = stream["results"]
        if results and results["ended"] and not stream["attached"]:
            yield f"{name}: the run came to its end after epoch {results['epoch']}: {results['ended']}"
        yield from _waits(name, stream["elastic"])
    for name, stream in report["streams"].items():
        if stream["limit"] is not None:
            yield _limit(name, stream["limit"], stream["waited_permille"] / 1000)


def _about_journal(journal: dict[str, Any]) -> Iterator[str]:
    if journal["lost"]:
        yield f"the journal is lost: {journal['lost']}. In queue mode nothing is leased until it is back"
    elif journal["waiting"]:
        yield f"the journal cannot be written: it lacks {journal['waiting']} facts, and in queue mode nothing is leased"


def _about_workers(report: dict[str, Any]) -> Iterator[str]:
    for failing in report["failing"]:
        how = "serves only in part" if failing["in_part"] else "cannot serve"
        yield "worker {worker} {how}: {where}: expected {expected}, got {got}. {remedy}".format(how=how, **failing)
    taken = sum(one["taken"] for one in report["workers"])
    if taken:
        built = sum(one["built"] for one in report["workers"])
        yield f"share: {taken} of the {built} batches that these workers pushed had been built by others"


def _given_up(stream: str, work: str, table: dict[str, Any]) -> Iterator[str]:
    if table["dead"]:
        named = [_dead_letter(one) for one in table["dead_letters"][:_MOST_NAMED]]
        more = table["dead"] - len(named)
        which = ", ".join([*named, *([f"and {more} more"] if more else [])])
        yield f"{stream} ({work}): batches were given up because trainers failed at them too often: {which}"


def _dead_letter(letter: dict[str, Any]) -> str:
    return f"{letter['number']} of epoch {letter['epoch']} ({letter['reason']})"


def _failures(stream: str, work: str, table: dict[str, Any]) -> Iterator[str]:
    """Yield a line on why batches failed, the commonest reasons first."""
    reasons = list(table["reasons"].items())
    if reasons:
        named = [f"{reason} ({count})" for reason, count in reasons[:_MOST_NAMED]]
        more = sum(count for _, count in reasons[_MOST_NAMED:])
        yield f"{stream} ({work}): tries failed: {'; '.join([*named, *([f'and {more} others'] if more else [])])}"


def _waits(stream: str, elastic: dict[str, Any] | None) -> Iterator[str]:
    if elastic is None or elastic["stage"] in ("training", "ended"):
        return
    if elastic["leaving"]:
        yield f"{stream}: the next world begins once these have joined: {', '.join(elastic['leaving'][:_MOST_NAMED])}"
    elif len(elastic["waiting"]) < elastic["least"]:
        missing = elastic["least"] - len(elastic["waiting"])
        yield f"{stream}: nobody trains, {missing} more of at least {elastic['least']} trainers are waited for"


def _limit(stream: str, limit: str, waited: float) -> str:
    if limit == "loaders":
        return f"{stream}: the loaders are the limit, trainers waited {waited:.0%} of their time"
    return f"{stream}: the trainers are the limit, they waited {waited:.0%} of their time"
