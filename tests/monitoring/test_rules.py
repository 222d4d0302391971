"""Rules and alerts behave as their own tests say, and each alert has its section in the runbook."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from monitoring.grafana.questions import ROWS
from tests.support.monitoring import FOLDER, PROMETHEUS, WHY_NOT, metrics_named, recorded_names, rules_text
from tests.support.scraping import METRICS

if TYPE_CHECKING:
    from pathlib import Path

RUNBOOK = (FOLDER.parent / "runbook.md").read_text()
ALERTS = re.findall(r"alert: (\w+)", (FOLDER / "alerts.yml").read_text())
needs_promtool = pytest.mark.skipif(PROMETHEUS is None or shutil.which("promtool") is None, reason=WHY_NOT)


def _promtool(*arguments: str, folder: Path = FOLDER) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["promtool", *arguments], cwd=folder, capture_output=True, text=True, check=False)


@needs_promtool
def test_rules_pass_their_own_tests() -> None:
    done = _promtool("test", "rules", "tests.yml")
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("alerts.yml", "stoker:wait:ratio > 0.5", "stoker:wait:ratio > 0.9"),
        ("alerts.yml", "stoker_trainers > 0", "stoker_trainers >= 0"),
        ("alerts.yml", "for: 1m", "for: 10m"),
        ("alerts.yml", "waiting_facts > 0", "waiting_facts > 3"),
        ("alerts.yml", "for: 2m", "for: 0m"),
        ("rules.yml", "rate(stoker_step_wait_seconds_total[1m]) or ", ""),
        ("rules.yml", " + changes(stoker_trained_epoch[10m])", ""),
        ("rules.yml", 'work="train", state=~"done|given_up"', 'state="done"'),
        ("rules.yml", 'state=~"done|given_up"', 'state="running"'),
        ("rules.yml", "or sum by (job, stream) (0 * stoker_trained_epoch)", ""),
    ],
)
def test_these_tests_would_notice(tmp_path: Path, file: str, old: str, new: str) -> None:
    for path in FOLDER.glob("*.yml"):
        shutil.copy(path, tmp_path)
    text = (tmp_path / file).read_text()
    assert text.count(old) == 1
    (tmp_path / file).write_text(text.replace(old, new))
    assert _promtool("test", "rules", "tests.yml", folder=tmp_path).returncode != 0


@needs_promtool
def test_the_configuration_is_valid() -> None:
    done = _promtool("check", "config", "prometheus.yml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_rules_name_only_metrics_that_exist() -> None:
    expressions = re.sub(
        r"^\s*(#|summary|description|runbook|- name|- record|- alert).*$", "", rules_text(), flags=re.M
    )
    assert {_base(name) for name in metrics_named(expressions)} <= {*METRICS, *recorded_names(), "up"}


def _base(name: str) -> str:
    return name if name in METRICS else name.removesuffix("_sum")


@pytest.mark.parametrize("alert", ALERTS)
def test_each_alert_has_its_section(alert: str) -> None:
    section = re.search(rf"^## {alert}\n(.*?)(?=^## |\Z)", RUNBOOK, re.M | re.S)
    assert section is not None
    for part in ("**It means:**", "**Look at**", "**Do**"):
        assert part in section[1]
    assert f'runbook: "monitoring/runbook.md#{alert.lower()}"' in rules_text()


def test_the_runbook_has_no_section_of_an_alert_that_is_gone() -> None:
    assert re.findall(r"^## (Stoker\w+)", RUNBOOK, re.M) == ALERTS


def test_panels_named_in_the_runbook_exist() -> None:
    titles = {panel.title for row in ROWS for panel in row.panels}
    named = set(re.findall(r"(?<!\*)\*([A-Z][^*]*\?)\*(?!\*)", RUNBOOK))
    assert named
    assert named <= titles
