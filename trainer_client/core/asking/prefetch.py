"""How many batches a trainer asks for ahead: from a start up to a bound, more only for as long as that brings more.

Rules: pure. It grows if all of these hold over a look: consumers took all that was there, everything that may be
asked for was asked for, and workers could serve more than they did, by the pace that each has shown. So it stays where
building, a connection or the step is the limit. What it gained is then measured: growth that brought next to nothing is
taken back, and tried again only later and later. It shrinks by what was not needed, which is the least number of
batches that lay ready for a while, and never below its start.

This stands for playing the closed loop of `shared/stations`, which takes milliseconds, and the times of all trainers: a
trainer cannot spend that beside its steps, and has to adapt while the coordinator is away.
"""

from __future__ import annotations

import math

__all__ = ["Prefetch"]

#: A look takes at least this long, and until so many answers have come for each batch that is asked for ahead.
_LOOK_S = 1.0
_ANSWERS = 2

#: Factor of growth, and the part by which the rate has to grow for it to stay.
_GROWTH = 1.5
_GAIN = 0.04
#: Part of a look for which consumers have to have taken all; and the part of what workers could serve that counts as
#: all of it.
_DRY = 0.25
_ALL = 0.93
#: Pause after growth that brought nothing; it doubles up to the longest.
_PAUSE_S, _LONGEST_PAUSE_S = 10.0, 320.0

#: For how long the least number of ready batches is taken before it shrinks.
_CALM_S = 10.0


class Prefetch:
    """The number of batches to ask for ahead: `size`, from `start` to `most`, which is the start if it is less."""

    def __init__(self, start: int, most: int) -> None:
        self.size = start
        self._start, self._most = start, max(start, most)
        #: When this look began, None if none has, and how many batches had arrived by then.
        self._began_s: float | None = None
        self._began = 0
        #: How many have to have arrived before the next look begins: those asked for before the last change.
        self._former = start
        #: When the last turn was, and whether all was asked for then; how long consumers had taken all in this look.
        self._seen_s, self._was_full = 0.0, False
        self._dry_s = 0.0
        #: The size and the rate before the growth that is tried; None if none is.
        self._tried: tuple[int, float] | None = None
        self._rest_s, self._pause_s = 0.0, _PAUSE_S
        #: The least number of ready batches that were left since that time.
        self._least_left, self._calm_s = math.inf, 0.0

    def excuse(self) -> None:
        """Begin the look anew, because we stalled."""
        self._began_s = None

    def see(self, arrived: int, left: int, now_s: float, *, is_full: bool) -> bool:
        """Take in a turn; return whether a look is over, so that `decide` is due.

        `arrived` counts batches since the beginning; `left` is how many of the batches that lay ready at the end of the
        last turn no consumer has taken; `is_full` says that everything within `size` is asked for. If more was left
        than is needed, for ten seconds, shrink.
        """
        self._least_left = min(self._least_left, left)
        if now_s - self._calm_s >= _CALM_S:
            self._shrink(now_s)
        if self._began_s is None:
            if arrived >= self._former:
                self._began_s, self._began, self._dry_s = now_s, arrived, 0.0
            self._seen_s, self._was_full = now_s, is_full
            return False
        # Consumers tell that they took a batch, but not when. One that has taken all by now counts as waiting since the
        # last turn: one that is slower than the workers never takes all.
        if self._was_full and not left:
            self._dry_s += now_s - self._seen_s
        self._seen_s, self._was_full = now_s, is_full
        return now_s - self._began_s >= _LOOK_S and arrived - self._began >= _ANSWERS * self.size

    def decide(self, arrived: int, could_serve: float, now_s: float) -> None:
        """End a look: judge the growth that is tried, or grow if that should help; then begin the next one.

        `could_serve` is how many batches a second the workers could serve us. To be called when `see` returned True.
        """
        assert self._began_s is not None
        over_s = now_s - self._began_s
        rate, dry = (arrived - self._began) / over_s, self._dry_s / over_s
        self._began_s = None
        if self._tried is not None and rate < (1 + _GAIN) * self._tried[1]:
            self.size, _ = self._tried
            self._rest_s = now_s + self._pause_s
            self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
            self._tried = None
        elif self.size < self._most and now_s >= self._rest_s and dry > _DRY and rate < _ALL * could_serve:
            self._pause_s = _PAUSE_S if self._tried is not None else self._pause_s
            self._tried = (self.size, rate)
            self.size = min(self._most, math.ceil(_GROWTH * self.size))
        else:
            self._tried = None
        # What arrives first was asked for before the change.
        self._former = arrived + self.size

    def _shrink(self, now_s: float) -> None:
        """Give up half of what was always left, if that is more than half of all; begin counting anew."""
        if self._tried is None and 2 * self._least_left > self.size > self._start:
            self.size = max(self._start, self.size - int(self._least_left) // 2)
        self._least_left, self._calm_s = math.inf, now_s
