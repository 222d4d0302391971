"""The limit on a job's bad samples: one rule, for indexing and for training.

Rules: pure. A limit is a share of all samples examined, or a number of samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["NO_LIMIT", "BadLimit", "counted_reasons"]


@dataclass(frozen=True, slots=True)
class BadLimit:
    """Upper limit on bad samples: the number `samples` if given, else a share of all."""

    share: float = 1.0
    samples: int | None = None

    def is_exceeded(self, bad: int, among: int) -> bool:
        """Return whether `bad` samples out of `among` are more than the limit; as many as the limit are not."""
        return bad > (self.share * among if self.samples is None else self.samples)

    def __str__(self) -> str:
        return f"{100 * self.share:g} %" if self.samples is None else f"{self.samples} samples"


#: Every sample may be bad.
NO_LIMIT = BadLimit()


def counted_reasons(counts: Mapping[str, int]) -> str:
    """Return the number of bad samples of each reason as text, the most frequent reason first.

    Reasons of equal counts are sorted by name; without any the text is "no reason was given".
    """
    # Equal counts by name: the text must not depend on the order in which workers reported.
    ordered = sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))
    return ", ".join(f"{count} {reason}" for reason, count in ordered) or "no reason was given"
