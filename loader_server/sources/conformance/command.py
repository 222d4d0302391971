"""The command that examines a source: from a dotted name and arguments, or from a stream of a job file.

Rules: indexes are made in a folder that goes away again; the data are read and never changed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loader_server.sources.conformance.case import SourceCase
from loader_server.sources.conformance.checks import check_source
from loader_server.sources.map_style import MapStyleSettings
from loader_server.sources.table import SourceSpec, dotted_name, source_class
from loader_server.stream import JobFile
from shared.config import read_table
from shared.errors import SettingsError, StokerError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from loader_server.sources.conformance.checks import CheckResult

__all__ = ["main"]


def main(
    arguments: Sequence[str] | None = None, fixtures: Mapping[str, Callable[[Path], SourceCase]] | None = None
) -> int:
    """Examine one source and print what came of it; 1 if a check failed. `fixtures` make data for names of sources."""
    options = _parser().parse_args(arguments)
    try:
        with tempfile.TemporaryDirectory(prefix="stoker-conformance-") as folder:
            known = (fixtures or {}).get(options.source)
            cases = [known(Path(folder))] if known else _cases(options)
            results = [one for place, case in enumerate(cases) for one in _examine(case, Path(folder) / str(place))]
    except StokerError as error:
        print(error, file=sys.stderr)
        return 1
    failed = sum(result.passed is False for result in results)
    print(f"{len(results) - failed} of {len(results)} checks have nothing against it" if failed else "all is well")
    return 1 if failed else 0


def _examine(case: SourceCase, folder: Path) -> list[CheckResult]:
    folder.mkdir()
    results = check_source(case, folder)
    print(f"{case.spec.name}:")
    for result in results:
        print(result)
    return results


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m loader_server.sources.conformance",
        description="Try whether a source keeps to all that is expected of one.",
        epilog="example: python -m loader_server.sources.conformance my_data:Digits --arguments '{\"count\": 100}'",
    )
    parser.add_argument("source", help="package.module:Class, a name that another package registered, or a job file")
    parser.add_argument("--arguments", type=_table, default={}, metavar="JSON", help="what the class is made with")
    parser.add_argument("--stream", default="train", help="with a job file: the stream (default: train)")
    return parser


def _table(text: str) -> dict[str, Any]:
    table = json.loads(text)
    if not isinstance(table, dict):
        raise argparse.ArgumentTypeError("expected a JSON object")
    return table


def _cases(options: argparse.Namespace) -> list[SourceCase]:
    if not options.source.endswith(".toml"):
        return [SourceCase(spec=_spec(options.source, options.arguments))]
    job = JobFile(options.source)
    job.make_importable()
    if options.stream not in job.recipes:
        raise SettingsError(
            expected="one of the streams " + ", ".join(job.recipes),
            got=options.stream,
            where=options.source,
            remedy="Name it with --stream.",
        )
    return [SourceCase(spec=spec) for spec in job.recipes[options.stream].sources]


def _spec(name: str, arguments: dict[str, Any]) -> SourceSpec:
    """A source of these settings; for a class that is none of ours, these are its keyword arguments."""
    where = "the command line"
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    kind = source_class(name, where).Settings
    table = {"source": name, "arguments": arguments} if kind is MapStyleSettings else arguments
    return SourceSpec(
        name=name, dotted=dotted_name(name, where), settings=read_table(kind, table, where), base=Path.cwd()
    )
