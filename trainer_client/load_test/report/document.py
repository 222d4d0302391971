"""Document of a load test's report: JSON, and the same in Markdown for people.

Rules: the document holds all that is needed to repeat the test and to compare it with another, the machine included,
without which figures mean nothing later; text and page are made from the document alone, so they can be made again
later.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Any

import zmq

from shared.errors import SettingsError
from trainer_client.load_test.report.figures import (
    TITLES,
    changes,
    differences,
    figure_rows,
    limits_text,
    settings_text,
    shown,
)
from trainer_client.load_test.report.page import page

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["FORMAT", "machine", "markdown", "read_report", "versions", "write_report"]

#: Version of the document, raised when older documents can no longer be compared.
FORMAT = 1


def machine() -> dict[str, Any]:
    """Return processor, cores that we may use, memory, system, and the load before the test.

    Where the system does not tell them, memory is "", and the processor is the architecture's name.
    """
    return {
        "processor": _line("/proc/cpuinfo", "model name") or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory": _line("/proc/meminfo", "MemTotal"),
        "system": f"{platform.system()} {platform.release()}",
        "load_before": round(os.getloadavg()[0], 2),
    }


def versions() -> dict[str, str]:
    """Return the versions of Python, libzmq and our packages that batches go through, by name."""
    packages = {name: importlib.metadata.version(name) for name in ("stoker", "numpy", "pyzmq", "msgpack")}
    return {"python": platform.python_version(), "libzmq": zmq.zmq_version(), **packages}


def _line(path: str, name: str) -> str:
    """Return the value in the first line of a file that begins with `name`; "" without such a line or file."""
    try:
        lines = Path(path).read_text("utf-8", "replace").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")


def markdown(document: Mapping[str, Any], old: Mapping[str, Any] | None = None) -> str:
    """Return the document as Markdown, compared with any older one; raise KeyError if either lacks a part."""
    parts = [
        f"# Load test: {document['mode']}",
        f"{settings_text(document)}.",
        f"What limits it: {limits_text(document)}.",
        _table(figure_rows(document)),
        *([_comparison(document, old)] if old is not None else []),
        *([f"Limits broken: {'; '.join(document['broken'])}."] if document["broken"] else []),
        "Machine: " + ", ".join(f"{name} {value}" for name, value in document["machine"].items()) + ".",
        "Versions: " + ", ".join(f"{name} {value}" for name, value in document["versions"].items()) + ".",
        f"At {document['at']}.",
    ]
    return "\n\n".join(parts) + "\n"


def _comparison(document: Mapping[str, Any], old: Mapping[str, Any]) -> str:
    rows = [["figure", "then", "now", "change"]]
    for change in changes(old["figures"], document["figures"]):
        percent = "" if change.percent is None else f"{change.percent:+.1f} %, "
        rows.append([TITLES[change.name], shown(change.before), shown(change.now), percent + change.verdict])
    differing = differences(old["settings"], document["settings"])
    warning = f"The settings differ: {differing}.\n\n" if differing else ""
    return "## Compared with the older test\n\n" + warning + _table(rows)


def _table(rows: list[list[str]]) -> str:
    heads, *others = rows
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *others]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def write_report(folder: Path, document: Mapping[str, Any], old: Mapping[str, Any] | None) -> list[Path]:
    """Write report.json, .md and .html; return their paths. Raise SettingsError if that fails, and errors of `page`."""
    texts = {
        "report.json": json.dumps(document, indent=1) + "\n",
        "report.md": markdown(document, old),
        "report.html": page(document, old),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (folder / name).write_text(text, "utf-8")
    except OSError as error:
        raise SettingsError(
            expected="a folder that can be written", got=str(error), where="--report", remedy="Name another."
        ) from None
    return [folder / name for name in texts]


def read_report(path: Path) -> dict[str, Any]:
    """Return the document of an older report.json.

    Raise SettingsError if the file cannot be read, is no such document, lacks a part, or has another format.
    """
    try:
        document = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise _no_report(path, str(error)) from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise _no_report(path, "another file")
    if not all(isinstance(document.get(part), dict) for part in ("figures", "settings")):
        raise _no_report(path, "one without figures or settings")
    runs = document.get("runs")
    if not isinstance(runs, list) or not runs or not all(map(_is_run, runs)):
        raise _no_report(path, "one without runs, or with a run that lacks its figures or waits")
    return document


def _is_run(run: object) -> bool:
    """Return whether this is a run with what is drawn of an older test."""
    figures, curve = (run.get("figures"), run.get("wait_curve_ms")) if isinstance(run, dict) else (None, None)
    if not isinstance(figures, dict) or not isinstance(curve, list):
        return False
    return isinstance(figures.get("batches_per_s"), int | float) and all(map(_is_point, curve))


def _is_point(point: object) -> bool:
    return isinstance(point, list) and [type(number) in {int, float} for number in point] == [True, True]


def _no_report(path: Path, got: str) -> SettingsError:
    return SettingsError(
        expected=f"a report.json of a load test, format {FORMAT}",
        got=got,
        where=f"--compare {path}",
        remedy="Write one with --report FOLDER.",
    )
