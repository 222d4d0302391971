"""How many workers a job could use: the number behind `workers_wanted`.

Rules: pure. The number that is needed follows from work: worker-seconds a batch, times the rate at which trainers read,
times what that rate would grow by without waiting. Waiting counts as far as workers were busy at the same time, because
trainers that wait while workers are idle wait for something else (a network, their own window).

- Up only while trainers wait, in both halves of the time that is looked at; at once as far as the work says, but at most
  eightfold. The first number is what the work says, in both directions, if trainers wait; else what is there.
- A step up is judged once its workers are there and have settled. If trainers still wait, and read less than half of
  what was predicted more, it is taken back to what the rate that it brought is worth, and none is tried for five
  minutes; after each further failure for twice as long, for up to an hour.
- Down slowly: a quarter at a time, at least one, once the busiest moment of the last minute of reading would have left
  room; every 15 s from then on. How full workers may be is learned: trainers that waited once with workers that were
  80 % busy will wait again. A step down that cost rate is taken back and not tried again for as long.
- Time in which nobody reads (a validation, a checkpoint, a compilation) is not looked at. After a minute without any
  trainer one worker is wanted.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

__all__ = ["Pace", "WorkersWanted"]

#: Share of waiting from which trainers are short of data; below it they practically never wait.
_SHORT = 0.02
#: From here on a few seconds show that trainers wait; a share closer to `_SHORT` may be chance, and is looked at longer.
_EVIDENT = 0.10
_EVIDENT_S = 5.0
_DOUBTFUL_S = 15.0
#: Batches that trainers read until a rate is taken for known, and how long that is waited for.
_FEW_BATCHES = 8
_LONGEST_S = 10.0

#: How long to wait after workers or trainers have come or gone: queues and windows fill.
_SETTLE_S = 1.5
#: Workers that may come or go before everything is looked at anew: one in twenty.
_SAME_WORKERS = 0.05

#: How busy workers may be on the way up and on the way down. The gap between them is what keeps a number from being left
#: and taken again.
_FULL = 0.95
_LOOSE = 0.85
#: Most that a step up multiplies the workers by.
_MOST_FACTOR = 8
#: Workers that are busy for this share while trainers wait may be the limit although the work does not say so: their
#: sockets are, for example. One step tries it.
_WORTH_A_TRY = 0.6

#: How long a step up is judged if its effect lies within the noise; after that it stays, and no other is tried.
_JUDGED_S = 30.0
#: Pause after a step that did not help, which doubles with each further one.
_PAUSE_S = 300.0
_LONGEST_PAUSE_S = 3600.0

#: Time of reading in which even the busiest moment must have left room before the first step down, and the time between
#: the first step and the next.
_CALM_S = 60.0
_NEXT_S = 15.0
#: A step down may cost this share of the rate.
_LOSS = 0.05

#: Time without any trainer after which one worker is wanted; less before there was any, as after a coordinator's
#: restart.
_GONE_S = 60.0
_NEVER_CAME_S = 10.0

#: Reading has paused after so long without a batch, if nobody waits: at least this, and several usual intervals.
_LEAST_GAP_S = 2.0
_GAPS = 5.0


@dataclass(frozen=True, slots=True)
class Pace:
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


@dataclass(frozen=True, slots=True)
class _Sample:
    over_s: float
    pace: Pace


@dataclass(frozen=True, slots=True)
class _Window:
    """Means over some seconds in which workers and trainers stayed the same."""

    workers: float
    busy: float
    #: Batches a second, and the standard error of that.
    rate: float
    error: float
    waited: float
    #: The part of the waiting in which workers were busy.
    owed: float

    @property
    def load(self) -> float:
        """Return how many workers would be busy if trainers did not wait for them; infinity if nothing else was done.

        That is worker-seconds a batch times the rate at which trainers would read.
        """
        return self.busy / (1 - self.owed) if self.owed < 1 else math.inf


@dataclass(slots=True)
class _Step:
    """A change of the number that is not judged yet."""

    before: int
    wanted: int
    #: Means before the change.
    base: _Window
    #: Since when the workers are there, on the clock of reading; None while they are not.
    since_s: float | None = None


def _mean(samples: Sequence[_Sample], value_of: Callable[[Pace], float]) -> float:
    return sum(value_of(sample.pace) * sample.over_s for sample in samples) / sum(sample.over_s for sample in samples)


def _window_of(samples: Sequence[_Sample]) -> _Window:
    over_s = sum(sample.over_s for sample in samples)
    rate = sum(sample.pace.read for sample in samples) / over_s
    # From the scatter of seconds, not of batches: trainers in step read in bursts.
    spread = sum((sample.pace.read - rate * sample.over_s) ** 2 for sample in samples)
    return _Window(
        workers=_mean(samples, lambda pace: pace.workers),
        busy=_mean(samples, lambda pace: pace.busy),
        rate=rate,
        error=math.sqrt(spread) / over_s,
        waited=_mean(samples, lambda pace: pace.waited),
        owed=_mean(samples, lambda pace: pace.waited * min(1.0, pace.busy / pace.workers)),
    )


class _Bar:
    """A number that is not crossed for a while, and longer each time that this had to be learned again."""

    def __init__(self) -> None:
        self.number = 0
        self._until_s = -math.inf
        self._pause_s = _PAUSE_S

    def stands(self, now_s: float) -> bool:
        return now_s < self._until_s

    def put(self, number: int, now_s: float) -> None:
        # One that was long gone begins anew.
        is_again = now_s < self._until_s + self._pause_s
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S) if is_again else _PAUSE_S
        self.number, self._until_s = number, now_s + self._pause_s


class WorkersWanted:
    """The rule with its memory; `look` is called several times a second or so, at any intervals."""

    def __init__(self) -> None:
        #: The number; None while nothing is known.
        self.wanted: int | None = None
        self._looked_s: float | None = None
        #: Since when no trainer is attached; None if one is.
        self._alone_s: float | None = None
        self._had_trainers = False
        #: Seconds in which trainers read.
        self._clock_s = 0.0
        #: What was seen since workers or trainers changed, and how much of that is still settling.
        self._samples: deque[_Sample] = deque()
        self._settling_s = _SETTLE_S
        self._workers = self._trainers = 0
        #: Time without a batch, and how long such times usually are.
        self._gap_s = self._usual_gap_s = 0.0
        #: The work of the last minute: (time of reading, load).
        self._loads: deque[tuple[float, float]] = deque()
        self._down_s = -math.inf
        #: How busy workers were when trainers began to wait.
        self._strain = 1.0
        self._step: _Step | None = None
        self._ceiling, self._floor = _Bar(), _Bar()

    def look(self, pace: Pace, now_s: float) -> int | None:
        """Take in what happened since the last look, and return how many workers are wanted now, at least 1.

        Return None as long as nothing is known: at first, and until trainers have read for some seconds.
        """
        over_s, self._looked_s = now_s - (now_s if self._looked_s is None else self._looked_s), now_s
        if self._has_readers(pace, now_s) and over_s > 0:
            self._take_in(pace, over_s)
            self._decide(now_s)
        return self.wanted

    # --- what is looked at ---

    def _has_readers(self, pace: Pace, now_s: float) -> bool:
        """Return whether trainers are attached; without any for long, want one worker and forget what was learned."""
        if pace.trainers:
            self._alone_s, self._had_trainers = None, True
            return True
        self._alone_s = now_s if self._alone_s is None else self._alone_s
        if now_s - self._alone_s >= (_GONE_S if self._had_trainers else _NEVER_CAME_S):
            alone_s = self._alone_s
            self.__init__()  # type: ignore[misc]
            self.wanted, self._alone_s, self._looked_s = 1, alone_s, now_s
        return False

    def _take_in(self, pace: Pace, over_s: float) -> None:
        self._clock_s += over_s
        if pace.trainers != self._trainers or abs(pace.workers - self._workers) > _SAME_WORKERS * self._workers:
            # A step is judged by the rate of the same trainers.
            if pace.trainers != self._trainers:
                self._step = None
            self._workers, self._trainers = pace.workers, pace.trainers
            self._settle()
        if self._has_paused(pace, over_s):
            self._clock_s -= over_s
            self._settle()
        elif self._settling_s > 0:
            self._settling_s -= over_s
        elif pace.workers:
            self._samples.append(_Sample(over_s, pace))
            while sum(sample.over_s for sample in self._samples) > _JUDGED_S + over_s:
                self._samples.popleft()

    def _settle(self) -> None:
        self._samples.clear()
        self._settling_s = _SETTLE_S

    def _has_paused(self, pace: Pace, over_s: float) -> bool:
        """Return whether trainers do something else than reading: no batch for long, and nobody waits."""
        if pace.read or pace.waited >= _SHORT:
            if self._gap_s:
                self._usual_gap_s += 0.3 * (self._gap_s - self._usual_gap_s)
            self._gap_s = 0.0
            return False
        self._gap_s += over_s
        return self._gap_s > max(_LEAST_GAP_S, _GAPS * self._usual_gap_s)

    def _last(self, over_s: float) -> list[_Sample]:
        """Return the samples of the last seconds; an empty list if there are not as many seconds."""
        found, left_s = [], over_s
        for sample in reversed(self._samples):
            if left_s <= 1e-9:
                break
            found.append(sample)
            left_s -= sample.over_s
        return found[::-1] if left_s <= 1e-9 else []

    def _waits(self, samples: Sequence[_Sample]) -> bool:
        """Return whether trainers wait, all the time: in either half of these samples."""
        half = len(samples) // 2
        halves = (samples[:half], samples[half:])
        return all(part and _mean(part, lambda pace: pace.waited) >= _SHORT for part in halves)

    def _is_known(self, samples: Sequence[_Sample]) -> bool:
        over_s = sum(sample.over_s for sample in samples)
        return over_s >= _LONGEST_S or sum(sample.pace.read for sample in samples) >= _FEW_BATCHES

    def _look_back(self) -> tuple[_Window, bool] | None:
        """Return the latest means, and whether trainers wait; None if too little is known for that."""
        for over_s in (_EVIDENT_S, _LONGEST_S, _DOUBTFUL_S):
            samples = self._last(over_s)
            if not samples:
                return None
            if self._is_known(samples):
                window = _window_of(samples)
                if window.waited < _SHORT or window.waited >= _EVIDENT or over_s == _DOUBTFUL_S:
                    return window, self._waits(samples)
        return None

    # --- decisions ---

    def _decide(self, now_s: float) -> None:
        found = self._look_back()
        if found is None:
            return
        window, waits = found
        self._note_load(window, now_s)
        if self.wanted is None:
            self._begin(window, waits=waits)
        elif self._step is not None and self._step.wanted > self._step.before:
            self._judge_up(self._step, window, now_s)
        elif self._step is not None:
            self._judge_down(self._step, window, now_s)
        elif waits and self._workers >= self.wanted:
            self._go_up(window, now_s)
        if self._step is None:
            self._go_down(window, now_s)

    def _note_load(self, window: _Window, now_s: float) -> None:
        # Waiting that more workers did not end is none that they could end.
        load = window.busy if self._ceiling.stands(now_s) else window.load
        self._loads.append((self._clock_s, load))
        while self._loads[0][0] < self._clock_s - _CALM_S:
            self._loads.popleft()

    def _begin(self, window: _Window, *, waits: bool) -> None:
        # Trainers that do not wait may not have begun in earnest: their first step is being compiled.
        self.wanted = self._needed(window) if waits else max(1, self._workers)

    def _needed(self, window: _Window) -> int:
        most = _MOST_FACTOR * max(1, self._workers)
        return max(1, min(most, math.ceil(min(window.load, most) / _FULL - 1e-9)))

    def _go_up(self, window: _Window, now_s: float) -> None:
        assert self.wanted is not None
        if self._ceiling.stands(now_s):
            return
        wanted, fullness = self._needed(window), window.busy / window.workers
        if wanted <= self._workers and fullness >= _WORTH_A_TRY:
            wanted = self._workers + max(1, self._workers // 4)
        if fullness >= _WORTH_A_TRY:
            self._strain = min(1.0, window.load / window.workers)
        if wanted > self.wanted:
            if wanted > self._workers:
                self._step = _Step(self._workers, wanted, window)
            self.wanted = wanted
            self._loads.clear()

    def _judge_up(self, step: _Step, window: _Window, now_s: float) -> None:
        """Keep a step up, take it back, or wait for more to judge it by."""
        if self._workers < step.wanted * (1 - _SAME_WORKERS):
            step.since_s = None
            return
        step.since_s = self._clock_s if step.since_s is None else step.since_s
        seen = _window_of(list(self._samples))
        base = step.base
        predicted = min(base.rate * window.workers / step.before, base.rate / max(1e-9, 1 - base.waited))
        half = base.rate + (predicted - base.rate) / 2
        doubt = 2 * math.hypot(seen.error, base.error)
        is_late = self._clock_s - step.since_s >= _JUDGED_S
        if window.waited < _SHORT or (predicted > base.rate and seen.rate - doubt >= half):
            self._step = None
        elif seen.rate + doubt < half or (is_late and not seen.rate):
            self._step = None
            worth = step.before * seen.rate / base.rate if base.rate else step.before
            self.wanted = max(step.before, min(step.wanted - 1, round(worth)))
            self._ceiling.put(self.wanted, now_s)
            self._loads.clear()
        elif is_late:
            self._step = None
            self._ceiling.put(step.wanted, now_s)

    def _go_down(self, window: _Window, now_s: float) -> None:
        assert self.wanted is not None
        is_calm = self._clock_s - self._loads[0][0] >= _CALM_S - 2 * _SETTLE_S
        if not is_calm or self._clock_s - self._down_s < _NEXT_S:
            return
        fullest = min(_LOOSE, _LOOSE * self._strain)
        target = max(1, math.ceil(max(load for _, load in self._loads) / fullest - 1e-9))
        if self._floor.stands(now_s):
            target = max(target, self._floor.number)
        if target < self.wanted:
            before = self.wanted
            self.wanted = max(target, before - max(1, before // 4))
            self._down_s = self._clock_s
            if self._workers <= before:
                self._step = _Step(before, self.wanted, window)

    def _judge_down(self, step: _Step, window: _Window, now_s: float) -> None:
        """Keep a step down, or take it back; it is kept at last if its workers stay."""
        if self._workers > step.wanted:
            self._step = None if self._clock_s - self._down_s >= _NEXT_S else step
            return
        base = step.base
        doubt = 2 * math.hypot(window.error, base.error)
        if window.rate + doubt < (1 - _LOSS) * base.rate and window.waited >= max(_SHORT, base.waited):
            self.wanted = step.before
            self._floor.put(step.before, now_s)
            self._loads.clear()
        self._step = None
