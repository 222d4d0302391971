"""Rules and alerts behave as their own tests say, and each alert has its section in the runbook."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from monitoring.grafana.dashboard import DASHBOARDS
from tests.monitoring.recording.rendering import RECORDED
from tests.monitoring.recording.scenes import SCENES
from tests.support.monitoring import FOLDER, PROMETHEUS, WHY_NOT, metrics_named, recorded_names, rules_text
from tests.support.scraping import METRICS

if TYPE_CHECKING:
    from pathlib import Path

RUNBOOK = (FOLDER.parent / "runbook.md").read_text()
ALERTS = list(dict.fromkeys(re.findall(r"alert: (\w+)", (FOLDER / "alerts.yml").read_text())))
#: What only coordinators tell that know what limits a job; rules say "unknown" without it.
LATER = ("stoker_limit",)
#: Those that were there before jobs were recorded.
UNRECORDED = {
    "StokerNoProgress", "StokerCoordinatorAbsent", "StokerBatchesGivenUp", "StokerJournalNotWritten",
    "StokerJournalLost",
}  # fmt: skip
#: Jobs that are well are recorded for at least so long.
_LONG_S = 600
needs_promtool = pytest.mark.skipif(PROMETHEUS is None or shutil.which("promtool") is None, reason=WHY_NOT)


def _promtool(*arguments: str, folder: Path = FOLDER) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["promtool", *arguments], cwd=folder, capture_output=True, text=True, check=False)


@needs_promtool
def test_rules_pass_their_own_tests() -> None:
    done = _promtool("test", "rules", "tests.yml")
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
@pytest.mark.parametrize("scene", SCENES)
def test_what_was_recorded_of_a_real_job_fires_what_it_is_to_fire(scene: str) -> None:
    done = _promtool("test", "rules", f"{scene}.yml", folder=RECORDED)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("scene", SCENES)
def test_an_alert_comes_in_time_and_a_job_that_is_well_raises_none(scene: str) -> None:
    text = (RECORDED / f"{scene}.yml").read_text()
    wanted = SCENES[scene].alert
    fired = re.findall(r"labels: '\{alertname=\"(\w+)\".*\n\s+value: (\d+)", text)
    if not wanted:
        assert fired == []
        assert "exp_samples: []" in text
        assert int(re.findall(r"eval_time: (\d+)s", text)[0]) >= _LONG_S
        return
    assert {name for name, _ in fired} == {wanted}
    (began_s,) = re.findall(r"trouble begins at (\d+) s", text)
    assert min(int(at_s) for _, at_s in fired) - int(began_s) <= SCENES[scene].within_s


def test_each_alert_was_seen_firing_for_a_real_job() -> None:
    assert {scene.alert for scene in SCENES.values() if scene.alert} == set(ALERTS) - UNRECORDED
    assert {path.stem for path in RECORDED.glob("*.yml")} == set(SCENES)


@needs_promtool
@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("alerts.yml", "stoker:stall:ratio <= 0.5", "stoker:stall:ratio <= 0.3"),
        ("alerts.yml", "stoker:stall:ratio > 0.5", "stoker:stall:ratio > 0.9"),
        ("rules.yml", "min_over_time(stoker:wait:ratio[5m]) > 0.2", "min_over_time(stoker:wait:ratio[1m]) > 0.2"),
        ("rules.yml", "(stoker:wait:ratio offset 5m)", "stoker:wait:ratio"),
        ("rules.yml", "(1, avg_over_time(stoker_limit[5m]) > 0)", "(1, stoker_limit > 0)"),
        (
            "rules.yml",
            "or on (job, stream, rank, trainer) label_replace(stoker:stalled",
            "or label_replace(stoker:stalled",
        ),
        ("alerts.yml", "(stoker_trainers offset 10m) > 0", "(stoker_trainers offset 1m) > 0"),
        ("alerts.yml", "and on (job, stream) stoker_trainers > 0", "and on (job, stream) stoker_trainers >= 0"),
        ("alerts.yml", "waiting_facts > 0", "waiting_facts > 3"),
        ("alerts.yml", "worker_slowness:ratio > 2", "worker_slowness:ratio > 3.5"),
        ("alerts.yml", "worker_slowness:ratio > 2", "worker_slowness:ratio > 1.4"),
        ("rules.yml", "stoker_built_batches_total[2m])) > 0.02", "stoker_built_batches_total[2m])) > 0"),
        ("alerts.yml", "stoker_workers_replaced_total[5m]) >= 5", "stoker_workers_replaced_total[5m]) >= 1"),
        ("alerts.yml", "changes(stoker_workers_gone_total[10m]) >= 4", "increase(stoker_workers_gone_total[10m]) >= 4"),
        ("alerts.yml", "stoker_workers < stoker_workers_wanted\n          and ", ""),
        ("alerts.yml", "          < max_over_time(stoker_workers[15m])\n", "          > 0\n"),
        ("alerts.yml", "(stoker:workers_moved:count15m or on (job) 0 * stoker_workers)", "(0 * stoker_workers)"),
        ("alerts.yml", " or on (job) 0 * stoker_workers", ""),
        ("rules.yml", ' unless on (job, worker) up{role="worker"} offset 15m == 1', ""),
        ("rules.yml", ' unless on (job, worker) up{role="worker"} == 1', ""),
        ("alerts.yml", "max_over_time(stoker_trainers[10m])) > 0", "max_over_time(stoker_trainers[10m])) >= 0"),
        ("alerts.yml", "stoker:masked:ratio > 0.01", "stoker:masked:ratio > 0.001"),
        ("alerts.yml", 'why="bad"} > 0.05', 'why="bad"} > 0.01'),
        ("alerts.yml", "or stoker:left_out:ratio > 0.5", ""),
        ("alerts.yml", "0.8 * max by (job, stream)", "0.9 * max by (job, stream)"),
        ("rules.yml", "and on (job, stream) stoker_trained_epoch", ""),
        ("alerts.yml", "stoker:starved:ratio > 0.2", "stoker:starved:ratio > 0.05"),
        ("rules.yml", '_pressure_seconds_total{resource="memory"}', "_pressure_seconds_total"),
        ("alerts.yml", "stoker_rejected_batches_total[10m])) > 0", "stoker_rejected_batches_total[10m])) > 1"),
        ("alerts.yml", '{kind="unknown_key"}', ""),
        ("alerts.yml", "stoker_trainers_gone_total[10m]) > 0", "stoker_trainers_gone_total[10m]) >= 0"),
        ("alerts.yml", " and on (job) max by (job) (stoker_waited_ratio) > 0.05", ""),
        ("alerts.yml", "stoker:remote_wait:seconds > 1", "stoker:remote_wait:seconds > 0.1"),
        ("alerts.yml", "0 * stoker_retraces_total)\n          ) > 3", "0 * stoker_retraces_total)\n          ) > 2"),
        ("alerts.yml", " or 0 * stoker_retraces_total", ""),
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


def test_alerts_go_to_this_machine_and_where_the_runbook_is_is_said_once() -> None:
    config = (FOLDER / "prometheus.yml").read_text()
    assert re.findall(r"targets: \[(.*)\]", config) == ['"127.0.0.1:9093"']
    (base,) = re.findall(r"^    runbook: (\S+)$", config, re.M)
    assert re.fullmatch(r"https://\S+/monitoring/runbook\.md", base)
    assert base not in (FOLDER / "alerts.yml").read_text()


def test_rules_name_only_metrics_that_exist() -> None:
    expressions = re.sub(
        r"^\s*(#|summary|description|runbook_url|severity|- name|- record|- alert).*$", "", rules_text(), flags=re.M
    )
    assert {_base(name) for name in metrics_named(expressions)} <= {*METRICS, *recorded_names(), "up", *LATER}


def _base(name: str) -> str:
    return name if name in METRICS else name.removesuffix("_sum")


@pytest.mark.parametrize("alert", ALERTS)
def test_each_alert_has_its_section(alert: str) -> None:
    section = re.search(rf"^## {alert}\n(.*?)(?=^## |\Z)", RUNBOOK, re.M | re.S)
    assert section is not None
    for part in ("**It means:**", "**Look at**", "**Do**"):
        assert part in section[1]
    assert f'runbook_url: "{{{{ $externalLabels.runbook }}}}#{alert.lower()}"' in rules_text()


def test_the_runbook_has_no_section_of_an_alert_that_is_gone() -> None:
    assert re.findall(r"^## (Stoker\w+)", RUNBOOK, re.M) == ALERTS


def test_panels_named_in_the_runbook_exist() -> None:
    titles = {panel.title for made in DASHBOARDS for row in made.rows for panel in row.panels}
    named = set(re.findall(r"(?<!\*)\*([A-Z][^*]*\?)\*(?!\*)", RUNBOOK))
    assert named
    assert named <= titles
