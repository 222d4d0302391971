"""What a run is to do, and what it has done: limits, settings of a loop, totals, means, and the time it has gone on.

Rules: pure. A number is absolute, so a run that was restarted ends where an unbroken one would; `"+10"` counts from
where the checkpoint is. Whichever limit comes first ends the run. Totals and means are part of a checkpoint, so a run
that was resumed in the middle of an epoch has the same.
"""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from shared.errors import SettingsError
from trainer_client.session.call_checks import fields_of_state, refused, seconds, whole
from trainer_client.training.runs.printed_lines import spell_time

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

__all__ = ["AgreedTime", "LoopSettings", "NotedMeans", "RunLimits", "RunTotals", "Until"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTotals:
    """What a run has done since it began from nothing, restarts included."""

    epochs: int = 0
    steps: int = 0
    samples: int = 0
    seconds: float = 0.0

    def state(self) -> dict[str, Any]:
        """Return epochs, steps, samples and seconds as plain values, for a checkpoint."""
        return asdict(self)

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> RunTotals:
        """Return the totals from what `state` returned; what an earlier release did not save is 0.

        Raise SettingsError if it is something else.
        """
        state = fields_of_state(state, (), "restore")
        counts = {name: whole(state[name], name, "restore") for name in ("epochs", "steps", "samples") if name in state}
        return cls(**counts, seconds=seconds(state.get("seconds", 0.0), "seconds", "restore", may_be_zero=True))

    @classmethod
    def of_checkpoint(cls, record: Mapping[str, Any]) -> RunTotals:
        """Return the totals in a checkpoint; what an earlier release, or a run without a target, lacks is 0.

        Raise SettingsError if they are no numbers.
        """
        return cls.of({"steps": record.get("step", 0)} | record.get("run", {}) | {"epochs": record.get("epoch", 0)})

    def words(self, *, is_share: bool = False) -> list[str]:
        """Return the totals in words, for the line that says how a run ended.

        With `is_share` the words name the samples as those of this process; steps are those of all processes then.
        """
        return [f"{self.epochs} epochs", f"{self.steps} steps", f"{self.samples} samples{' here' * is_share}"]


class NotedMeans:
    """Means over the batches of an epoch, each batch weighted by its rows: sums so far, with the rows in each."""

    def __init__(self) -> None:
        #: The largest number of rows in any of them.
        self.rows = 0
        #: By name, the sum over rows and the number of rows.
        self._sums: dict[str, tuple[float, int]] = {}

    def add(self, means: Mapping[str, float], rows: int) -> None:
        """Add the means of a batch, weighted by its rows; without rows, only note names. Errors of `float` pass."""
        for name, mean in means.items():
            total, over = self._sums.get(name, (0.0, 0))
            # Not `rows * mean` without rows: zero times NaN would make the whole sum NaN.
            self._sums[name] = (total + rows * float(mean) if rows else total, over + rows)
            self.rows = max(self.rows, over + rows)

    def means(self) -> dict[str, float]:
        """Return the means by name; a value without rows is left out."""
        return {name: total / rows for name, (total, rows) in self._sums.items() if rows}

    def state(self) -> dict[str, Any]:
        """Return the sums so far as plain values: by name, the sum over rows and the number of rows."""
        return {name: [total, rows] for name, (total, rows) in self._sums.items()}

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> NotedMeans:
        """Return the means so far, made again from what `state` returned; raise SettingsError for anything else."""
        noted = cls()
        try:
            noted._sums = {name: (float(total), int(rows)) for name, (total, rows) in state.items()}
        except (AttributeError, TypeError, ValueError):
            raise refused("noted sums, each with its number of rows, by name", state, "restore") from None
        noted.rows = max((rows for _, rows in noted._sums.values()), default=0)
        return noted


@dataclass(frozen=True, slots=True, kw_only=True)
class Until:
    """Where a run ends: at the limit that is reached first. A limit that is left out does not count.

    Args:
        epochs: The number of epochs in all since the model began from nothing, or `"+10"`: ten more than the checkpoint
            has.
        steps: The number of steps, in the same way.
        max_time_s: The seconds for which the run may go on since it was started.

    Raises:
        SettingsError: No limit is given, or one makes no sense.

    Example:
        >>> trainer_client.Until(epochs=75, max_time_s=86400.0)
        Until(epochs=75, steps=None, max_time_s=86400.0)
        >>> trainer_client.Until()
        Traceback (most recent call last):
        trainer_client.SettingsError: Until: expected epochs, steps or max_time_s, got none of them. ...
    """

    epochs: int | str | None = None
    steps: int | str | None = None
    max_time_s: float | None = None

    def __post_init__(self) -> None:
        if self.epochs is None and self.steps is None and self.max_time_s is None:
            raise _nonsense("epochs, steps or max_time_s", "none of them", 'Write Until(epochs=75), or epochs="+10".')
        if self.max_time_s is not None and not 0 < self.max_time_s < math.inf:
            raise _nonsense("max_time_s above 0 and finite", f"{self.max_time_s}", "Write a number of seconds.")
        self.from_there(RunTotals())

    def from_there(self, there: RunTotals) -> RunLimits:
        """Return the limits in absolute numbers, for a run that continues from a checkpoint.

        SettingsError of `_absolute` passes through.

        Args:
            there: The checkpoint's totals.

        Returns:
            The limits, in which `"+10"` is ten more than the totals.
        """
        return RunLimits(
            epochs=_absolute("epochs", self.epochs, there.epochs),
            steps=_absolute("steps", self.steps, there.steps),
            max_time_s=self.max_time_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLimits:
    """Where a run ends, in absolute numbers."""

    epochs: int | None
    steps: int | None
    max_time_s: float | None

    def reached(self, totals: RunTotals, since_start_s: float) -> str:
        """Return the limit that ends the run now, in words; empty if it goes on."""
        if self.epochs is not None and totals.epochs >= self.epochs:
            return f"{self.epochs} epochs are reached"
        if self.steps is not None and totals.steps >= self.steps:
            return f"{self.steps} steps are reached"
        if self.max_time_s is not None and since_start_s >= self.max_time_s:
            return f"{spell_time(self.max_time_s)} are over"
        return ""

    def passed(self, there: RunTotals) -> str:
        """Return a phrase if a checkpoint is beyond a limit already, so that nothing is trained; else empty."""
        for limit, done, unit in ((self.epochs, there.epochs, "epochs"), (self.steps, there.steps, "steps")):
            if limit is not None and done > limit:
                return f"nothing was left to train, as the checkpoint has {done} {unit} and {limit} were asked for"
        return ""

    def __str__(self) -> str:
        limits = {
            f"{self.epochs} epochs": self.epochs,
            f"{self.steps} steps": self.steps,
            f"for {spell_time(self.max_time_s or 0)}": self.max_time_s,
        }
        return " or ".join(words for words, limit in limits.items() if limit is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopSettings:
    """Settings of a training loop: how far to train, when to save, and what to report."""

    until: Until
    checkpoints: Path
    #: How many checkpoints stay.
    keep: int = 3
    #: When to save within an epoch; None: not by steps, or not by time.
    save_every_steps: int | None = None
    save_every_s: float | None = 600.0
    #: Steps from one progress line to the next.
    tell_every: int = 100
    #: How often to retry a batch whose gradients are not finite.
    retries: int = 10
    #: Whether each replica's loss and gradients are compiled; what replicas exchange and apply is not.
    xla: bool = False
    #: The folder for summaries; None: write none.
    summaries: Path | None = None
    #: Gives the model its first values if there is no checkpoint, as `InitialValues` does; None: it begins as it was
    #: made.
    initial: Callable[..., object] | None = None


class AgreedTime:
    """The time that a run of several ranks in lockstep has gone on; `agree` waits for all ranks' times, for their mean.

    All ranks call it at the same steps, and end at the same one.
    """

    def __init__(self, limit_s: float, agree: Callable[[float], float]) -> None:
        self._limit_s = limit_s
        self._agree = agree
        self.begin()

    def begin(self) -> None:
        """Start from zero, as the run begins."""
        self._agreed_s = 0.0
        self._next_step = 1

    def after(self, steps: int, spent_s: float) -> float:
        """Return the seconds that all ranks agree on after `steps` steps; this rank has measured `spent_s`.

        Only at some steps are the ranks asked, and errors of that passed on; at others it is the last answer, 0 at
        first.
        """
        if steps >= self._next_step:
            self._agreed_s = self._agree(spent_s)
            # Clocks and starts differ, so all go by the mean, and derive the next question from it: halfway to the
            # limit at the pace so far. A run of hours asks some dozens of times, most of them near its end.
            steps_left = steps * (self._limit_s - self._agreed_s) / max(self._agreed_s, 1e-9)
            self._next_step = steps + max(1, int(steps_left / 2))
        return self._agreed_s


def _absolute(name: str, limit: int | str | None, there: int) -> int | None:
    """Return the absolute number: a whole number of at least 0, also as a text, stands for itself, "+10" for ten more.

    None stays None. Raise SettingsError for anything else, such as a negative number or a fraction.
    """
    if limit is None:
        return None
    digits = re.fullmatch(r"(\+?)([0-9]+)", str(limit))
    if digits is None or not isinstance(limit, int | str):
        raise _nonsense(
            f'a number of {name}, or "+" and how many more', repr(limit), f'Write {name}=75 or {name}="+10".'
        )
    return int(digits[2]) + (there if digits[1] else 0)


def _nonsense(expected: str, got: str, remedy: str) -> SettingsError:
    return SettingsError(expected=expected, got=got, where="Until", remedy=remedy)
