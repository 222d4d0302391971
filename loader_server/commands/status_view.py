"""The status of a job for people: what limits it first, then its streams, then workers that are out of line.

Rules: made for 80 columns. A worker is out of line if it is silent, fails or masks samples. Colours mark what
is out of line, and say nothing that the words do not say.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from loader_server.processor.native_code import native_code_lines

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["tables"]

#: Limit of names in a cell or line.
_MOST_NAMED = 8

#: Workers that were silent for longer are out of line: heartbeats come twice a second.
_SILENT_S = 2.0

#: Share of waiting that is marked.
_MUCH_WAITING = 0.5


def tables(report: dict[str, Any], *, most_workers: int | None = None) -> Group:
    """Return the tables and lines of a report on one job or on several; a job whose report is None has only a row.

    Of each job at most so many workers have a row; None: all of them.
    """
    if "jobs" in report:
        of_jobs = [
            tables(job["report"], most_workers=most_workers) for job in report["jobs"] if job["report"] is not None
        ]
        return Group(_table(("job", "endpoint", "workers", "is"), map(_job_cells, report["jobs"])), *of_jobs)
    streams = report["streams"]
    workers = sorted(report["workers"], key=lambda worker: (not _is_out_of_line(worker), _natural(worker["name"])))
    shown = workers[:most_workers]
    parts: list[Table | str] = [
        *_limit(report),
        _table(
            ("stream", "epoch", "trained", "of", "read", "waited", "batches/s", "left", "trainers"),
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
        *(_trainers_line(name, stream) for name, stream in streams.items() if stream["trainers"]),
        *_lines(report),
        "",
        _table(
            ("worker", "at", "busy", "waiting", "building", "built", "masked", "cached", "silent s"),
            map(_worker_cells, shown),
        ),
        *_more(workers[len(shown) :]),
        *_some(("remote files of", "fetched", "blocks found", "waited for"), _remote_rows(shown)),
    ]
    return Group(Text.assemble("job ", (report["job"], "bold")), *parts)


def _table(columns: Iterable[str], rows: Iterable[Iterable[str | Text]]) -> Table:
    table = Table(*columns, box=None, padding=(0, 1, 0, 0), header_style="dim")
    for cells in rows:
        table.add_row(*cells)
    return table


def _some(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> list[Table]:
    """Return the table, or no table if there are no rows: most jobs have no queue, no elastic world, no verifier."""
    table = _table(columns, rows)
    return [table] if table.rows else []


def _limit(report: dict[str, Any]) -> Iterator[str]:
    """Yield the sentence on what limits the job, and how busy stations are, if trainers read; then an empty line.

    A report without `limit`, as the coordinator sends it, has only the empty line.
    """
    trainers = [trainer for stream in report["streams"].values() for trainer in stream["trainers"]]
    if "limit" in report and any(trainer["lately"] for trainer in trainers):
        limit = report["limit"]
        yield limit["sentence"]
        if limit["stations"]:
            shares = ", ".join(f"{name} {share:.0%}" for name, share in limit["stations"].items())
            queued = "" if limit["queued_s"] is None else f"; wants queue {1000 * limit['queued_s']:,.0f} ms"
            yield f"busy: {shares}{queued}"
    yield ""


def _more(workers: list[dict[str, Any]]) -> Iterator[str]:
    """Yield a line on workers that have no row; nothing if all have one."""
    if workers:
        odd = sum(map(_is_out_of_line, workers))
        yield f"and {len(workers)} more, {f'{odd} of them out of line' if odd else 'all well'}"


def _is_out_of_line(worker: dict[str, Any]) -> bool:
    return bool(worker["silent_s"] > _SILENT_S or worker["masked"] > 0)


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a key that sorts vm-2 before vm-10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"([0-9]+)", name)]


def _marked(text: str, *, is_odd: bool) -> Text:
    return Text(text, "red" if is_odd else "")


# --- rows ---


def _job_cells(job: dict[str, Any]) -> list[str]:
    is_silent = job["endpoint"] is not None and job["report"] is None
    stage = "not answering" if is_silent else job["stage"]
    return [job["job"], job["endpoint"] or "-", str(job["workers"]), stage]


def _stream_cells(name: str, stream: dict[str, Any]) -> list[str | Text]:
    batches, waited = stream["batches"], stream["waited_permille"]
    rate = _rate(stream)
    return [
        f"{name} (evaluation)" if stream["evaluation"] else name,
        str(stream["epoch"]),
        str(stream["number"]),
        str(batches or "-"),
        _read(stream),
        "-" if waited is None else _marked(f"{waited / 1000:.0%}", is_odd=waited > 1000 * _MUCH_WAITING),
        f"{rate:,.1f}" if rate else "-",
        _time(max(0, batches - stream["number"]) / rate) if rate and batches and not stream["evaluation"] else "-",
        str(stream["attached"] or "-"),
    ]


def _rate(stream: dict[str, Any]) -> float:
    """Return how many batches a second the stream's trainers read in the last seconds; 0.0 if that is not known."""
    lately = [trainer["lately"]["5"] for trainer in stream["trainers"] if trainer["lately"]]
    return sum((sums["batches"] / sums["over_s"] for sums in lately), 0.0)


def _time(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def _trainers_line(name: str, stream: dict[str, Any]) -> str:
    """Return a line on who reads a stream: of several trainers the one that waits most, or the first ones."""
    trainers, attached = stream["trainers"], stream["attached"]
    worst = max(trainers, key=lambda trainer: trainer["waited_permille"] or 0)
    waited = worst["waited_permille"] or 0
    if attached > 1 and waited:
        return f"{name} is read by {attached} trainers; most waits {_trainer(worst)}, {waited / 1000:.0%}"
    return f"{name} is read by {_named(map(_trainer, trainers[:_MOST_NAMED]), attached)}"


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


def _worker_cells(worker: dict[str, Any]) -> list[str | Text]:
    # The share of its samples that were feature cache hits.
    hits = f"{worker['kept'] / (worker['kept'] + worker['decoded']):.0%}" if worker["kept"] else "-"
    return [
        worker["name"],
        worker["endpoint"].removeprefix("tcp://"),
        _busy(worker),
        *(str(worker[key]) for key in ("waiting", "building", "built")),
        _marked(str(worker["masked"]), is_odd=worker["masked"] > 0),
        hits,
        _marked(str(worker["silent_s"]), is_odd=worker["silent_s"] > _SILENT_S),
    ]


def _busy(worker: dict[str, Any]) -> str:
    """Return in what percentage of the last seconds the worker built, without waits for reads; "-" if not known."""
    if not worker["lately"]:
        return "-"
    lately = worker["lately"]["5"]
    return f"{min(1.0, (lately['busy_us'] - lately['awaited_us']) / 1e6 / lately['over_s']):.0%}"


def _remote_rows(workers: list[dict[str, Any]]) -> Iterator[list[str]]:
    """Yield the rows on remote reads (from stores, and from the disk cache) of workers that made some."""
    for worker in workers:
        if worker["remote_bytes"] or worker["remote_found"]:
            fetched = f"{worker['remote_bytes'] / 2**20:,.1f} MiB"
            yield [worker["name"], fetched, str(worker["remote_found"]), str(worker["remote_waited"])]


# --- lines below the tables ---


def _lines(report: dict[str, Any]) -> Iterator[str]:
    """Yield lines on what is not in the tables, such as what was cut, fails, ends or is waited for; maybe none."""
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
