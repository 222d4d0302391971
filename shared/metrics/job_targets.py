"""Scrape targets of a job's processes, in the format of Prometheus' HTTP service discovery.

Rules: pure. A worker's address was determined when it registered (`scrape_address`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.endpoints import is_loopback

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

__all__ = ["instance_of", "job_targets"]


def instance_of(labels: Mapping[str, str]) -> str:
    """Return a process's instance name, the same wherever it serves: its role, and its name if it has one."""
    return "-".join(value for key, value in labels.items() if key != "job")


def job_targets(report: Mapping[str, Any], host: str, port: int) -> list[dict[str, Any]]:
    """Return the scrape targets of a job: its coordinator and its workers.

    `host` and `port` are where the coordinator was asked. A worker is left out if its address is a loopback one and the
    coordinator was not asked over loopback, because the scraper could not reach it.
    """
    is_local = is_loopback(f"tcp://{host}:{port}")
    targets = [_target(f"{host}:{port}", {"job": report["job"], "role": "coordinator"})]
    for worker in report["workers"]:
        address = worker["metrics"]
        if address.startswith(":"):  # on the coordinator's machine, at all of its addresses
            address = host + address
        if address and (is_local or not is_loopback(f"tcp://{address}")):
            targets.append(_target(address, {"job": report["job"], "role": "worker", "worker": worker["name"]}))
    return targets


def _target(address: str, labels: Mapping[str, str]) -> dict[str, Any]:
    return {"targets": [address], "labels": {"instance": instance_of(labels), **labels}}
