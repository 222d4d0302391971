"""How many samples of a job may be bad: one rule, for data that are indexed and for batches that are trained on.

Rules: pure. A limit is a share of all samples that were looked at, or a number of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["NO_LIMIT", "BadLimit", "counted_reasons"]


@dataclass(frozen=True, slots=True)
class BadLimit:
    """At most this share, or if there is one, this number of samples."""

    share: float = 1.0
    samples: int | None = None

    def is_exceeded(self, bad: int, among: int) -> bool:
        """Whether so many bad ones among so many are too many."""
        return bad > (self.share * among if self.samples is None else self.samples)

    def __str__(self) -> str:
        return f"{100 * self.share:g} %" if self.samples is None else f"{self.samples} samples"


#: All may be bad.
NO_LIMIT = BadLimit()


def counted_reasons(counts: Mapping[str, int]) -> str:
    """How many are bad for which reason, the most frequent first."""
    ordered = sorted(counts.items(), key=lambda one: (-one[1], one[0]))
    return ", ".join(f"{count} {reason}" for reason, count in ordered) or "no reason was given"
