"""The indexes that a job needs: made with a progress bar, and reported."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, TextIO

from loader_server.commands.data_notes import facts_of, lines_of, low_rates_of
from loader_server.commands.progress import progress_bar, said_if_slow
from loader_server.index.folder import read_meta
from loader_server.index.letters import kept_counts
from loader_server.index.make import IndexReport, IndexRequest, make_index, unchanged_index
from loader_server.sources.source import Source
from loader_server.stream import open_source, open_sources, refuse_wrong_keys, sources_of
from loader_server.transforms.characters import Characters, CharactersSettings
from shared.errors import StokerError
from shared.settings.tables import read_table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from loader_server.commands.statistics import StatisticsReport
    from loader_server.job_file import JobFile, StreamRecipe
    from loader_server.sources.registry import SourceSpec
    from loader_server.transforms.audio.low_rates import LowRate
    from loader_server.transforms.chain import Chain

__all__ = ["index_missing", "index_streams", "show"]

#: Time to look for changed files in all indexed data of a job: enough for all of 100 000 on a local disk.
_LOOK_S = 1.0

_CHARACTERS = "characters"

#: Limit of bad rows that are printed; a file beside the index has all of them.
_SHOWN = 20


def index_missing(job: JobFile) -> None:
    """Make the missing indexes, and check the others' data for changes.

    Streams whose data set a trainer has to send first are skipped. Raises DataError if indexed data have changed, or
    drop more letters than the job file allows now.
    """
    there = [name for name in job.recipes if job.is_indexed(name)]
    missing = [name for name in job.recipes if name not in there and not job.is_awaited(name)]
    for name in there:
        _refuse_dropping(job, job.recipes[name])
    _look_for_changes([source for name in there for source in sources_of(job, job.recipes[name])])
    if missing:
        show(index_streams(job, missing), as_json=False)


def _refuse_dropping(job: JobFile, recipe: StreamRecipe) -> None:
    """Raise DataError if the counts that are kept show more dropped letters than the job file allows now.

    Counts do not apply if a user's own transform comes first: it may change the texts.
    """
    names = recipe.settings.transforms
    if _CHARACTERS not in names or any(":" in name for name in names[: names.index(_CHARACTERS)]):
        return
    where = f"{recipe.where}, {_CHARACTERS}"
    step = Characters(read_table(CharactersSettings, recipe.tables.get(_CHARACTERS, {}), where))
    for spec, folder in sources_of(job, recipe):
        counts = kept_counts(folder / read_meta(folder).folder, step.alphabet)
        if counts is not None:
            step.refuse_dropping(counts, spec.where)


def _look_for_changes(sources: Sequence[tuple[SourceSpec, Path]]) -> None:
    """Check files of these sources for changes, before training; open only sources that have such a check."""
    looking = [one for one in sources if one[0].kind.look_for_changes is not Source.look_for_changes]
    left_s = _LOOK_S
    for number, (spec, folder) in enumerate(looking):
        share_s = left_s / (len(looking) - number)
        with said_if_slow(f"looking at the data of {spec.where}"):
            left_s = max(left_s - _look_at(spec, folder, share_s), 0.0)


def _look_at(spec: SourceSpec, folder: Path, time_s: float) -> float:
    """Check one source's files; return how long that took, without the time to open it."""
    with contextlib.closing(open_source(spec, folder).source) as source:
        began_s = time.monotonic()
        source.look_for_changes(time_s)
        return time.monotonic() - began_s


def index_streams(
    job: JobFile, names: Sequence[str], *, strict: bool = False, processes: int = 0, force: bool = False
) -> dict[str, IndexReport]:
    """Make the indexes of these streams, unless they are up to date; with `force`, make all of them.

    If one fails, the finished ones are reported on standard error before the error is raised.
    """
    request = partial(IndexRequest, strict=strict, processes=processes, max_bad=job.settings.max_bad)
    reports = dict[str, IndexReport]()
    readable = dict(job.recipes.readable())
    # Streams that make whole batches may read others, so they come after those; streams that lack a package come last.
    for name in sorted(names, key=lambda name: (name not in readable, name in readable and readable[name].whole)):
        try:
            reports |= _index_stream(job, name, request, force=force)
        except StokerError:
            if reports:
                _say_what_is_done(name, reports, names)
            raise
    return reports


def _say_what_is_done(failed: str, reports: Mapping[str, IndexReport], names: Sequence[str]) -> None:
    """Print which indexes are complete in spite of the error that follows: they need not be made again."""
    show(reports, as_json=False, out=sys.stderr)
    left = [name for name in names if name != failed and not any(_is_of(title, name) for title in reports)]
    rest = f"; not looked at: {', '.join(left)}" if left else ""
    print(f"{failed}: no index, for the reason that follows{rest}", file=sys.stderr)


