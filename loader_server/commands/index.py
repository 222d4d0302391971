"""`loader-server index`: the indexes that a job needs, made with a progress bar, and reported."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from loader_server.batches.batch_keys import refuse_wrong_keys
from loader_server.commands.data_notes import facts_of, lines_of, low_rates_of
from loader_server.commands.progress import progress_bar, warn_if_slow
from loader_server.index.column_files import first_bad_rows
from loader_server.index.folder import read_meta
from loader_server.index.make import IndexReport, IndexRequest, make_index, unchanged_index
from loader_server.index.request import kept_counts
from loader_server.job_file import read_job
from loader_server.planning.settings import NO_KEY
from loader_server.sources.source import Source
from loader_server.stream import open_source, open_sources, sources_of
from loader_server.transforms.characters import Characters, CharactersSettings
from shared.errors import StokerError
from shared.settings.tables import read_table

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from loader_server.commands.statistics import StatisticsReport
    from loader_server.job_file import JobFile, StreamRecipe
    from loader_server.sources.registry import SourceSpec
    from loader_server.sources.source import BadRow
    from loader_server.transforms.audio.low_rates import LowRate
    from loader_server.transforms.chain import Chain

__all__ = ["index_missing", "index_streams", "run", "show"]

#: Time to look for changed files in all indexed data of a job: enough for all of 100 000 on a local disk.
_LOOK_S = 1.0

_CHARACTERS = "characters"

#: The reason of rows whose files were missing as they were indexed, and how many bad rows are looked at for them.
_MISSING, _LOOKED_AT = "missing_file", 1000

#: Limit of bad rows that are printed; a file beside the index has all of them.
_SHOWN = 20


def run(options: argparse.Namespace) -> int:
    """Make the indexes that the options ask for, and the statistics; print the reports and return the exit code.

    With `options.missing`, as before a job is served, only what is missing is made. Raises SettingsError for a mistake
    in the job file or an unknown stream, and what `index_missing`, `index_streams` and `make_statistics` raise.
    """
    from loader_server.commands.statistics import make_statistics  # what the others do not wait for

    job = read_job(options.job)
    if options.missing:
        index_missing(job)
        return 0
    for name in options.stream or ():
        job.refuse_unknown(name)
    names = options.stream or [name for name in job.recipes if not job.is_awaited(name)]
    statistics = make_statistics(job, names, processes=options.processes) if options.statistics else []
    reports = index_streams(job, names, strict=options.strict, processes=options.processes, force=options.force)
    show(reports, statistics, as_json=options.json)
    return 0


def index_missing(job: JobFile) -> None:
    """Make the missing indexes and print the reports on them; check the others' data for changes.

    Streams whose data set a trainer has to send first are skipped. Raises DataError, such as a ReadError, if indexed
    data have changed, or drop more letters than the job file allows now, SettingsError if settings are wrong or a
    package is not installed, OSError if a file of the data cannot be opened, and what `index_streams` raises.
    """
    indexed = [name for name in job.recipes if job.is_indexed(name)]
    missing = [name for name in job.recipes if name not in indexed and not job.is_awaited(name)]
    for name in indexed:
        _refuse_dropping(job, job.recipes[name])
        _show_returned(job, job.recipes[name])
    _look_for_changes([source for name in indexed for source in sources_of(job, job.recipes[name])])
    if missing:
        show(index_streams(job, missing), as_json=False)


def _refuse_dropping(job: JobFile, recipe: StreamRecipe) -> None:
    """Raise DataError if the counts that are kept show more dropped letters than the job file allows now.

    Counts do not apply if a user's own transform comes first: it may change the texts. Nothing happens without counts
    or without the transform that drops letters. Raise DataError also if an index cannot be read, and SettingsError if
    the transform's settings are invalid.
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


def _show_returned(job: JobFile, recipe: StreamRecipe) -> None:
    """Print on standard error how many of a stream's first rows without their files have these files now.

    They stay left out: with them the plan would be another, which nobody has asked for. Raise DataError if an index
    cannot be read.
    """
    for spec, folder in sources_of(job, recipe):
        slow = warn_if_slow(f"looking at the data of {spec.where}")
        with slow, contextlib.suppress(OSError, ValueError, TypeError):  # the list of bad rows cannot be read, say
            rows = first_bad_rows(folder / read_meta(folder).folder, _LOOKED_AT)
            back = sum(_is_back(row) for row in rows if row.reason == _MISSING)
            if back:
                words = "row is left out whose file is" if back == 1 else "rows are left out whose files are"
                print(f"{spec.where}: {back} {words} there now: loader-server index takes them in", file=sys.stderr)


def _is_back(row: BadRow) -> bool:
    """Return whether the file is there that a row named in vain; False as well if the detail ends in no path."""
    return Path(row.detail.rpartition(": ")[2]).is_file()


def _look_for_changes(sources: Sequence[tuple[SourceSpec, Path]]) -> None:
    """Check files of these sources for changes, before training; open only sources that have such a check.

    Raises DataError, such as a ReadError, if a source has changed since it was indexed, or its index is not one of
    these data and settings; other errors of opening a source or looking at its files pass through, such as an OSError.
    """
    checked = [(spec, folder) for spec, folder in sources if spec.kind.look_for_changes is not Source.look_for_changes]
    left_s = _LOOK_S
    for number, (spec, folder) in enumerate(checked):
        # A disk that is gone may block this for ever, so people must be able to see where it hangs.
        slow = warn_if_slow(f"looking at the data of {spec.where}")
        with slow, contextlib.closing(open_source(spec, folder).source) as source:
            began_s = time.monotonic()  # opening does not count: it takes as long without a look
            source.look_for_changes(left_s / (len(checked) - number))
            left_s = max(left_s - (time.monotonic() - began_s), 0.0)


