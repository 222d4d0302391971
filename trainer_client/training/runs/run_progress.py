"""The progress of a run, what ends it, and the two lines that it prints.

Rules: only one rank prints. An error ends a run without a line, because that is no end in good order. It must not know
feeds or Keras; the clock is passed in.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from trainer_client.training.runs.printed_lines import finished_line, starting_line
from trainer_client.training.runs.until import AgreedTime, RunTotals

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainer_client.training.runs.until import RunLimits, Until

__all__ = ["RunProgress"]


class RunProgress:
    """The progress of a run from `begin` to `finish`; a run may begin again."""

    def __init__(
        self,
        until: Until,
        *,
        prints: bool,
        agree: Callable[[float, RunTotals], float] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        #: Why the run is over; empty while it goes on.
        self.reason = ""
        self._until = until
        self._prints = prints
        self._clock = clock
        #: The totals where the run began, and those so far.
        self._there = self._totals = RunTotals()
        self._limits: RunLimits = until.from_there(self._there)
        self._began_s = clock()
        self._agreed_time: AgreedTime | None = None
        if agree is not None and until.max_time_s is not None:
            self._agreed_time = AgreedTime(until.max_time_s, lambda spent_s: agree(spent_s, self._totals))

    @property
    def steps(self) -> int:
        """Number of steps in all; it is asked for in every step, and cheaper than the totals."""
        # Measured on steps of 5 ms: with totals that are copied in each step, the loop cost 1.8 to 3.5 % of them, and
        # 1.2 to 1.9 % without.
        return self._totals.steps

    @property
    def totals(self) -> RunTotals:
        """Totals of the run since it began from nothing, restarts and the seconds up to now included."""
        return replace(self._totals, seconds=self._there.seconds + self._spent_s())

    def _spent_s(self) -> float:
        return self._clock() - self._began_s

    def begin(self, what: str, there: RunTotals, *, past: str | None = None) -> None:
        """Begin or continue the run with these totals; print so on the rank that prints.

        A reason to end from before is forgotten; if `past` is given, only that one, and another ends the run at once.
        It is over at once as well if a limit is reached or passed already. SettingsError of `from_there` passes
        through, and OverflowError, on the rank that prints, for an infinite limit of time.
        """
        self._began_s = self._clock()
        if past is None or self.reason == past:
            self.reason = ""
        self._there = self._totals = there
        self._limits = self._until.from_there(there)
        if self._agreed_time is not None:
            self._agreed_time.begin()
        if self._prints:
            line = f"{what} from epoch {there.epochs}, step {there.steps}, until {self._limits}"
            print(starting_line(line), flush=True)
        # `passed` comes first: it says that nothing was trained, where `_look` would say that a limit is reached.
        self.stop(self._limits.passed(there))
        self._look()

    def count(self, *, epochs: int, steps: int = 0, samples: int = 0) -> bool:
        """Count steps that are done, and set the epochs in all; return whether the run is over.

        Ranks that agree on the time may wait for each other here; errors of that are passed on.
        """
        done = self._totals
        self._totals = RunTotals(
            epochs=epochs, steps=done.steps + steps, samples=done.samples + samples, seconds=done.seconds
        )
        self._look()
        return bool(self.reason)

    def _look(self) -> None:
        self.stop(self._limits.reached(self._totals, self._common_s()))

    def _common_s(self) -> float:
        """Return how many seconds the run has gone on since it was started, the same for all ranks that agree on it.

        Errors of agreeing are passed on.
        """
        # Clocks of ranks in step differ: by its own one, a rank would end while others wait for it in their next step.
        spent_s, steps = self._spent_s(), self._totals.steps - self._there.steps
        return spent_s if self._agreed_time is None else self._agreed_time.after(steps, spent_s)

    def stop(self, why: str) -> None:
        """End the run for this reason, unless there is one already; an empty reason ends nothing."""
        self.reason = self.reason or why

    def go_back(self, *, epochs: int, steps: int) -> None:
        """Go back to these totals, and go on even if there was a reason to end: the rest is to be done again.

        Steps never go forward by this. The run is over again if a limit is reached still; errors of agreeing on the
        time are passed on.
        """
        # Of a worker whose servers lost their shares: a limit that was reached may not be any more.
        self.reason = ""
        self._totals = replace(self._totals, epochs=epochs, steps=min(steps, self._totals.steps))
        self._look()

    def left(self, epoch: float) -> tuple[float | None, float | None, float | None]:
        """Return the steps, epochs and seconds until each limit, from this place in epochs; None: no limit.

        A limit that is passed gives a number below 0.
        """
        pairs = (
            (self._limits.steps, self._totals.steps),
            (self._limits.epochs, epoch),
            (self._limits.max_time_s, self._spent_s()),
        )
        steps, epochs, seconds = (None if limit is None else limit - done for limit, done in pairs)
        return steps, epochs, seconds

    def finish(self, *, is_share: bool = False) -> None:
        """Print totals, time and reason of the run's end, on the rank that prints.

        With `is_share` the line says that other processes trained on samples as well.
        """
        totals = self.totals
        if self._prints:
            print(finished_line(totals.words(is_share=is_share), totals.seconds, self.reason), flush=True)
