"""Stops a job that has too many bad samples, instead of letting it train on nothing and succeed.

Rules: pure. A share is that of masked rows among those delivered since attaching, once there are enough of them or the
epoch ends; a single batch never decides. A number is that of masked rows in one epoch, and decides at once.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from shared.bad_limit import counted_reasons
from shared.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shared.bad_limit import BadLimit

__all__ = ["BadRows"]

#: A share of fewer rows than this says little.
_ENOUGH_ROWS = 100

#: How many samples are shown.
_SHOWN = 3


class BadRows:
    """Counts rows; `limit` is how many bad ones are tolerated."""

    def __init__(self, limit: BadLimit) -> None:
        self._limit = limit
        self._batches = self._rows = self._bad = 0
        self._reasons: Counter[str] = Counter()
        self._bad_of_lap: Counter[int] = Counter()
        self._first: list[str] = []

    @property
    def found(self) -> bool:
        """Whether there are any: if not, no verdict can be bad."""
        return self._bad > 0

    def count(self, *, lap: int, good: int, bad: int, reasons: Iterable[tuple[str, int]], first: str) -> None:
        """Count the rows of one more batch of a lap; `first` names a sample of it that is bad, if any is."""
        self._batches += 1
        self._rows += good + bad
        if not bad:
            return
        self._bad += bad
        self._bad_of_lap[lap] += bad
        self._reasons.update(dict(reasons))
        if first and first not in self._first and len(self._first) < _SHOWN:
            self._first.append(first)

    def verdict(self, *, at_the_end: bool) -> DataError | None:
        """The error that stops the job, if too many are bad; `at_the_end`: the epoch has no more rows."""
        if self._limit.samples is None:
            enough = self._batches > 1 and (at_the_end or self._rows >= _ENOUGH_ROWS)
            exceeded = enough and self._limit.is_exceeded(self._bad, self._rows)
        else:
            exceeded = any(self._limit.is_exceeded(bad, self._rows) for bad in self._bad_of_lap.values())
        return self._error() if exceeded else None

    def _error(self) -> DataError:
        shown = f": {'; '.join(self._first)}" if self._first else ""
        return DataError(
            expected=f"at most {self._limit} of the rows to be unusable (max_bad)",
            got=f"{self._bad} of the first {self._rows} ({counted_reasons(self._reasons)}){shown}",
            where="feed",
            remedy="quarantine.jsonl in the state folder names each sample: mend the data or the transform, or raise "
            "max_bad in [job].",
        )
