"""Reads what a process of ours serves, as Prometheus would."""

from __future__ import annotations

import contextlib
import importlib
import json
import urllib.request
from typing import TYPE_CHECKING, Any

from prometheus_client.parser import text_string_to_metric_families

from shared.metrics.names import METRICS

if TYPE_CHECKING:
    from pathlib import Path

    from shared.metrics.names import Metric
    from shared.wire.message_parts import Role

for _name in ("loader_server.metrics.coordinator_metrics", "loader_server.metrics.worker_metrics"):
    importlib.import_module(_name)  # metrics register themselves
importlib.import_module("trainer_client.session.metrics")

__all__ = ["METRICS", "Scrape", "fetch_metrics", "metrics_of", "read_targets", "total"]

#: Values by name and sorted labels.
Scrape = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def fetch_metrics(address: str, token: str = "") -> Scrape:
    """All samples at an address, for who shows this token."""
    asked = urllib.request.Request(f"http://{address}/metrics", headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(asked, timeout=30) as answer:
        text = answer.read().decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def total(scrape: Scrape, name: str, **labels: str) -> float:
    """The sum of a metric over all samples with these labels."""
    return sum(
        value for (sample, had), value in scrape.items() if sample == name and labels.items() <= dict(had).items()
    )


def read_targets(folder: Path) -> dict[str, dict[str, Any]]:
    """The labels and `address` of each target file, by its name."""
    found = {}
    for path in sorted(folder.glob("*.json")):
        with contextlib.suppress(FileNotFoundError):  # its process has just ended
            (entry,) = json.loads(path.read_text())
            found[path.stem] = {**entry["labels"], "address": entry["targets"][0]}
    return found


def metrics_of(role: Role) -> tuple[Metric, ...]:
    """What processes of this role expose."""
    return tuple(metric for metric in METRICS.values() if role in metric.roles)
