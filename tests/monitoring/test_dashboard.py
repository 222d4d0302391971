"""The dashboard in the repository is the one that the code makes, and it asks only for what exists."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from monitoring.grafana import dashboard
from monitoring.grafana.questions import ROWS, Panel, Query
from tests.support.monitoring import metrics_named, recorded_names, rules_text
from tests.support.scraping import METRICS

PANELS = [panel for row in ROWS for panel in row.panels]
QUERIES = [query for panel in PANELS for query in panel.queries]
#: What prometheus_client tells of every process.
PROCESS = ("cpu_seconds_total", "resident_memory_bytes", "start_time_seconds")
WHOLE: dict[str, Any] = json.loads(dashboard.as_text())


def test_the_file_is_what_the_code_makes() -> None:
    remedy = "run `python -m monitoring.grafana.dashboard` and commit what it writes"
    assert dashboard.PATH.read_text() == dashboard.as_text(), remedy


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: query.expr)
def test_a_query_names_the_job_and_metrics_that_exist(query: Query) -> None:
    selectors = re.findall(r"[a-z_:]+\{[^}]*\}", query.expr)
    assert selectors
    for selector in selectors:
        assert 'job="$job"' in selector
    known = {*METRICS, *recorded_names(), "up", *(f"process_{what}" for what in PROCESS)}
    assert {name.removesuffix("_bucket") for name in metrics_named(query.expr)} <= known


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: query.expr)
def test_a_legend_uses_labels_that_the_query_leaves(query: Query) -> None:
    kept = re.findall(r"\bby \(([^)]*)\)", query.expr)
    if kept:
        left = {label.strip() for group in kept for label in group.split(",")}
        assert set(re.findall(r"\{\{(\w+)\}\}", query.legend)) <= left


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel.title)
def test_a_panel_is_a_question_with_an_answer(panel: Panel) -> None:
    assert panel.title.endswith("?")
    assert panel.about.endswith(".")
    for query in panel.queries:
        if "ratio" in query.expr:
            assert panel.unit == "percentunit"
        if "bytes_total" in query.expr and "/" not in query.expr:
            assert panel.unit == "Bps"


@pytest.mark.parametrize("name", sorted(METRICS))
def test_each_metric_is_seen_somewhere(name: str) -> None:
    asked = " ".join(query.expr for query in QUERIES) + rules_text()
    assert name in {one.removesuffix("_bucket").removesuffix("_sum") for one in metrics_named(asked)}


def test_panels_do_not_overlap_and_have_numbers_of_their_own() -> None:
    cells = set()
    for panel in WHOLE["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        mine = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not mine & cells
        cells |= mine
    assert len({panel["id"] for panel in WHOLE["panels"]}) == len(WHOLE["panels"])
    assert sum(panel["type"] == "row" for panel in WHOLE["panels"]) == len(ROWS)


def test_nothing_of_one_installation_is_in_it() -> None:
    sources = {json.dumps(panel["datasource"]) for panel in WHOLE["panels"] if "datasource" in panel}
    assert sources == {'{"type": "prometheus", "uid": "${source}"}'}
    assert [variable["name"] for variable in WHOLE["templating"]["list"]] == ["source", "job"]
