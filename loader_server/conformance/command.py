"""The command that examines a source: from a dotted name and arguments, or from a stream of a job file.

Rules: indexes are made in a temporary folder; the data are read and never changed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loader_server.conformance.case import SourceCase
from loader_server.conformance.checks import check_source
from loader_server.job_file import read_job
from loader_server.job_folder import JobFolder
from loader_server.processor.capping import execute_again, keep_to
from loader_server.sources.map_style import MapStyleSettings
from loader_server.sources.registry import SourceSpec, dotted_name, source_class
from loader_server.stream import sources_of
from shared.errors import StokerError
from shared.settings.tables import read_table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from loader_server.conformance.checks import CheckResult

__all__ = ["main"]


def main(
    arguments: Sequence[str] | None = None, fixtures: Mapping[str, Callable[[Path], SourceCase]] | None = None
) -> int:
    """Examine sources and print the results; return 0 if no check failed, 1 if one did, 2 if no source was named.

    `fixtures` make the data for names of sources. Return 1 also if a source or job file is refused, with the error on
    standard error. Raise SystemExit for wrong arguments, and an OSError if no temporary folder can be made. What
    `fixtures` raise passes through, unless it is a StokerError.
    """
    options = _parser().parse_args(arguments)
    known = fixtures or {}
    names = list(known) if options.all else list(filter(None, [options.source]))
    if not names:
        print(f"expected a source{', or --all' if known else ''}; see --help", file=sys.stderr)
        return 2
    try:
        if arguments is None and str(options.source).endswith(".toml"):  # this process's own program, to run again
            where = f"{options.source}, [job], processor"
            keep_to(JobFolder(options.source).settings.processor, where, execute_again)
        sources = list(chain.from_iterable(_examined(name, known.get(name), options) for name in names))
    except StokerError as error:
        print(error, file=sys.stderr)
        return 1
    return _concluded(sources, as_json=options.json)


def _concluded(sources: Sequence[tuple[str, list[CheckResult]]], *, as_json: bool) -> int:
    """Print the summary of all sources, in words or as JSON; return the exit status: 1 if a check failed, else 0."""
    outcomes = [result.passed for _, results in sources for result in results]
    failed = outcomes.count(False)
    if as_json:
        print(json.dumps({"sources": [_counted(name, results) for name, results in sources]}))
    elif failed:
        print(f"{len(outcomes) - failed} of {len(outcomes)} checks have nothing against it")
    else:
        print("all is well")
    return min(failed, 1)


def _examined(
    name: str, fixture: Callable[[Path], SourceCase] | None, options: argparse.Namespace
) -> list[tuple[str, list[CheckResult]]]:
    """Return the sources of this name with the results of their checks, and print these unless --json is set.

    Raise a SettingsError if the name, its arguments, or the job file and its stream are refused, and an OSError if no
    temporary folder can be made. What the fixture raises passes through.
    """
    with tempfile.TemporaryDirectory(prefix="stoker-conformance-") as folder:
        cases = [fixture(Path(folder))] if fixture else _cases(name, options)
        sources = []
        for place, case in enumerate(cases):
            index = Path(folder) / str(place)
            index.mkdir()
            results = check_source(case, index)
            sources.append((name if fixture else case.spec.name, results))
            if not options.json:
                print("\n".join([f"{case.spec.name}:", *map(str, results)]), flush=True)
        return sources


def _counted(name: str, results: Sequence[CheckResult]) -> dict[str, Any]:
    passed = [result.passed for result in results]
    return {
        "source": name,
        "passed": passed.count(True),
        "failed": passed.count(False),
        "skipped": passed.count(None),
        "failures": [f"{result.name}: {result.detail}" for result in results if result.passed is False],
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m loader_server.conformance",
        description="Try whether a source keeps to all that is expected of one.",
        epilog="example: python -m loader_server.conformance my_data:Digits --arguments '{\"count\": 100}'",
    )
    parser.add_argument(
        "source", nargs="?", help="package.module:Class, a name that another package registered, or a job file"
    )
    parser.add_argument("--arguments", type=_table, default={}, metavar="JSON", help="what the class is made with")
    parser.add_argument("--stream", default="train", help="with a job file: the stream (default: train)")
    parser.add_argument("--all", action="store_true", help="every source that there is a fixture for, each in turn")
    parser.add_argument("--json", action="store_true", help="print nothing but one JSON object")
    return parser


def _table(text: str) -> dict[str, Any]:
    """Return a JSON object; raise ValueError or ArgumentTypeError, which argparse reports, if the text is none."""
    table = json.loads(text)
    if not isinstance(table, dict):
        raise argparse.ArgumentTypeError("expected a JSON object")
    return table


def _cases(name: str, options: argparse.Namespace) -> list[SourceCase]:
    """Return the named source, or those of a job file's stream if the name ends with .toml.

    Raise SettingsError if the job file is refused or has no such stream, or the source or its settings are refused.
    """
    if not name.endswith(".toml"):
        return [SourceCase(spec=_spec(name, options.arguments))]
    job = read_job(name)
    job.refuse_unknown(options.stream)
    return [SourceCase(spec=spec) for spec, _ in sources_of(job, job.recipes[options.stream])]


def _spec(name: str, arguments: dict[str, Any]) -> SourceSpec:
    """Return a source with these settings; for a user's class they are its keyword arguments.

    Modules in the working directory can be named. Raise SettingsError if the name is unknown, the class cannot be
    imported or is no complete source, or a setting is unknown, missing or invalid.
    """
    where = "the command line"
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    kind = source_class(name, where).Settings
    table = {"source": name, "arguments": arguments} if kind is MapStyleSettings else arguments
    return SourceSpec(
        name=name, dotted=dotted_name(name, where), settings=read_table(kind, table, where), base=Path.cwd()
    )
