"""How many samples of a job may be bad: one rule, for indexing and for training.

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
    """At most this share of the samples; or, if it is given, this number of them."""

    share: float = 1.0
    samples: int | None = None

    def is_exceeded(self, bad: int, among: int) -> bool:
        """Whether `bad` samples among so many are too many."""
        return bad > (self.share * among if self.samples is None else self.samples)

    def __str__(self) -> str:
        return f"{100 * self.share:g} %" if self.samples is None else f"{self.samples} samples"


#: Every sample may be bad.
NO_LIMIT = BadLimit()


def counted_reasons(counts: Mapping[str, int]) -> str:
    """How many samples are bad for each reason, the most frequent reason first."""
    ordered = sorted(counts.items(), key=lambda one: (-one[1], one[0]))
    return ", ".join(f"{count} {reason}" for reason, count in ordered) or "no reason was given"
