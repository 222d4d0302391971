"""Where the metrics of a job's processes are, as Prometheus' service discovery by HTTP reads it.

Rules: pure. Where a worker's are was worked out when it registered (`scrape_address`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.endpoints import is_loopback

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

__all__ = ["instance_of", "job_targets"]


def instance_of(labels: Mapping[str, str]) -> str:
    """Return what a process is called in its job, wherever it serves: its role, and its name if it has one."""
    return "-".join(value for key, value in labels.items() if key != "job")


def job_targets(report: Mapping[str, Any], host: str, port: int) -> list[dict[str, Any]]:
    """Return where the metrics of a job are, for Prometheus: the coordinator's own place and those of its workers.

    `host` and `port` are where the coordinator's own were asked for. A worker is left out if who asks there does not
    reach its own.
    """
    is_local = is_loopback(f"tcp://{host}:{port}")
    targets = [_target(f"{host}:{port}", {"job": report["job"], "role": "coordinator"})]
    for worker in report["workers"]:
        address = worker["metrics"]
        if address.startswith(":"):  # on this machine, at all of its addresses
            address = host + address
        if address and (is_local or not is_loopback(f"tcp://{address}")):
            targets.append(_target(address, {"job": report["job"], "role": "worker", "worker": worker["name"]}))
    return targets


def _target(address: str, labels: Mapping[str, str]) -> dict[str, Any]:
    return {"targets": [address], "labels": {"instance": instance_of(labels), **labels}}
