"""Document of a load test's report: JSON, and the same in Markdown for people.

Rules: the document holds all that is needed to repeat the test and to compare it with another; text and page are made
from the document alone, so they can be made again later.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from shared.errors import SettingsError
from trainer_client.load_test.report.figures import TITLES, changes, differences, shown
from trainer_client.load_test.report.page import page

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from trainer_client.load_test.report.figures import Change

__all__ = ["FORMAT", "markdown", "read_report", "write_report"]

#: Version of the document, raised when older documents can no longer be compared.
FORMAT = 1


def markdown(document: Mapping[str, Any], old: Mapping[str, Any] | None = None) -> str:
    """Return the document as Markdown, compared with an older one if there is one."""
    said = ", ".join(f"{name} {value}" for name, value in document["settings"].items() if value not in ("", None))
    parts = [
        f"# Load test: {document['mode']}",
        f"{said}.",
        _table(document),
        *([_comparison(document, old)] if old is not None else []),
        *([f"Limits broken: {'; '.join(document['broken'])}."] if document["broken"] else []),
        "Machine: " + ", ".join(f"{name} {value}" for name, value in document["machine"].items()) + ".",
        "Versions: " + ", ".join(f"{name} {value}" for name, value in document["versions"].items()) + ".",
        f"At {document['at']}.",
    ]
    return "\n\n".join(parts) + "\n"


def _table(document: Mapping[str, Any]) -> str:
    runs = document["runs"]
    several = len(runs) > 1
    heads = [
        "figure",
        "all together" if several else "value",
        *(f"repeat {n + 1}" for n in range(len(runs)) if several),
    ]
    rows = [
        [title, *(shown(one.get(name)) for one in (document["figures"], *(run["figures"] for run in runs if several)))]
        for name, title in TITLES.items()
    ]
    return _lines(heads, rows)


def _comparison(document: Mapping[str, Any], old: Mapping[str, Any]) -> str:
    found = changes(old["figures"], document["figures"])
    rows = [[TITLES[one.name], shown(one.before), shown(one.now), _change(one)] for one in found]
    differing = differences(old["settings"], document["settings"])
    warning = f"The settings differ: {differing}.\n\n" if differing else ""
    return "## Compared with the older test\n\n" + warning + _lines(["figure", "then", "now", "change"], rows)


def _change(one: Change) -> str:
    verdict = {True: "better", False: "worse", None: "equal"}[one.better]
    return f"{one.percent:+.1f} %, {verdict}" if one.percent is not None else verdict


def _lines(heads: list[str], rows: list[list[str]]) -> str:
    table = [heads, ["---", *["---:"] * (len(heads) - 1)], *rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in table)


def write_report(folder: Path, document: Mapping[str, Any], old: Mapping[str, Any] | None) -> list[Path]:
    """Write report.json, report.md and report.html, and return their paths; raise SettingsError if that fails."""
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
    """Return the document of an older report.json; raise SettingsError if the file is none, or of another format."""
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise _no_report(path, str(error)) from None
    if not isinstance(found, dict) or found.get("format") != FORMAT or not isinstance(found.get("figures"), dict):
        raise _no_report(path, "another file")
    return found


def _no_report(path: Path, got: str) -> SettingsError:
    return SettingsError(
        expected=f"a report.json of a load test, format {FORMAT}",
        got=got,
        where=f"--compare {path}",
        remedy="Write one with --report FOLDER.",
    )
