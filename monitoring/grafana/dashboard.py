"""The dashboard of a job as the JSON that Grafana reads, made from `questions` and checked in.

`python -m monitoring.grafana.dashboard` writes it anew. Rules: the same questions give the same text; nothing in it
belongs to one installation (an address, the id of a data source).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from monitoring.grafana.questions import ROWS, Panel

__all__ = ["PATH", "as_text"]

PATH = Path(__file__).parent / "dashboards" / "stoker-job.json"

_COLUMNS = 3
_WIDTH = 24 // _COLUMNS
_HEIGHT = 8
_SOURCE = {"type": "prometheus", "uid": "${source}"}


def as_text() -> str:
    """Return the JSON file's content."""
    return json.dumps(_dashboard(), indent=2) + "\n"


def _dashboard() -> dict[str, Any]:
    return {
        "uid": "stoker-job",
        "title": "Stoker: a job",
        "tags": ["stoker"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_source_variable(), _job_variable()]},
        "panels": _placed(),
    }


def _source_variable() -> dict[str, Any]:
    return {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}


def _job_variable() -> dict[str, Any]:
    query = "label_values(stoker_workers, job)"
    return {
        "name": "job",
        "label": "Job",
        "type": "query",
        "datasource": _SOURCE,
        "definition": query,
        "query": {"query": query, "refId": "job"},
        "refresh": 2,  # whenever the time range changes
        "sort": 1,
    }


def _placed() -> list[dict[str, Any]]:
    """Lay out rows one below the other, with their panels side by side."""
    placed: list[dict[str, Any]] = []
    y = 0
    for row in ROWS:
        grid = {"x": 0, "y": y, "w": 24, "h": 1}
        placed.append({"id": len(placed) + 1, "type": "row", "title": row.title, "gridPos": grid, "panels": []})
        y += 1
        for at, panel in enumerate(row.panels):
            grid = {"x": at % _COLUMNS * _WIDTH, "y": y + at // _COLUMNS * _HEIGHT, "w": _WIDTH, "h": _HEIGHT}
            placed.append(_panel(panel, len(placed) + 1, grid))
        y += -(-len(row.panels) // _COLUMNS) * _HEIGHT
    return placed


def _panel(panel: Panel, number: int, grid: dict[str, int]) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0, "custom": {"fillOpacity": 25 if panel.stacked else 0}}
    if panel.most is not None:
        defaults["max"] = panel.most
    if panel.stacked:
        defaults["custom"]["stacking"] = {"mode": "normal"}
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.about,
        "datasource": _SOURCE,
        "gridPos": grid,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + at), "datasource": _SOURCE, "expr": query.expr, "legendFormat": query.legend}
            for at, query in enumerate(panel.queries)
        ],
    }


if __name__ == "__main__":
    PATH.write_text(as_text())
