"""The dashboards in the repository are those that the code makes, and they ask only for what exists."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from monitoring.grafana.dashboard import DASHBOARDS, Dashboard
from tests.support.monitoring import metrics_named, recorded_names, rules_text
from tests.support.scraping import METRICS

if TYPE_CHECKING:
    from monitoring.grafana.panels import Panel, Query

PANELS = [panel for made in DASHBOARDS for row in made.rows for panel in row.panels]
QUERIES = [query for panel in PANELS for query in panel.queries]
#: What prometheus_client tells of every process.
PROCESS = ("cpu_seconds_total", "resident_memory_bytes", "start_time_seconds")
_EACH = pytest.mark.parametrize("made", DASHBOARDS, ids=lambda made: made.uid)
RUNBOOK = (Path(__file__).parents[2] / "monitoring" / "runbook.md").read_text()


def whole(made: Dashboard) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(made.as_text())
    return facts


@_EACH
def test_the_file_is_what_the_code_makes(made: Dashboard) -> None:
    remedy = "run `python -m monitoring.grafana.dashboard` and commit what it writes"
    assert made.path.read_text() == made.as_text(), remedy


@_EACH
def test_a_link_to_the_runbook_leads_to_a_section(made: Dashboard) -> None:
    sections = {heading.lower() for heading in re.findall(r"^## (\S+)$", RUNBOOK, re.MULTILINE)}
    linked = [link["url"] for panel in whole(made)["panels"] for link in panel.get("links", [])]
    assert len(linked) >= 4
    assert {url.removeprefix("${runbook}#") for url in linked} <= sections


def test_a_job_is_seen_at_a_glance() -> None:
    first, *_ = DASHBOARDS[0].rows
    kinds = [panel.kind for panel in first.panels]
    assert kinds == ["stat"] * 8 + ["state-timeline"]
    assert [mark["name"] for mark in whole(DASHBOARDS[0])["annotations"]["list"]] == [
        *("Alerts", "A worker died", "An epoch began")
    ]


def test_the_table_of_jobs_has_a_column_for_each_question() -> None:
    table = next(panel for panel in whole(DASHBOARDS[1])["panels"] if panel["type"] == "table")
    organized = table["transformations"][1]["options"]
    assert list(organized["renameByName"].values()) == ["waiting", "steps/s", "left", "alerts", "workers"]
    assert "Value #A" in organized["excludeByName"], "the limit is a label, and so is the version"


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: query.expr)
def test_a_query_names_the_job_and_metrics_that_exist(query: Query) -> None:
    selectors = re.findall(r"[a-z_:]+\{[^}]*\}", query.expr)
    assert selectors
    for selector in selectors:
        assert 'job="$job"' in selector or 'job=~"$job"' in selector
    known = {*METRICS, *recorded_names(), "up", "ALERTS", *(f"process_{what}" for what in PROCESS)}
    asked = {name.removesuffix("_bucket").removesuffix("_sum") for name in metrics_named(query.expr)}
    assert asked <= known


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: query.expr)
def test_a_legend_uses_labels_that_the_query_leaves(query: Query) -> None:
    kept = re.findall(r"\bby \(([^)]*)\)", query.expr)
    if kept:
        left = {label.strip() for group in kept for label in group.split(",")}
        assert set(re.findall(r"\{\{(\w+)\}\}", query.legend)) <= left


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel.title)
def test_a_panel_is_a_question_with_an_answer(panel: Panel) -> None:
    assert panel.title.endswith("?") or panel.kind == "stat"
    assert panel.about.endswith(".")
    for query in panel.queries:
        if "ratio" in query.expr and panel.kind != "table":
            assert panel.unit == "percentunit"
        if "bytes_total" in query.expr and "/" not in query.expr:
            assert panel.unit == "Bps"


@pytest.mark.parametrize("name", sorted(METRICS))
def test_each_metric_is_seen_somewhere(name: str) -> None:
    asked = " ".join(query.expr for query in QUERIES) + rules_text()
    assert name in {one.removesuffix("_bucket").removesuffix("_sum") for one in metrics_named(asked)}


@_EACH
def test_panels_do_not_overlap_and_have_numbers_of_their_own(made: Dashboard) -> None:
    cells, panels = set(), whole(made)["panels"]
    for panel in panels:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        mine = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not mine & cells
        cells |= mine
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert sum(panel["type"] == "row" for panel in panels) == len(made.rows)


@_EACH
def test_nothing_of_one_installation_is_in_it(made: Dashboard) -> None:
    facts = whole(made)
    sources = {json.dumps(panel["datasource"]) for panel in facts["panels"] if "datasource" in panel}
    assert sources == {'{"type": "prometheus", "uid": "${source}"}'}
    wanted = ["source", "runbook", "job"] + (["stream", "rank", "worker"] if made.uid == "stoker-job" else [])
    assert [variable["name"] for variable in facts["templating"]["list"]] == wanted
    assert "http" not in made.as_text().replace("https://git.example.com", "")
