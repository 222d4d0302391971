"""Sums of the last half minute: what a worker or trainer did, from the counts in its heartbeats.

Rules: pure. Counts only grow; a lower one begins anew, because its sender does.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["LATELY_S", "TRAINER_COUNTS", "WORKER_COUNTS", "Lately", "lately_report"]

#: Reports cover these times: what limits a job shows in seconds, what it would gain needs a steadier look.
LATELY_S = (5.0, 30.0)

#: What is counted: fields of `Beat`, and for trainers batches read, and microseconds of waiting, of batches on their
#: way by TCP and of their own computation.
WORKER_COUNTS = ("built", "busy_us", "awaited_us", "read_us", "held_up_us")
TRAINER_COUNTS = ("batches", "waited_us", "wire_us", "computed_us")

#: Most entries, of which there are two a second with the usual heartbeats.
_MOST = 128

#: Heartbeats may come a little late, and then the one before still counts.
_LATE_S = 0.25


class Lately:
    """The counts of one sender, as of its heartbeats of the last half minute."""

    def __init__(self) -> None:
        self._counts: deque[tuple[float, Sequence[float]]] = deque(maxlen=_MOST)

    def note(self, counts: Sequence[float], now_s: float) -> None:
        """Note a heartbeat's counts, sums since the sender began, in a fixed order; a lower one drops earlier ones."""
        known = self._counts
        if known and any(new < old for new, old in zip(counts, known[-1][1], strict=True)):
            known.clear()
        known.append((now_s, counts))
        # The last entry that is older stays, so that the whole time is covered.
        while len(known) > 2 and known[1][0] <= now_s - LATELY_S[-1]:
            known.popleft()

    def over(self, seconds: float) -> tuple[float, list[float]] | None:
        """Return the seconds between the last heartbeat and one about `seconds` before, and what each count grew by.

        The time is shorter if the sender has been known for less. Return None before its second heartbeat, or the
        second since a count fell.
        """
        if len(self._counts) < 2:
            return None
        last_s, last = self._counts[-1]
        first_s, first = next(entry for entry in self._counts if entry[0] > last_s - seconds - _LATE_S)
        if first_s == last_s:
            first_s, first = self._counts[-2]
        return last_s - first_s, [new - old for new, old in zip(last, first, strict=True)]


def lately_report(lately: Lately, names: Sequence[str]) -> dict[str, Any] | None:
    """Return, by each time of `LATELY_S` as text, `over_s` and the sums by name; None before two heartbeats."""
    report = {}
    for seconds in LATELY_S:
        sums = lately.over(seconds)
        if sums is None:
            return None
        over_s, values = sums
        report[f"{seconds:g}"] = {"over_s": round(over_s, 3)} | {
            name: round(value, 6) for name, value in zip(names, values, strict=True)
        }
    return report
