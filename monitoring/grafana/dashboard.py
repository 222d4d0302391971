"""The dashboards as the JSON that Grafana reads, made from their questions and checked in.

`python -m monitoring.grafana.dashboard` writes them anew. Rules: the same questions give the same text; nothing in it
belongs to one installation (an address, the id of a data source).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monitoring.grafana.fleet_questions import FLEET_ROWS
from monitoring.grafana.job_questions import ROWS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monitoring.grafana.panels import Panel, Row

__all__ = ["DASHBOARDS", "Dashboard"]

_FOLDER = Path(__file__).parent / "dashboards"
_GRID = 24
_SOURCE = {"type": "prometheus", "uid": "${source}"}
#: Where the runbook is on the web; each user sets it once, in the variable of this name.
_RUNBOOK = "https://git.example.com/stoker/blob/main/monitoring/runbook.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """One dashboard: its name in addresses, its title, what it asks, the variables that it offers, and its marks."""

    uid: str
    title: str
    rows: tuple[Row, ...]
    variables: tuple[dict[str, Any], ...]
    annotations: tuple[dict[str, Any], ...] = ()

    @property
    def path(self) -> Path:
        """Return the file that it is checked in as."""
        return _FOLDER / f"{self.uid}.json"

    def as_text(self) -> str:
        """Return the JSON file's content."""
        return json.dumps(self._facts(), indent=2) + "\n"

    def _facts(self) -> dict[str, Any]:
        return {
            "uid": self.uid,
            "title": self.title,
            "tags": ["stoker"],
            "schemaVersion": 39,
            "editable": True,
            "refresh": "10s",
            "time": {"from": "now-1h", "to": "now"},
            "annotations": {"list": list(self.annotations)},
            "templating": {"list": list(self.variables)},
            "links": [{"title": "Stoker", "type": "dashboards", "tags": ["stoker"], "asDropdown": False}],
            "panels": _placed(self.rows),
        }


def _chosen(name: str, label: str, query: str, *, several: bool) -> dict[str, Any]:
    """Return a variable whose values are a query's; with `several`, any number of them, at first all."""
    variable = {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": _SOURCE,
        "definition": query,
        "query": {"query": query, "refId": name},
        "refresh": 2,  # whenever the time range changes
        "sort": 1,
    }
    everything = {"multi": True, "includeAll": True, "allValue": ".*", "current": {"text": "All", "value": "$__all"}}
    return variable | (everything if several else {})


def _mark(name: str, expr: str, title: str, colour: str) -> dict[str, Any]:
    """Return an annotation: a line across all panels where the expression has a value."""
    facts = {"name": name, "datasource": _SOURCE, "enable": True, "iconColor": colour, "expr": expr}
    return facts | {"titleFormat": title, "step": "10s", "useValueForTime": False}


