"""What a lease table counts, and what of it people should read in the log. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from loader_server.leases.lease_trainer import Key

__all__ = ["NO_REASON", "OTHER_REASONS", "TOOK_TOO_LONG", "TableCounts", "TableNews"]

#: Why a batch failed that was in a trainer's hands past its deadline.
TOOK_TOO_LONG = "a trainer had it in hand past its deadline"
#: Why a batch failed whose trainer did not say.
NO_REASON = "no reason given"

#: How many reasons are counted apart, and what all others count as: a reason may hold a number that is never the same.
_MOST_REASONS = 32
OTHER_REASONS = "other reasons"


@dataclass(slots=True)
class TableCounts:
    """What has happened so far."""

    leased: int = 0
    done: int = 0
    failed: int = 0
    expired: int = 0
    #: Given back through no fault of the batch.
    returned: int = 0
    #: Reports of numbers that were done already, or that somebody else has by now.
    late: int = 0
    #: Reports of numbers that were never leased.
    unknown: int = 0
    #: How many tries were lost, by reason.
    reasons: Counter[str] = field(default_factory=Counter)

    def add_reason(self, reason: str) -> None:
        """Count a try that was lost."""
        is_counted_apart = reason in self.reasons or len(self.reasons) < _MOST_REASONS
        self.reasons[reason if is_counted_apart else OTHER_REASONS] += 1


@dataclass(frozen=True, slots=True)
class TableNews:
    """What happened to a batch that people should know of: "failed", "dead" or "unknown", and why."""

    event: str
    key: Key
    reason: str = ""