def _is_of(title: str, stream: str) -> bool:
    """Return whether a report is of this stream, or of one of its sources."""
    return title == stream or title.startswith(f"{stream}, ")


def _index_stream(
    job: JobFile, name: str, request: Callable[..., IndexRequest], *, force: bool
) -> dict[str, IndexReport]:
    """Make the indexes of all sources of one stream, each by a request of its own; return their reports."""
    reports = {}
    recipe = job.recipes[name]
    for spec, folder in sources_of(job, recipe):
        title = name if len(recipe.sources) == 1 else f"{name}, {folder.name}"
        with progress_bar(f"index {title}") as progress:
            source = spec.make()
            asked = request(folder=folder, spec=spec, source=source, chain=_chain(recipe, source), progress=progress)
            report = None if force else unchanged_index(asked)
            if report is None:
                job.refuse_closed(folder)
                report = make_index(asked)
            reports[title] = report
    rates = _try_keys(job, recipe)
    return {title: replace(report, low_rates=low) for (title, report), low in zip(reports.items(), rates, strict=True)}


def _chain(recipe: StreamRecipe, source: Source) -> Chain:
    """Return the stream's transforms; raise now if no key has its `length`, because indexing may take hours."""
    chain = recipe.chain(source.fields)
    settled = not (recipe.whole or chain.measured or len(recipe.sources) > 1)
    if settled and all(field.key != recipe.settings.length for field in chain.fields):
        refuse_wrong_keys(recipe, chain.fields)
    return chain


def _try_keys(job: JobFile, recipe: StreamRecipe) -> list[tuple[LowRate, ...]]:
    """Raise now for a key that would stop the job at its start, or mask every sample of a source of a mixture.

    Returns:
        For each source, the recordings whose rate is below what the transforms make of it.
    """
    if recipe.whole:
        return [() for _ in recipe.sources]
    with contextlib.closing(open_sources(job, recipe)) as joined:
        chain = joined.bound(recipe.chain(joined.source.fields))
        joined.try_each(chain)
        joined.refuse_lacking(recipe.settings.length, chain)
        refuse_wrong_keys(recipe, chain.fields)
        return [low_rates_of(chain, opened) for opened in joined.opened]


def show(
    reports: Mapping[str, IndexReport],
    statistics: Sequence[StatisticsReport] = (),
    *,
    as_json: bool,
    out: TextIO | None = None,
) -> None:
    """Print the reports, as lines or as JSON."""
    if as_json:
        plain = {name: _plain(report) for name, report in reports.items()}
        for one in statistics:
            plain.setdefault(one.stream, {})["statistics"] = {**asdict(one), "path": str(one.path)}
        print(json.dumps(plain))
        return
    for one in statistics:
        left_out = "".join(f", {count} left out: {reason}" for reason, count in one.bad.items())
        print(f"{one.stream}: statistics of {one.samples} samples, {one.steps} steps, in {one.path}{left_out}")
    for name, report in reports.items():
        state = "unchanged, " if report.unchanged else ""
        print(
            f"{name}: {state}{report.samples} samples of {report.rows} rows, index {report.fingerprint[:12]} "
            f"in {report.folder}",
            file=out,
        )
        for line in lines_of(facts_of(report.letters, report.low_rates)):
            print(f"  {line}", file=out)
        for bad in report.bad[: 0 if report.unchanged else _SHOWN]:
            print(f"  left out: {bad.where}, line {bad.line}: {bad.reason}: {bad.detail}", file=sys.stderr)
        if report.bad:
            print(f"  left out in all: {_counted(report)}; each is in {report.bad_path}", file=sys.stderr)
        for reason, remedy in dict.fromkeys((bad.reason, bad.remedy) for bad in report.bad if bad.remedy):
            print(f"  {report.bad_counts[reason]:,} {reason}: {remedy}", file=sys.stderr)


def _counted(report: IndexReport) -> str:
    return ", ".join(f"{count:,} {reason}" for reason, count in report.bad_counts.items())


def _plain(report: IndexReport) -> dict[str, object]:
    return {
        "samples": report.samples,
        "rows": report.rows,
        "unchanged": report.unchanged,
        "fingerprint": report.fingerprint,
        "folder": str(report.folder),
        "bad": dict(report.bad_counts),
        "bad_rows": [asdict(bad) for bad in report.bad[:_SHOWN]],
        "bad_file": str(report.bad_path) if report.bad_path else None,
    } | facts_of(report.letters, report.low_rates)
