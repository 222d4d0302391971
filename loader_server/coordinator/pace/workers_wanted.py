"""How many workers a job could use: the number behind `workers_wanted`.

Rules: pure. The number that is needed follows from work: worker-seconds a batch, times the rate at which trainers read,
times what that rate would grow by without waiting for workers. How much of the waiting is for workers says the model of
stations (`shared.stations`), by what more of them would gain: trainers may wait for a network, or for their own window,
and workers that wait for slow reads are busy all the same. While that is not known, waiting counts as far as workers
were busy at the same time.

- Up only while trainers wait, in both halves of the time that is looked at; at once as far as the work says, but at
  most eightfold. The first number is what the work says, up or down, once trainers read steadily.
- A step up is judged once workers of it are there and have settled. If trainers still wait, and read less than half of
  what was predicted more, it is taken back to what the rate that it brought is worth, and none is tried for five
  minutes; after each further failure for twice as long, for up to an hour.
- Down slowly: once the busiest moment of the last minute of reading would have left room, a quarter of the workers,
  15 s later half of them, then all that it would have left; at least one each time, and each step only if the one
  before cost nothing. How full workers may be is learned: trainers that waited once with workers that were 80 % busy
  will wait again. A step down that cost rate is taken back and not tried again for as long.
- Time in which nobody reads (a validation, a checkpoint, a compilation) is not looked at. After a minute without any
  trainer one worker is wanted.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from loader_server.coordinator.pace.pace_record import PaceRecord

if TYPE_CHECKING:
    from loader_server.coordinator.pace.pace_record import JobPace, PaceMeans

__all__ = ["WorkersWanted"]

#: Share of waiting from which trainers are short of data; below it they practically never wait.
_SHORT = 0.02
#: From here on a few seconds show that trainers wait; a share closer to `_SHORT` may be chance, and is looked at for
#: longer.
_EVIDENT = 0.20
_EVIDENT_S = 5.0
_DOUBTFUL_S = 15.0
#: Batches that trainers read until a rate is taken for known, and how long that is waited for.
_FEW_BATCHES = 20
_LONGEST_S = 10.0
#: Batches without which a step is not called a failure.
_MANY_BATCHES = 100

#: How long to wait after workers or trainers have come or gone: queues and windows fill.
_SETTLE_S = 1.5
#: Workers that may come or go before everything is looked at anew: one in twenty.
_SAME_WORKERS = 0.05

#: How busy workers may be on the way up and on the way down. The gap between them keeps a number from being left and
#: taken again.
_FULL = 0.95
_LOOSE = 0.85
#: Workers that are busy for less than this share are idle, whatever trainers wait for.
_IDLE = 0.5
#: Most that a step up multiplies the workers by.
_MOST_FACTOR = 8
#: Workers that are busy for this share while trainers wait may be the limit although the work does not say so: their
#: sockets are, for example. One step tries it.
_WORTH_A_TRY = 0.6

#: What more workers would gain counts as known if it was for this share of the time.
_KNOWN = 0.5

#: How long a step up is judged at most. One that promised less than chance brings or takes stays, and no other is tried
#: for as long as after a failure.
_JUDGED_S = 30.0
#: Pause after a step that did not help, which doubles with each further one.
_PAUSE_S = 300.0
_LONGEST_PAUSE_S = 3600.0

#: Time of reading in which even the busiest moment must have left room before the first step down, and the time between
#: the first step and the next.
_CALM_S = 60.0
_NEXT_S = 15.0
#: Shares of the workers that the steps of one way down may take. The first are small because what they cost is not
#: known yet; the last goes all the way, so that those who follow the number change their workers three times, not a
#: dozen.
_DOWN_SHARES = (0.25, 0.5, 1.0)
#: Trainers that wait again within this time after a step down wait because of it.
_REGRET_S = 120.0
#: A step down may cost this share of the rate.
_LOSS = 0.05

#: Time without any trainer after which one worker is wanted; less before there was any, as after a coordinator's
#: restart.
_GONE_S = 60.0
#: Time of waiting trainers without any number after which one worker is wanted.
_UNKNOWN_S = 60.0
_NEVER_CAME_S = 10.0

#: Reading has paused after so long without a batch, if nobody waits: at least this, and several usual intervals.
_LEAST_GAP_S = 2.0
_GAPS = 5.0


@dataclass(slots=True)
class _UnjudgedStep:
    """A change of the number that is not judged yet."""

    before: int
    wanted: int
    #: Means before the change.
    base: PaceMeans
    #: Since when the workers are there, on the clock of reading; None while they are not.
    since_s: float | None = None


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
        #: Whether one worker is wanted because nobody was there for long.
        self._is_forgotten = False
        #: Seconds in which trainers read.
        self._clock_s = 0.0
        #: When trainers came, on this clock.
        self._came_s = 0.0
        #: What was seen since workers or trainers changed, and how much of that is still settling.
        self._record = PaceRecord()
        self._settling_s = _SETTLE_S
        self._workers = self._trainers = 0
        #: Time without a batch, and how long such times usually are.
        self._gap_s = self._usual_gap_s = 0.0
        #: The busiest moments of the last minute, (time of reading, load), each busier than all later ones; and since
        #: when they are noted.
        self._loads: deque[tuple[float, float]] = deque()
        self._noted_s = 0.0
        #: When the number last went down, and how many steps this way down has taken.
        self._down_s = -math.inf
        self._downs = 0
        #: How busy workers were when trainers began to wait.
        self._strain = 1.0
        self._step: _UnjudgedStep | None = None
        self._ceiling, self._floor = _Bar(), _Bar()

    def look(self, pace: JobPace, now_s: float) -> int | None:
        """Take in what happened since the last look, and return how many workers are wanted now, at least 1.

        Return 1 once no trainer was there for long, and None while nothing is known: for the first seconds, and until
        trainers, the first or those that come after so long, have read for some seconds. That is a minute at most while
        they wait: then 1 is returned, and grows as soon as workers stay.
        """
        over_s, self._looked_s = now_s - (now_s if self._looked_s is None else self._looked_s), now_s
        if self._has_readers(pace, now_s) and over_s > 0:
            self._take_in(pace, over_s)
            self._decide(now_s)
            self._give_up_waiting()
        return self.wanted

    def _give_up_waiting(self) -> None:
        """Want one worker if trainers have waited for a minute and workers never stayed long enough to be looked at."""
        # Workers that crash at once: one of them shows as much as many, and others have work for the rest.
        if self.wanted is None and self._clock_s - self._came_s >= _UNKNOWN_S:
            self.wanted = 1

    # --- what is looked at ---

    def _has_readers(self, pace: JobPace, now_s: float) -> bool:
        """Return whether trainers are attached; without any for long, want one worker and forget what was learned.

        When trainers come after that, the number is not known again.
        """
        if pace.trainers:
            # What those who come now need is not known yet.
            self.wanted = None if self._is_forgotten else self.wanted
            if self._alone_s is not None or not self._had_trainers:
                self._came_s = self._clock_s
            self._alone_s, self._had_trainers, self._is_forgotten = None, True, False
            return True
        self._alone_s = now_s if self._alone_s is None else self._alone_s
        if now_s - self._alone_s >= (_GONE_S if self._had_trainers else _NEVER_CAME_S):
            self._settle()
            self._note_anew()
            self.wanted, self._is_forgotten = 1, True
            self._strain, self._step = 1.0, None
            self._ceiling, self._floor = _Bar(), _Bar()
        return False

    def _take_in(self, pace: JobPace, over_s: float) -> None:
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
            self._record.add(pace, over_s)

    def _settle(self) -> None:
        self._record.clear()
        self._settling_s = _SETTLE_S

    def _has_paused(self, pace: JobPace, over_s: float) -> bool:
        """Return whether trainers do something else than reading: no batch for long, and nobody waits."""
        if pace.read or pace.waited >= _SHORT:
            if self._gap_s:
                self._usual_gap_s += 0.3 * (self._gap_s - self._usual_gap_s)
            self._gap_s = 0.0
            return False
        self._gap_s += over_s
        return self._gap_s > max(_LEAST_GAP_S, _GAPS * self._usual_gap_s)

    def _waits(self, over_s: float) -> bool:
        """Return whether trainers waited all the time in these last seconds, without a trend."""
        # Trainers that begin to wait have first read what was in stock: their rate is no measure yet.
        halves = (self._record.waited(over_s, over_s / 2), self._record.waited(over_s / 2, 0.0))
        return min(halves) >= max(_SHORT, max(halves) / 2)

    def _look_back(self) -> tuple[PaceMeans, bool] | None:
        """Return the latest means, and whether trainers wait; None if too little was seen."""
        for over_s in (_EVIDENT_S, _LONGEST_S, _DOUBTFUL_S):
            means = self._record.means(over_s)
            if means is None:
                return None
            # Idle workers say enough by themselves, however few batches were read.
            is_known = means.read >= _FEW_BATCHES or over_s >= _LONGEST_S or means.fullness < _IDLE
            if is_known and (means.waited < _SHORT or means.waited >= _EVIDENT or over_s >= _DOUBTFUL_S):
                return means, self._waits(over_s)
        return None

    # --- decisions ---

    def _decide(self, now_s: float) -> None:
        found = self._look_back()
        if found is None:
            return
        means, waits = found
        self._note_load(means, now_s)
        if self.wanted is None:
            self._begin(means, waits=waits)
        elif self._step is not None and self._step.wanted > self._step.before:
            self._judge_up(self._step, means, now_s)
        elif self._step is not None:
            self._judge_down(self._step, means, now_s)
        elif waits and self._workers >= self.wanted:
            self._go_up(means, now_s)
        elif self._workers > self.wanted:
            self._keep(means)
        if self._step is None:
            self._go_down(means, now_s)

    def _note_load(self, means: PaceMeans, now_s: float) -> None:
        # Waiting that more workers did not end is none that they could end.
        load = means.busy if self._ceiling.stands(now_s) else means.load
        while self._loads and self._loads[-1][1] <= load:
            self._loads.pop()
        self._loads.append((self._clock_s, load))
        while self._loads[0][0] < self._clock_s - _CALM_S:
            self._loads.popleft()

    def _note_anew(self) -> None:
        self._loads.clear()
        self._noted_s = self._clock_s

    def _begin(self, means: PaceMeans, *, waits: bool) -> None:
        if waits:
            self.wanted = self._needed(means)
        elif means.read >= _FEW_BATCHES:
            self.wanted = min(self._workers, self._enough(means.load))
        else:
            # Trainers that read this little may not have begun in earnest: their first step is being compiled.
            self.wanted = self._workers
        if self.wanted < self._workers:
            self._down_s = self._clock_s
        if self.wanted != self._workers:
            self._step = _UnjudgedStep(self._workers, self.wanted, means)

    def _enough(self, load: float) -> int:
        """Return how many workers have room to spare at this load."""
        return max(1, math.ceil(load / (_LOOSE * self._strain) - 1e-9))

    def _needed(self, means: PaceMeans) -> int:
        # Waiting that may be chance is worth a small step, which the next look corrects.
        is_evident = means.waited >= _EVIDENT
        most = _MOST_FACTOR * max(1, self._workers) if is_evident else self._workers + max(1, self._workers // 10)
        load = min(means.load, most)
        # First as many as the work itself needs: many jobs need no more, and the next look shows which do.
        needed = math.ceil(load * (1 - _SHORT / 2) if load > self._workers else load / _FULL)
        return max(1, min(most, needed))

    def _go_up(self, means: PaceMeans, now_s: float) -> None:
        assert self.wanted is not None
        if self._ceiling.stands(now_s):
            return
        wanted = self._needed(means)
        # Only while nobody knows what more workers would gain: a try costs another job its workers for a while.
        if means.fullness >= _WORTH_A_TRY and means.known < _KNOWN:
            self._strain = min(1.0, means.load / means.workers)
            if wanted <= self._workers:
                wanted = self._workers + max(1, self._workers // 4)
        if wanted > self.wanted:
            if self._clock_s - self._down_s < _REGRET_S:
                self._floor.put(wanted, now_s)
            if wanted > self._workers:
                # The later half alone: before that, trainers may have read what was in stock.
                self._step = _UnjudgedStep(self._workers, wanted, self._record.means(means.over_s / 2) or means)
            self.wanted = wanted
            self._note_anew()

    def _keep(self, means: PaceMeans) -> None:
        """Want workers that nobody asked for, if they are there and have work: without them trainers would wait."""
        assert self.wanted is not None
        if means.load * (1 - _SHORT / 2) > self.wanted:
            self.wanted = min(self._workers, math.ceil(means.load / _FULL))
            self._note_anew()

    def _judge_up(self, step: _UnjudgedStep, means: PaceMeans, now_s: float) -> None:
        """Keep a step up, take it back, or wait for more to judge it by.

        It is kept once trainers do not wait any more. Until then, while only some of its workers are there, it can fail
        but not succeed, and without any of them it is not judged.
        """
        if means.waited < _SHORT:
            self._step = None
            return
        if self._workers <= step.before:
            step.since_s = None
            return
        step.since_s = self._clock_s if step.since_s is None else step.since_s
        seen = self._record.means(min(_JUDGED_S, self._record.over_s)) or means
        base = step.base
        predicted = min(base.rate * means.workers / step.before, base.rate / max(1e-9, 1 - base.waited))
        half = base.rate + (predicted - base.rate) / 2
        error = math.hypot(seen.error, base.error)
        is_late = self._clock_s - step.since_s >= _JUDGED_S
        is_all_there = self._workers >= step.wanted * (1 - _SAME_WORKERS)
        has_failed_early = seen.rate + 3 * error < half and seen.read >= _MANY_BATCHES
        if predicted > base.rate and seen.rate - (0 if is_late else error) >= half:
            self._step = None if is_all_there else step
        elif has_failed_early or (is_late and (half - base.rate >= error or not seen.rate)):
            self._take_back(step, seen, now_s)
        elif is_late and is_all_there:
            # What it promised is less than chance.
            self._step = None
            self._ceiling.put(step.wanted, now_s)

    def _take_back(self, step: _UnjudgedStep, seen: PaceMeans, now_s: float) -> None:
        """Take a step up back to what the rate that it brought is worth, and try none for a while."""
        worth = step.before * seen.rate / step.base.rate if step.base.rate else step.before
        self._step = None
        self.wanted = max(step.before, min(step.wanted - 1, round(worth)))
        self._ceiling.put(self.wanted, now_s)
        self._note_anew()

    def _go_down(self, means: PaceMeans, now_s: float) -> None:
        assert self.wanted is not None
        if not self._loads or self._clock_s < max(self._noted_s + _CALM_S, self._down_s + _NEXT_S):
            return
        target = self._enough(self._loads[0][1])
        if self._floor.stands(now_s):
            target = max(target, self._floor.number)
        if target < self.wanted:
            before = self.wanted
            # A way up in between asks for a calm minute of its own, after which this is a new way down.
            self._downs = self._downs + 1 if self._clock_s - self._down_s < _CALM_S else 1
            share = _DOWN_SHARES[min(self._downs, len(_DOWN_SHARES)) - 1]
            self.wanted = max(target, before - max(1, int(share * before)))
            self._down_s = self._clock_s
            if self._workers <= before:
                self._step = _UnjudgedStep(before, self.wanted, means)

    def _judge_down(self, step: _UnjudgedStep, means: PaceMeans, now_s: float) -> None:
        """Keep a step down, take it back, or wait for more to judge it by; it is kept at last if its workers stay."""
        if self._workers > step.wanted:
            self._step = None if self._clock_s - self._down_s >= _NEXT_S else step
            return
        base = step.base
        seen = self._record.means(min(_JUDGED_S, self._record.over_s)) or means
        if seen.read < _MANY_BATCHES and seen.over_s < _LONGEST_S:
            return
        # By the number of batches, too: few of them may come in any second, whatever the workers do.
        chance = math.hypot(math.sqrt(seen.read) / seen.over_s, math.sqrt(base.read) / base.over_s)
        doubt = 3 * max(chance, math.hypot(seen.error, base.error))
        if seen.rate + doubt < (1 - _LOSS) * base.rate and seen.waited >= max(_SHORT, base.waited):
            self.wanted = step.before
            self._floor.put(step.before, now_s)
            self._note_anew()
        self._step = None
