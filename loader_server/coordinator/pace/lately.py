"""What a worker or trainer did in the last half minute, from the counts in its heartbeats.

This is the only record of heartbeats: what limits a job, how many workers it wants and what the status shows all come
from it.

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
WORKER_COUNTS = ("built", "busy_us", "awaited_us", "read_us", "held_up_us", "throttled_us", "queued_us")
TRAINER_COUNTS = ("batches", "waited_us", "wire_us", "computed_us")

#: Most entries, of which there are two a second with the usual heartbeats.
_MOST = 128

#: Heartbeats may come a little late, and then the one before still counts.
_LATE_S = 0.25


class Lately:
    """The counts of one sender by `names`, as of its heartbeats of the last half minute."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names
        self._counts: deque[tuple[float, Sequence[float]]] = deque(maxlen=_MOST)

    def note(self, counts: Sequence[float], now_s: float) -> None:
        """Note a heartbeat's counts, sums since the sender began, in the order of `names`; a lower one drops all."""
        known = self._counts
        if known and any(new < old for new, old in zip(counts, known[-1][1], strict=True)):
            known.clear()
        known.append((now_s, counts))
        # The last entry that is older stays, so that the whole time is covered.
        while len(known) > 2 and known[1][0] <= now_s - LATELY_S[-1]:
            known.popleft()

    def over(self, seconds: float) -> tuple[float, list[float]] | None:
        """Return the seconds between the last heartbeat and one about `seconds` before, and what each count grew by.

        The time is shorter if the sender has been known for less, and longer if it is shorter than that between two
        heartbeats. Return None before the second heartbeat, or the second since a count fell.
        """
        if len(self._counts) < 2:
            return None
        last_s, last = self._counts[-1]
        # From the end: of 60 entries the last dozen are looked for most often.
        before = iter(reversed(self._counts))
        next(before)
        first_s, first = next(before)
        for at_s, counts in before:
            if at_s <= last_s - seconds - _LATE_S:
                break
            first_s, first = at_s, counts
        return last_s - first_s, [new - old for new, old in zip(last, first, strict=True)]

    def rate(self, name: str) -> float:
        """Return what a count grew by each second between the last two heartbeats; 0 before there are two."""
        sums = self.over(0.0)
        return sums[1][self.names.index(name)] / sums[0] if sums is not None and sums[0] > 0 else 0.0

    def since(self, name: str, since_s: float) -> float:
        """Return what a count grew by in the heartbeats that came after `since_s`; 0 if none came.

        Of a sender whose first heartbeat came later, the growth since that one.
        """
        if not self._counts:
            return 0.0
        at = self.names.index(name)
        newest = self._counts[-1][1][at]
        oldest = newest
        for at_s, counts in reversed(self._counts):
            oldest = counts[at]
            if at_s <= since_s:
                break
        return newest - oldest


def lately_report(lately: Lately) -> dict[str, Any] | None:
    """Return, by each time of `LATELY_S` as text, `over_s` and the sums by name; None before two heartbeats."""
    report = {}
    for seconds in LATELY_S:
        sums = lately.over(seconds)
        if sums is None:
            return None
        over_s, values = sums
        report[f"{seconds:g}"] = {"over_s": round(over_s, 3)} | {
            name: round(value, 6) for name, value in zip(lately.names, values, strict=True)
        }
    return report
