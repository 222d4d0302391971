"""A real Prometheus watches a running job: every query of dashboard and rules has an answer."""

from __future__ import annotations

import json
import re
import threading
import urllib.request
from typing import TYPE_CHECKING

import pytest

import trainer_client
from loader_server.cli import main
from monitoring.grafana.dashboard import DASHBOARDS
from tests.support.loaders import running, wait_until, write_job
from tests.support.monitoring import PROMETHEUS, WHY_NOT, Prometheus, rules_text, watching
from tests.support.reserved_host import reserved_host

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.loaders import Loaders
    from trainer_client import Feed

pytestmark = pytest.mark.skipif(PROMETHEUS is None, reason=WHY_NOT)

JOB = "tones"
TRANSFORMS = ("tests.support.transforms:raises", "logmel", "characters")
#: What Grafana puts in place of variables.
_CHOSEN = {"$job": JOB, "$stream": ".*", "$rank": ".*", "$worker": ".*"}
_CHOSEN |= {"$__rate_interval": "1m", "$__range": "5m", "$__interval": "1m"}
EXPRESSIONS = sorted(
    {
        re.sub(r"\$\w+", lambda found: _CHOSEN[found[0]] if found[0] in _CHOSEN else found[0], query.expr)
        for made in DASHBOARDS
        for row in made.rows
        for panel in row.panels
        for query in panel.queries
    }
)

#: A selector in the expression of an alert: a metric's name and what is asked of its labels.
_SELECTOR = re.compile(r"(?:stoker[a-z_0-9:]+|up)(?:\{[^}]*\})?(?:\[\w+\])?")


#: What has data only for a job in trouble, one that waited for five minutes, one that needs several workers (here one
#: may get all wants), or one whose workers move to another: recorded jobs have it (see recording), or the rules' tests.
_OF_TROUBLE = (
    "stoker:worker_slowness:ratio",
    "stoker:limit:now", "stoker:stalled:ratio", "stoker:stall:ratio", "stoker:remote_wait:seconds",
    "stoker:workers_moved:count15m",
    'stoker:left_out:ratio{why="bad"}',
)  # fmt: skip


