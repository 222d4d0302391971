"""The limit on bad samples, which stops a job that would otherwise train on nothing and succeed.

Rules: pure. A limit that is a share compares the masked rows with all rows delivered since attaching, once there are
enough of them or the epoch ends; a single batch never decides. A limit that is a number compares the masked rows of one
epoch, and decides at once.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from shared.bad_limit import counted_reasons
from shared.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shared.bad_limit import BadLimit

__all__ = ["BadRowLimit"]

#: A share of fewer rows than this is not judged before the end of an epoch.
_ENOUGH_ROWS = 100

#: How many bad samples the error names.
_SHOWN = 3


class BadRowLimit:
    """Counts of good and bad rows, judged against `limit`."""

    def __init__(self, limit: BadLimit) -> None:
        self._limit = limit
        self._batches = self._rows = self._bad = 0
        self._reasons: Counter[str] = Counter()
        self._bad_of_lap: Counter[int] = Counter()
        self._first: list[str] = []

    @property
    def has_bad_rows(self) -> bool:
        """Return whether any row was bad; if not, there is no need for a `verdict`."""
        return self._bad > 0

    def count(self, *, lap: int, good: int, bad: int, reasons: Iterable[tuple[str, int]], first: str) -> None:
        """Count the rows of another batch of this lap; `first` names its first bad sample, if it has one."""
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
        """Return the error that stops the job if too many rows are bad, else None.

        `at_the_end` says that the epoch has no more rows, so that a share of few rows is judged as well.
        """
        # A share of few rows says little: with one bad sample in a first batch of sixteen, 6 % would be bad.
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
