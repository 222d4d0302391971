"""How workers and trainers did in the last seconds: means over any part of a record that is kept for half a minute.

Rules: pure. The record keeps running sums, so that a mean costs two look-ups however many looks it covers.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass

__all__ = ["JobPace", "PaceMeans", "PaceRecord"]

#: Entries from which old ones are dropped, half of them at a time.
_MOST_ENTRIES = 256

#: Rounding errors of sums of times.
_ROUNDING_S = 1e-6


@dataclass(frozen=True, slots=True)
class JobPace:
    """What workers and trainers did since the last look."""

    #: Workers that are there, on all hosts.
    workers: int
    #: Worker-seconds of building a second.
    busy: float
    #: Trainers that are attached.
    trainers: int
    #: Batches that trainers have read.
    read: int
    #: Share of the time that trainers waited for data.
    waited: float
    #: The part by which several times as many workers would raise the rate; None if that is unknown.
    workers_gain: float | None = None

    @property
    def owed(self) -> float:
        """Return the share of the time that trainers waited for workers, so that more of them would end it.

        While it is not known what more workers would gain, waiting counts as far as workers were busy.
        """
        if self.workers_gain is None:
            return self.waited * min(1.0, self.busy / self.workers)
        return min(self.waited, 1 - 1 / (1 + self.workers_gain))


@dataclass(frozen=True, slots=True)
class PaceMeans:
    """Means over some seconds in which workers and trainers stayed the same."""

    over_s: float
    workers: float
    #: Worker-seconds of building a second.
    busy: float
    #: Batches that trainers read, in all, and a second with its standard error.
    read: float
    rate: float
    error: float
    #: Share of the time that trainers waited, and waited for workers.
    waited: float
    owed: float
    #: Share of the time in which it was known what more workers would gain.
    known: float = 0.0

    @property
    def load(self) -> float:
        """Return how many workers would be busy if trainers did not wait for them; infinity if they did nothing else.

        That is worker-seconds a batch times the rate at which trainers would read.
        """
        return self.busy / (1 - self.owed) if self.owed < 1 else math.inf

    @property
    def fullness(self) -> float:
        """Return the share of their time in which workers were busy."""
        return self.busy / self.workers


#: Running sums: workers, busy, waited and owed times seconds, batches, batches squared, batches times seconds, seconds
#: squared, and seconds in which the gain of more workers was known.
_Sums = tuple[float, float, float, float, float, float, float, float, float]
_NOTHING: _Sums = (0.0,) * 9


class PaceRecord:
    """The record of what happened since `clear`; at least the last half minute of it."""

    def __init__(self) -> None:
        self._times_s: list[float] = [0.0]
        self._sums: list[_Sums] = [_NOTHING]

    @property
    def over_s(self) -> float:
        """Return how many seconds the record covers."""
        return self._times_s[-1] - self._times_s[0]

    def clear(self) -> None:
        """Drop all that was recorded, so that the record covers no time and `means` returns None."""
        self._times_s, self._sums = [0.0], [_NOTHING]

    def add(self, pace: JobPace, over_s: float) -> None:
        """Add what happened in the next `over_s` seconds; there has to be a worker."""
        workers, busy, waited, owed, read, squared, timed, seconds, known = self._sums[-1]
        self._times_s.append(self._times_s[-1] + over_s)
        self._sums.append(
            (
                workers + pace.workers * over_s,
                busy + pace.busy * over_s,
                waited + pace.waited * over_s,
                owed + pace.owed * over_s,
                read + pace.read,
                squared + pace.read**2,
                timed + pace.read * over_s,
                seconds + over_s**2,
                known + (pace.workers_gain is not None) * over_s,
            )
        )
        if len(self._times_s) > _MOST_ENTRIES:
            del self._times_s[: _MOST_ENTRIES // 2], self._sums[: _MOST_ENTRIES // 2]

    def waited(self, since_s: float, until_s: float) -> float:
        """Return the share of waiting between two times, in seconds before the last entry; 0 if no entry is between."""
        first, last = self._before(since_s), self._before(until_s)
        over_s = self._times_s[last] - self._times_s[first]
        return (self._sums[last][2] - self._sums[first][2]) / over_s if over_s > 0 else 0.0

    def means(self, over_s: float) -> PaceMeans | None:
        """Return the means of the last seconds, at least `over_s`; None if that is not above 0 or not recorded yet."""
        if not 0 < over_s <= self.over_s + _ROUNDING_S:
            return None
        first = self._before(over_s)
        over_s = self._times_s[-1] - self._times_s[first]
        workers, busy, waited, owed, read, squared, timed, seconds, known = (
            after - before for after, before in zip(self._sums[-1], self._sums[first], strict=True)
        )
        rate = read / over_s
        # From the scatter of looks, not of batches: trainers in step read in bursts.
        spread = max(0.0, squared - 2 * rate * timed + rate**2 * seconds)
        return PaceMeans(
            over_s=over_s,
            workers=workers / over_s,
            busy=busy / over_s,
            read=read,
            rate=rate,
            error=math.sqrt(spread) / over_s,
            waited=waited / over_s,
            owed=owed / over_s,
            known=known / over_s,
        )

    def _before(self, ago_s: float) -> int:
        """Return the index of the latest entry that is at least `ago_s` old; 0, the first, if none is."""
        return max(0, bisect_right(self._times_s, self._times_s[-1] - ago_s + _ROUNDING_S) - 1)