def index_streams(
    job: JobFile, names: Sequence[str], *, strict: bool = False, processes: int = 0, force: bool = False
) -> dict[str, IndexReport]:
    """Make the indexes of these streams, those up to date only with `force`; return all reports, by stream or source.

    If one fails, the finished ones are reported on standard error before the error is raised: DataError for data that
    cannot be indexed, SettingsError for settings that would stop the job at its start, a closed folder or a package
    that is not installed, and MachineError if there is no room. Other errors, such as an OSError, pass unreported.
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
                _show_finished(name, reports, names)
            raise
    return reports


def _show_finished(failed: str, reports: Mapping[str, IndexReport], names: Sequence[str]) -> None:
    """Print on standard error which indexes are complete in spite of the error that follows, and what is not begun.

    The complete ones need not be made again.
    """
    show(reports, as_json=False, out=sys.stderr)
    finished = {title.partition(", ")[0] for title in reports}
    left = [name for name in names if name != failed and name not in finished]
    rest = f"; not begun: {', '.join(left)}" if left else ""
    print(f"{failed}: not indexed, see the error below{rest}", file=sys.stderr)


def _index_stream(
    job: JobFile, name: str, request: Callable[..., IndexRequest], *, force: bool
) -> dict[str, IndexReport]:
    """Make the indexes of all sources of a stream, each by its own request; return reports by "stream[, source]".

    Those that are up to date are kept, unless `force` is set. Raise DataError for data that cannot be indexed,
    SettingsError for a closed folder or settings that would stop the job at its start, and MachineError if there is no
    room. Other errors of the sources pass through.
    """
    reports = {}
    recipe = job.recipes[name]
    for spec, folder in sources_of(job, recipe):
        title = name if len(recipe.sources) == 1 else f"{name}, {folder.name}"
        with progress_bar(f"index {title}") as progress:
            source = spec.make()
            wanted = request(folder=folder, spec=spec, source=source, chain=_chain(recipe, source), progress=progress)
            report = None if force else unchanged_index(wanted)
            if report is None:
                job.refuse_closed(folder)
                report = make_index(wanted)
            reports[title] = report
    rates = _try_keys(job, recipe)
    return {title: replace(report, low_rates=low) for (title, report), low in zip(reports.items(), rates, strict=True)}


def _chain(recipe: StreamRecipe, source: Source) -> Chain:
    """Return the stream's transforms; raise SettingsError now if no key has its `length`: indexing may take hours.

    Raise what `StreamRecipe.chain` raises for wrong transforms. The length is not checked for whole batches, several
    sources, or lengths that have to be measured.
    """
    chain = recipe.chain(source.fields)
    settled = not (recipe.whole or chain.measured or len(recipe.sources) > 1)
    if settled and recipe.settings.length not in (NO_KEY, *(field.key for field in chain.fields)):
        refuse_wrong_keys(recipe, chain.fields)
    return chain


def _try_keys(job: JobFile, recipe: StreamRecipe) -> list[tuple[LowRate, ...]]:
    """Raise now for a key that would stop the job at its start, or mask every sample of a source of a mixture.

    That is a SettingsError, or a DataError if an index does not suit the chain, a field differs between sources, or a
    first sample cannot be read. A stream of whole batches is not tried. Other errors of the sources pass through.

    Returns:
        For each source, the recordings whose rate is below what the transforms make of it; maybe none.
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
    """Print the reports, as lines or as JSON; with lines, bad rows go to standard error.

    `out` is where lines on indexes go: standard output, if it is None.
    """
    if as_json:
        print(json.dumps(_plain_facts(reports, statistics)))
        return
    for made in statistics:
        left_out = "".join(f", {count} left out: {reason}" for reason, count in made.bad.items())
        print(f"{made.stream}: statistics of {made.samples} samples, {made.steps} steps, in {made.path}{left_out}")
    for name, report in reports.items():
        state = "unchanged, " if report.unchanged else ""
        print(
            f"{name}: {state}{report.samples} samples of {report.rows} rows, index {report.fingerprint[:12]} "
            f"in {report.folder}",
            file=out,
        )
        for line in lines_of(facts_of(report.letters, report.low_rates)):
            print(f"  {line}", file=out)
        for line in _lines_on_bad(report):
            print(f"  {line}", file=sys.stderr)


def _lines_on_bad(report: IndexReport) -> Iterator[str]:
    """Yield the first bad rows, unless they were printed when the index was made, how many there are, and remedies.

    Yield nothing if there are none.
    """
    for bad in report.bad[: 0 if report.unchanged else _SHOWN]:
        yield f"left out: {bad.where}, line {bad.line}: {bad.reason}: {bad.detail}"
    if report.bad:
        counted = ", ".join(f"{count:,} {reason}" for reason, count in report.bad_counts.items())
        yield f"left out in all: {counted}; each is in {report.bad_path}"
    for reason, remedy in dict.fromkeys((bad.reason, bad.remedy) for bad in report.bad if bad.remedy):
        yield f"{report.bad_counts[reason]:,} {reason}: {remedy}"


def _plain_facts(
    reports: Mapping[str, IndexReport], statistics: Sequence[StatisticsReport]
) -> dict[str, dict[str, object]]:
    """Return the facts of all reports by stream or source, ready for JSON.

    Those on statistics are added to the stream's, or stand alone if there is no report on it.
    """
    facts = {name: _plain(report) for name, report in reports.items()}
    for made in statistics:
        facts.setdefault(made.stream, {})["statistics"] = {**asdict(made), "path": str(made.path)}
    return facts


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
