"""`loader-server plan`: the effect of a job's settings, before anything is trained.

It only reads job file, index and plan. What it prints is made in `plan_report`.
"""

from __future__ import annotations

import json
from itertools import islice
from typing import TYPE_CHECKING, Any

from loader_server.commands import plan_report
from loader_server.commands.data_notes import lines_of, notes_of
from loader_server.commands.progress import filled_table, plain_console, progress_bar
from loader_server.fleet.bundle import bundle_nbytes
from loader_server.job_file import read_job
from loader_server.stream import Stream
from shared.errors import SettingsError
from shared.settings.parsers import nearest

if TYPE_CHECKING:
    import argparse

    from rich.table import Table

    from loader_server.job_file import JobFile

__all__ = ["find_sample", "open_stream", "places_table", "run", "sample_named"]

#: Limit of names that are compared with an unknown one for a suggestion.
_COMPARED = 20_000

#: Limit of samples that are listed beside the one that was looked for.
_SHOWN = 8


def run(options: argparse.Namespace) -> int:
    """Print the plan of one stream, and return the exit code.

    With `find`, print the places of a sample instead; with `diff`, the difference to another job; with `plot`, draw the
    plan last. Raises SettingsError for a mistake in a job file, for a stream, sample or group that the job does not
    have, or to plot without matplotlib, OSError if the picture cannot be written, and DataError if the data are not
    indexed, leave no sample to plan, or lose too many letters. Other errors of reading the data pass through.
    """
    job = read_job(options.job)
    group = options.group or job.settings.group or 1
    stream = open_stream(job, options.stream)
    lines: list[str] = []
    if options.find:
        answer = find_sample(stream, options.find, group, options.epoch)
        tables: tuple[Table, ...] = (places_table(answer),)
    else:
        answer = _facts(stream, group, options.epoch) | (_bundle_facts(job) if options.diff is None else {})
        tables = plan_report.tables(answer)
        notes = answer.get("notes", {})
        lines = [f"{title}: {line}" for title, of_source in notes.items() for line in lines_of(of_source)]
    if options.diff is not None:
        other = _facts(open_stream(read_job(options.diff), options.stream), group, options.epoch)
        changed = plan_report.diff(answer, other)
        answer = {path: list(values) for path, values in changed.items()}
        tables, lines = (plan_report.diff_table(changed),), []
    _print(answer, tables, lines, as_json=options.json)
    if options.plot is not None:  # last, because matplotlib may be missing
        plan_report.plot(stream.plan, options.plot)
    return 0


def _print(answer: dict[str, Any], tables: tuple[Table, ...], lines: list[str], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(answer))
    else:
        plain_console().print(*tables, sep="\n")
        for line in lines:
            print(line)


def open_stream(job: JobFile, name: str) -> Stream:
    """Open the stream, with a progress bar if its plan takes long.

    Raises SettingsError if the job has no such stream, if its source makes whole batches, if a package that it needs is
    not installed, or if its settings do not fit its data; raises DataError if there is no index that fits, or no sample
    is left to plan.
    """
    job.refuse_unknown(name)
    if job.recipes[name].whole:
        raise SettingsError(
            expected="a stream whose batches are planned from samples",
            got=f"{name}, which makes whole batches",
            where=str(job.path),
            remedy="There is no plan to look at: batch n is element n div producers of shard n mod producers.",
        )
    with progress_bar(f"plan {name}") as progress:
        return Stream(job, name, progress)


def _facts(stream: Stream, group: int, epoch: int) -> dict[str, Any]:
    """Return the facts of the plan and notes on data and code, with the digest that cursors and `status` show.

    Raises SettingsError if batches cannot come in such groups, or DataError if the chain drops too many letters. Errors
    of the plan, and of counting letters, pass through.
    """
    notes: dict[str, dict[str, Any]] = {}
    for opened in stream.sources:
        # The title that `index` gives it, by which two job files can be compared.
        title = stream.name if len(stream.sources) == 1 else f"{stream.name}, {opened.index.folder.name}"
        if of_source := notes_of(stream.chain, opened):
            notes[title] = of_source
    if stream.unproved_code:
        notes.setdefault(stream.name, {})["native_code"] = stream.unproved_code
    if stream.padded_with_zeros:
        notes.setdefault(stream.name, {})["padding"] = stream.padded_with_zeros
    found = {"digest": stream.digest} | plan_report.facts(stream.plan, group, epoch)
    mixture = plan_report.mixture(stream.plan, stream.part_names, epoch)
    return found | ({"mixture": mixture} if mixture else {}) | ({"notes": notes} if notes else {})


def _bundle_facts(job: JobFile) -> dict[str, Any]:
    """Return how many bytes a host that joins the job fetches, and the limit of these; {} if that is not known."""
    nbytes = bundle_nbytes(job)
    return {} if nbytes is None else {"bundle": {"bytes": nbytes, "most": job.settings.bundle_bytes}}


def find_sample(stream: Stream, name: str, group: int, epoch: int) -> dict[str, Any]:
    """Return the places in an epoch of the first sample with this name, as `plan_report.find` does; maybe none.

    Raises what `sample_named` raises.
    """
    return {"name": name} | plan_report.find(stream.plan, sample_named(stream, name), group, epoch)


def sample_named(stream: Stream, name: str) -> int:
    """Return the number of the first sample with this name.

    Raises SettingsError if there is no such sample; the nearest name is suggested. Errors of the source pass through.
    """
    source = stream.source
    sample = next((number for number in range(source.samples) if source.name(number) == name), None)
    if sample is None:
        names = islice((source.name(number) for number in range(source.samples)), _COMPARED)
        raise SettingsError(
            expected="the name of a sample" + nearest(name, names),
            got=name,
            where=f"index of {stream.name}",
            remedy=f'Names are as the source has them, such as "{source.name(0)}".',
        )
    return sample


def places_table(answer: dict[str, Any]) -> Table:
    """Return a table of the places that `find_sample` returned: a row for each batch."""
    return filled_table(
        ("batch", "row", "group", "bucket", "shape", "with samples"),
        map(_seat_cells, answer["seats"]),
        title=f"{answer['name']} (sample {answer['sample']}) in epoch {answer['epoch']}",
    )


def _seat_cells(seat: dict[str, Any]) -> list[str]:
    lengths = ", ".join(f"{key} {length}" for key, length in seat["shape"]["lengths"].items())
    shape = f"{seat['shape']['rows']} x {lengths}"
    samples = ", ".join(map(str, seat["samples"][:_SHOWN])) + (" …" if len(seat["samples"]) > _SHOWN else "")
    return [*(str(seat[key]) for key in ("batch", "row", "group", "bucket")), shape, samples]