class _Trainer:
    """Trains without an end, slowly, and tells what it waits."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._feed.aggregate({"loss": 1.0}, rows=1)
            for _ in self._feed:
                self._feed.waited(0.001)
                self._feed.trained()
                if self._stop.wait(0.05):
                    break

    def close(self) -> None:
        self._stop.set()
        self._thread.join(60)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("watched")


@pytest.fixture(scope="module")
def machine() -> Iterator[str]:
    """Where the machine says which processes there are."""
    with reserved_host() as host:
        yield host


@pytest.fixture(scope="module")
def loaders(folder: Path, machine: str) -> Iterator[Loaders]:
    job = write_job(folder, samples=60, transforms=TRANSFORMS, stream='max_length = "0.9 s"')
    with job.open("a") as file:
        file.write('\n[streams.leased]\nlike = "train"\nevaluation = false\nmode = "queue"\n')
        file.write('[streams.elastic]\nlike = "train"\nevaluation = false\n')
    with (
        running(job, workers=2, arguments=("--metrics-listen", machine)) as loaders,
        trainer_client.connect(loaders.endpoint, stream="leased") as feed,
    ):
        next(iter(feed)).done()
        trainer_client.connect(loaders.endpoint, stream="elastic", elastic=(1, 1)).close()
        yield loaders


@pytest.fixture(scope="module")
def prometheus(folder: Path, loaders: Loaders, machine: str) -> Iterator[Prometheus]:
    """Prometheus, once it has seen each process often enough for a rate."""
    with (
        watching(f"http://{machine}/targets", folder) as prometheus,
        trainer_client.connect(loaders.endpoint, metrics_port=0) as feed,
    ):
        trainer = _Trainer(feed)
        try:
            wait_until(
                lambda: len(prometheus.values(f'count_over_time(up{{job="{JOB}"}}[1m]) > 3')) == 4,
                "Prometheus has asked coordinator, workers and trainer",
                60,
            )
            yield prometheus
        finally:
            trainer.close()


def test_every_target_is_found_and_answers(prometheus: Prometheus) -> None:
    targets = prometheus.ask("targets")["activeTargets"]
    assert [(one["health"], one["lastError"]) for one in targets] == [("up", "")] * 4
    assert {one["labels"]["role"] for one in targets} == {"coordinator", "worker", "trainer"}
    assert {one["labels"]["job"] for one in targets} == {JOB}


@pytest.mark.parametrize("expr", EXPRESSIONS)
def test_every_query_of_the_dashboard_returns_data(prometheus: Prometheus, expr: str) -> None:
    wait_until(lambda: prometheus.values(expr), f"data for {expr}", 60)


def test_every_rule_is_sound_and_returns_data(prometheus: Prometheus) -> None:
    def rules() -> list[dict[str, str]]:
        return [rule for group in prometheus.ask("rules")["groups"] for rule in group["rules"]]

    wait_until(lambda: all(rule["health"] == "ok" for rule in rules()), "all rules were evaluated", 60)
    assert len(rules()) == len(re.findall(r"- (?:alert|record):", rules_text())) > 0
    for rule in rules():
        # An alert is silent while all is well: then what it looks at must be there.
        parts = [rule["query"]] if rule["type"] == "recording" else _SELECTOR.findall(rule["query"])
        assert parts
        for part in parts:
            if rule["name"] in _OF_TROUBLE or part in _OF_TROUBLE:
                continue
            wait_until(lambda part=part: prometheus.values(_instant(part)), f"data for {part}", 60)  # type: ignore[misc]


def _instant(selector: str) -> str:
    return f"last_over_time({selector})" if selector.endswith("]") else selector


def test_ratios_lie_between_nothing_and_all(prometheus: Prometheus) -> None:
    for name in ("stoker:wait:ratio", "stoker:epoch:ratio", "stoker:cells:ratio", "stoker:worker_busy:ratio"):
        wait_until(lambda name=name: prometheus.values(name), f"data for {name}")  # type: ignore[misc]
        assert all(0 <= value <= 1.05 for value in prometheus.values(name)), name
    wait_until(
        lambda: abs(sum(prometheus.values('stoker:cells:ratio{stream="train"}')) - 1) < 1e-6,
        "shares of cells are whole",
    )


def test_no_alert_fires_for_a_job_that_is_well(prometheus: Prometheus) -> None:
    firing = [
        alert["labels"]["alertname"] for alert in prometheus.ask("alerts")["alerts"] if alert["state"] == "firing"
    ]
    assert set(firing) <= {"StokerSamplesMasked"}  # one of its transforms fails on some samples


def test_a_job_that_is_added_is_found_and_one_that_ends_is_forgotten(
    prometheus: Prometheus, folder: Path, tmp_path: Path
) -> None:
    other = write_job(tmp_path, name="other", samples=20)
    with pytest.raises(SystemExit) as end:
        main(["add", "--to", str(folder / "job.toml"), str(other)])
    assert not end.value.code
    ups = 'up{job="other"}'
    wait_until(
        lambda: prometheus.values(f'{ups} == 1 and {ups[:-1]},role="coordinator"}}'), "the added job is seen", 60
    )
    with pytest.raises(SystemExit) as end:
        main(["end", str(other)])
    assert not end.value.code
    wait_until(lambda: prometheus.values(ups) == [], "no target of the ended job is left", 60)


def test_a_coordinator_that_is_gone_is_noticed_until_it_is_back(
    prometheus: Prometheus, loaders: Loaders, machine: str
) -> None:
    (absent,) = re.findall(r"expr: (.*role=\"coordinator\".*)", rules_text())
    coordinator = loaders.coordinator()
    coordinator.suspend()
    try:
        wait_until(lambda: prometheus.values(absent) == [3], "the coordinator is missed", 60)
        # The alert needs it for a minute: its job must not vanish from the list that Prometheus asks for meanwhile.
        with urllib.request.urlopen(f"http://{machine}/targets", timeout=30) as answer:
            assert len(json.load(answer)) == 4
    finally:
        coordinator.resume()
    wait_until(lambda: prometheus.values(absent) == [], "the coordinator is back", 60)
