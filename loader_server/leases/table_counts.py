"""The counters of a lease table, and its events for the log. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from loader_server.leases.lease_trainer import Key

__all__ = ["NO_REASON", "OTHER_REASONS", "TOOK_TOO_LONG", "TableCounts", "TableNews"]

#: The reason of a batch that was in a trainer's hands past its deadline.
TOOK_TOO_LONG = "a trainer had it in hand past its deadline"
#: The reason of a failed batch whose trainer gave none.
NO_REASON = "no reason given"

#: The limit on reasons with a counter of their own, and the name for all others. Without it, reasons with a changing
#: number in their text would add counters without end.
_MOST_REASONS = 32
OTHER_REASONS = "other reasons"


@dataclass(slots=True)
class TableCounts:
    """The counters of a lease table since its process started."""

    leased: int = 0
    done: int = 0
    failed: int = 0
    expired: int = 0
    #: Numbers given back through no fault of the batch.
    returned: int = 0
    #: Reports of numbers that were done already, or that another trainer has by now.
    late: int = 0
    #: Reports of numbers that were never leased.
    unknown: int = 0
    #: Lost tries, by reason.
    reasons: Counter[str] = field(default_factory=Counter)

    def add_reason(self, reason: str, times: int = 1) -> None:
        """Count lost tries under their reason, or with all other reasons if too many have a counter of their own."""
        is_counted_apart = reason in self.reasons or len(self.reasons) < _MOST_REASONS
        self.reasons[reason if is_counted_apart else OTHER_REASONS] += times


@dataclass(frozen=True, slots=True)
class TableNews:
    """An event of a batch for the log: "failed", "dead" or "unknown", whose trainer by incarnation, and the reason."""

    event: str
    key: Key
    trainer: int
    reason: str = ""
