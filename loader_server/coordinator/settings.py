"""Settings that the coordinator's state needs of its job, and its counters.

Rules: pure; nothing here decides.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shared.bad_limit import BadLimit

__all__ = ["CoordinatorSettings", "Counts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorSettings:
    """Facts about the job that the state needs."""

    job: str
    #: The builder fingerprint that every worker has to have.
    builder: str
    #: The parts of that fingerprint, by name.
    builder_parts: tuple[tuple[str, str], ...] = ()
    #: The group of all streams; 0: the world's size when a stream first starts.
    group: int
    heartbeat_timeout_s: float
    #: How many rows with a sample may be masked before a feed ends with an error.
    max_bad: BadLimit
    #: Streams that accept a graph from a trainer, with the digest of the kept graph, or an empty string.
    graphs: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Counts:
    """Counters of what has happened since the coordinator started."""

    attaches: int = 0
    refusals: int = 0
    superseded: int = 0
    workers_gone: int = 0
    stale: int = 0

    def report(self) -> dict[str, int]:
        """Return the counters that a status shows."""
        return {"attaches": self.attaches, "refusals": self.refusals, "stale": self.stale}
