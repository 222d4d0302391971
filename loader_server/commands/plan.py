"""`loader-server plan`: the effect of a job's settings, before anything is trained.

It only reads job file, index and plan. What it prints is made in `plan_report`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from loader_server.commands import plan_report
from loader_server.commands.data_notes import lines_of, notes_of
from loader_server.commands.progress import progress_bar
from loader_server.fleet.bundle import bundle_nbytes
from loader_server.stream import Stream
from shared.errors import SettingsError
from shared.settings.parsers import nearest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from loader_server.index.joined import OpenedSource
    from loader_server.job_file import JobFile

__all__ = ["PlanQuestion", "found", "open_stream", "places_table", "show"]

#: Limit of names that are compared with an unknown one for a suggestion.
_COMPARED = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanQuestion:
    """The options of the command."""

    stream: str
    group: int
    epoch: int
    find: str
    other: JobFile | None
    plot: Path | None
    as_json: bool


def show(job: JobFile, asked: PlanQuestion) -> None:
    """Print the plan of one stream; with `find`, where a sample is; with `other`, the difference to another job."""
    stream = open_stream(job, asked.stream)
    answer: dict[str, Any]
    tables: tuple[Table, ...]
    lines: list[str] = []
    if asked.find:
        answer = found(stream, asked.find, asked.group, asked.epoch)
        tables = (places_table(answer),)
    else:
        answer = _facts(stream, asked)
        fetched = bundle_nbytes(job)
        if fetched is not None and asked.other is None:
            answer["bundle"] = {"bytes": fetched, "most": job.settings.bundle_bytes}
        tables = plan_report.tables(answer)
        notes = answer.get("notes", {})
        lines = [f"{title}: {line}" for title, of_source in notes.items() for line in lines_of(of_source)]
    if asked.other is not None:
        other = _facts(open_stream(asked.other, asked.stream), asked)
        changed = plan_report.diff(answer, other)
        answer = {path: list(values) for path, values in changed.items()}
        tables, lines = (plan_report.diff_table(changed),), []
    if asked.as_json:
        print(json.dumps(answer))
    else:
        Console().print(*tables, sep="\n")
        for line in lines:
            print(line)
    if asked.plot is not None:  # last, because matplotlib may be missing
        plan_report.plot(stream.plan, asked.plot)


def open_stream(job: JobFile, name: str) -> Stream:
    """Open the stream, with a progress bar if its plan takes long.

    Raises SettingsError if the job has no such stream, or if its source makes whole batches.
    """
    if name not in job.recipes:
        raise SettingsError(
            expected="one of the streams " + ", ".join(job.recipes),
            got=name,
            where=str(job.path),
            remedy="Name one of these.",
        )
    if job.recipes[name].whole:
        raise SettingsError(
            expected="a stream whose batches are planned from samples",
            got=f"{name}, which makes whole batches",
            where=str(job.path),
            remedy="There is no plan to look at: batch n is element n div producers of shard n mod producers.",
        )
    with progress_bar(f"plan {name}") as progress:
        return Stream(job, name, progress)


def _facts(stream: Stream, asked: PlanQuestion) -> dict[str, Any]:
    """Return the facts of the plan and notes on its data, with the digest that cursors and `status` show."""
    notes = {title: found for title, opened in _titled(stream) if (found := notes_of(stream.chain, opened))}
    facts = {"digest": stream.digest} | plan_report.facts(stream.plan, asked.group, asked.epoch)
    return facts | ({"notes": notes} if notes else {})


def _titled(stream: Stream) -> Iterator[tuple[str, OpenedSource]]:
    """Yield each source with the title that `index` gives it, by which two job files can be compared."""
    for opened in stream.sources:
        yield stream.name if len(stream.sources) == 1 else f"{stream.name}, {opened.index.folder.name}", opened


def found(stream: Stream, name: str, group: int, epoch: int) -> dict[str, Any]:
    """Return the places in an epoch of the sample with this name.

    Raises SettingsError if there is no such sample; the nearest name is suggested.
    """
    source = stream.source
    sample = next((one for one in range(source.samples) if source.name(one) == name), None)
    if sample is None:
        names = islice((source.name(one) for one in range(source.samples)), _COMPARED)
        raise SettingsError(
            expected="the name of a sample" + nearest(name, names),
            got=name,
            where=f"index of {stream.name}",
            remedy=f'Names are as the source has them, such as "{source.name(0)}".',
        )
    answer = plan_report.find(stream.plan, sample, group, epoch)
    return {"name": name, **answer}


def places_table(answer: dict[str, Any]) -> Table:
    """Return a table of the places that were found."""
    table = Table("batch", "row", "group", "bucket", "shape", "with samples")
    table.title = f"{answer['name']} (sample {answer['sample']}) in epoch {answer['epoch']}"
    for seat in answer["seats"]:
        lengths = ", ".join(f"{key} {length}" for key, length in seat["shape"]["lengths"].items())
        shape = f"{seat['shape']['rows']} x {lengths}"
        others = ", ".join(map(str, seat["samples"][:8])) + (" …" if len(seat["samples"]) > 8 else "")
        table.add_row(*(str(seat[key]) for key in ("batch", "row", "group", "bucket")), shape, others)
    return table
