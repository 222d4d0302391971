"""What the coordinator's state has to know of its job, and what it counts.

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
    """What the state has to know about the job."""

    job: str
    #: The builder fingerprint that every worker has to have.
    builder: str
    #: What that is made of, by name.
    builder_parts: tuple[tuple[str, str], ...] = ()
    #: The group of all streams; 0: the world's size when a stream first starts.
    group: int
    heartbeat_timeout_s: float
    #: How many rows with a sample may be masked before a feed ends with an error.
    max_bad: BadLimit
    #: The streams that take a graph from a trainer, with the digest of the one that is kept, or an empty string.
    graphs: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Counts:
    """What has happened so far."""

    attaches: int = 0
    refusals: int = 0
    superseded: int = 0
    workers_gone: int = 0
    stale: int = 0

    def report(self) -> dict[str, int]:
        """Those that a status shows."""
        return {"attaches": self.attaches, "refusals": self.refusals, "stale": self.stale}