_OF_ALL = (
    {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
    {"name": "runbook", "label": "Runbook", "type": "textbox", "query": _RUNBOOK, "hide": 2},
)

DASHBOARDS = (
    Dashboard(
        uid="stoker-job",
        title="Stoker: a job",
        rows=ROWS,
        variables=(
            *_OF_ALL,
            _chosen("job", "Job", "label_values(stoker_workers, job)", several=False),
            _chosen("stream", "Stream", 'label_values(stoker_trained_epoch{job="$job"}, stream)', several=True),
            _chosen("rank", "Rank", 'label_values(stoker_trained_rounds_total{job="$job"}, rank)', several=True),
            _chosen("worker", "Worker", 'label_values(stoker_built_batches_total{job="$job"}, worker)', several=True),
        ),
        annotations=(
            _mark("Alerts", 'ALERTS{job="$job", alertstate="firing"}', "{{alertname}}", "red"),
            _mark(
                "A worker died",
                'increase(stoker_workers_gone_total{job="$job"}[$__interval])'
                ' + increase(stoker_workers_replaced_total{job="$job"}[$__interval]) > 0',
                "a worker died",
                "orange",
            ),
            _mark(
                "An epoch began",
                'changes(stoker_trained_epoch{job="$job", stream=~"$stream"}[$__interval]) > 0',
                "{{stream}}: an epoch began",
                "blue",
            ),
        ),
    ),
    Dashboard(
        uid="stoker-fleet",
        title="Stoker: all jobs",
        rows=FLEET_ROWS,
        variables=(*_OF_ALL, _chosen("job", "Jobs", "label_values(stoker_workers, job)", several=True)),
    ),
)


def _placed(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Lay out rows one below the other, with their panels side by side as far as they fit."""
    placed: list[dict[str, Any]] = []
    y = 0
    for row in rows:
        grid = {"x": 0, "y": y, "w": _GRID, "h": 1}
        placed.append({"id": len(placed) + 1, "type": "row", "title": row.title, "gridPos": grid, "panels": []})
        y, x, height = y + 1, 0, 0
        for panel in row.panels:
            wide, high = panel.size
            if x + wide > _GRID:
                x, y, height = 0, y + height, 0
            placed.append(_panel(panel, len(placed) + 1, {"x": x, "y": y, "w": wide, "h": high}))
            x, height = x + wide, max(height, high)
        y += height
    return placed


def _panel(panel: Panel, number: int, grid: dict[str, int]) -> dict[str, Any]:
    facts = {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.about,
        "datasource": _SOURCE,
        "gridPos": grid,
        "links": panel.links,
        "fieldConfig": {"defaults": _defaults(panel), "overrides": _overrides(panel)},
        "options": _OPTIONS[panel.kind] | ({"textMode": "name"} if panel.named else {}),
        "targets": [_target(panel, at) for at in range(len(panel.queries))],
    }
    return facts | ({"transformations": _as_table(panel)} if panel.joined else {})


#: What Grafana shows of each kind of panel.
_OPTIONS: dict[str, dict[str, Any]] = {
    "timeseries": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
    "stat": {"reduceOptions": {"calcs": ["lastNotNull"]}, "textMode": "auto", "colorMode": "background"},
    "state-timeline": {"showValue": "never", "mergeValues": True, "legend": {"showLegend": False}},
    "heatmap": {"calculate": False, "yAxis": {"unit": "s"}, "color": {"scheme": "Oranges"}},
    "table": {"showHeader": True, "cellHeight": "sm"},
}


def _defaults(panel: Panel) -> dict[str, Any]:
    custom: dict[str, Any] = {"fillOpacity": 25 if panel.stacked else 0} if panel.kind == "timeseries" else {}
    if panel.stacked:
        custom["stacking"] = {"mode": "normal"}
    steps = [{"value": None, "color": "green"}, *({"value": at, "color": colour} for at, colour in panel.thresholds)]
    if panel.thresholds and panel.kind == "timeseries":
        custom["thresholdsStyle"] = {"mode": "line"}
    return {
        "unit": panel.unit,
        "min": 0,
        "custom": custom,
        **({"max": panel.most} if panel.most is not None else {}),
        **({"thresholds": {"mode": "absolute", "steps": steps}} if panel.thresholds else {}),
    }


def _overrides(panel: Panel) -> list[dict[str, Any]]:
    """Return the unit of each column of a table that has one."""
    return [
        {"matcher": {"id": "byName", "options": name}, "properties": [{"id": "unit", "value": unit}]}
        for name, unit in panel.units.items()
    ]


def _target(panel: Panel, at: int) -> dict[str, Any]:
    query = panel.queries[at]
    target: dict[str, Any] = {"refId": chr(ord("A") + at), "datasource": _SOURCE, "expr": query.expr}
    if panel.kind == "table":
        return target | {"format": "table", "instant": True}
    return target | {"legendFormat": query.legend} | ({"format": "heatmap"} if panel.kind == "heatmap" else {})


def _as_table(panel: Panel) -> list[dict[str, Any]]:
    """Return how a table's queries become one line for each value of `joined`, with their names as columns."""
    letters = [chr(ord("A") + at) for at in range(len(panel.queries))]
    names = {f"Value #{letter}": query.legend for letter, query in zip(letters, panel.queries, strict=True)}
    # What a query says by a label, and not by its value.
    said_by_label = [name for name in ("limit", "version") if name in names.values()]
    unused = [shown for shown, name in names.items() if name in said_by_label]
    times = [f"Time {place}" for place in range(1, len(letters) + 1)]
    return [
        {"id": "joinByField", "options": {"byField": panel.joined, "mode": "outer"}},
        {
            "id": "organize",
            "options": {
                "excludeByName": dict.fromkeys(["Time", *times, *unused, *_UNUSED_LABELS], True),
                "renameByName": {shown: name for shown, name in names.items() if shown not in unused},
            },
        },
    ]


#: Labels of series in a table that are no columns.
_UNUSED_LABELS = ("__name__", "instance", "role", "stream")


if __name__ == "__main__":
    for made in DASHBOARDS:
        made.path.write_text(made.as_text())
