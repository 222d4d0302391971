"""Stops a job that has too many bad samples, instead of letting it train on nothing and succeed.

Rules: pure. What counts is the share of masked rows among those delivered since attaching, once there are enough of
them or the epoch ends; a single batch never decides.
"""

from __future__ import annotations

from shared.errors import DataError

__all__ = ["BadRows"]

#: The share among fewer rows than this says little.
_ENOUGH_ROWS = 100

#: How many reasons are shown.
_SHOWN = 3


class BadRows:
    """Counts rows; `most` is the highest share of bad ones that is tolerated."""

    def __init__(self, most: float) -> None:
        self._most = most
        self._batches = self._rows = self._bad = 0
        self._reasons: list[str] = []

    def count(self, *, good: int, bad: int, reason: str) -> None:
        """Count the rows of one more batch."""
        self._batches += 1
        self._rows += good + bad
        self._bad += bad
        if reason and reason not in self._reasons and len(self._reasons) < _SHOWN:
            self._reasons.append(reason)

    def verdict(self, *, at_the_end: bool) -> DataError | None:
        """The error that stops the job, if too many are bad; `at_the_end`: the epoch has no more rows."""
        enough = self._batches > 1 and (at_the_end or self._rows >= _ENOUGH_ROWS)
        if not enough or self._bad <= self._most * self._rows:
            return None
        return DataError(
            expected=f"at most {self._most:.0%} of the rows to be unusable (max_bad)",
            got=f"{self._bad} of the first {self._rows}: {'; '.join(self._reasons) or 'no reason was given'}",
            where="feed",
            remedy="quarantine.jsonl in the state folder names each sample: mend the data or the transform, or raise "
            "max_bad in [job].",
        )
