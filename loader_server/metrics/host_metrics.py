"""What a worker's host keeps from it: CPU that its building thread had to wait for, and the pressure on the host.

Rules: read only when somebody asks, in the metrics server's thread. A kernel that does not tell (no PSI, or a container
that hides it) has no samples, rather than zeros that would look well.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from shared.metrics.names import Declarations
from shared.metrics.server import MetricSamples

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["host_samples"]

_worker = Declarations("worker")

HELD_UP = _worker.counter(
    "stoker_held_up_seconds_total",
    "Time in which the worker's building thread could run and the host gave it no CPU.",
    "Its rate is the share of one core that is missing: above 0.2 see the runbook, StokerHostStarved.",
)
PRESSURE = _worker.counter(
    "stoker_host_pressure_seconds_total",
    "Time in which some process of the worker's host waited for the resource (cpu, memory, io), as Linux tells it.",
    "memory: give the host more, or fewer workers. cpu: see stoker_held_up_seconds_total for what it costs us.",
    ("resource",),
)

_RESOURCES = ("cpu", "memory", "io")
_PSI = Path("/proc/pressure")


def host_samples(held_up_s: float, folder: Path = _PSI) -> Iterator[MetricSamples]:
    """Yield the samples of a worker's host: what was held up, as counted elsewhere, and pressure if it is known."""
    yield MetricSamples.single(HELD_UP, held_up_s)
    totals = {(resource,): _total_s(folder / resource) for resource in _RESOURCES}
    yield MetricSamples(PRESSURE, {labels: total_s for labels, total_s in totals.items() if total_s is not None})


def _total_s(file: Path) -> float | None:
    """Return the seconds in which some process waited, from a file of PSI; None if the kernel does not tell."""
    try:
        some = file.read_text().splitlines()[0]
        return int(some.rpartition("total=")[2]) / 1e6
    except (OSError, ValueError, IndexError):
        return None
