"""The limits of a run, by epochs, steps or time, and the totals of what it has done.

Rules: pure. A number is absolute, so a run that was restarted ends where an unbroken one would; `"+10"` counts from
where the checkpoint is. Whichever limit comes first ends the run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shared.errors import SettingsError
from trainer_client.training.runs.lines import spell_time

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["RunLimits", "RunTotals", "Until"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTotals:
    """What a run has done since it began from nothing, restarts included."""

    epochs: int = 0
    steps: int = 0
    samples: int = 0
    seconds: float = 0.0

    def state(self) -> dict[str, Any]:
        """Return the totals as plain values, for a checkpoint."""
        return {"epochs": self.epochs, "steps": self.steps, "samples": self.samples, "seconds": self.seconds}

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> RunTotals:
        """Return the totals from what `state` returned; what an earlier release did not save is 0."""
        return cls(**{name: state[name] for name in ("epochs", "steps", "samples", "seconds") if name in state})

    def words(self) -> list[str]:
        """Return the totals in words, for the line that says how a run ended."""
        return [f"{self.epochs} epochs", f"{self.steps} steps", f"{self.samples} samples"]


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
        if self.max_time_s is not None and not self.max_time_s > 0:
            raise _nonsense("max_time_s above 0", f"{self.max_time_s}", "Write a number of seconds.")
        self.from_there(RunTotals())

    def from_there(self, there: RunTotals) -> RunLimits:
        """Return the limits in absolute numbers, for a run that continues from a checkpoint.

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
        limits = ((self.epochs, there.epochs, "epochs"), (self.steps, there.steps, "steps"))
        for limit, done, what in limits:
            if limit is not None and done > limit:
                return f"nothing was left to train, as the checkpoint has {done} {what} and {limit} were asked for"
        return ""

    def __str__(self) -> str:
        words = [f"{self.epochs} epochs" if self.epochs is not None else ""]
        words += [f"{self.steps} steps" if self.steps is not None else ""]
        words += [f"for {spell_time(self.max_time_s)}" if self.max_time_s is not None else ""]
        return " or ".join(filter(None, words))


def _absolute(name: str, limit: int | str | None, there: int) -> int | None:
    """Return the absolute number: a number stands for itself, `"+10"` for ten more than there are.

    None stays None. Raise SettingsError for anything else.
    """
    if limit is None:
        return None
    text = str(limit)
    number = text.removeprefix("+")
    if isinstance(limit, bool) or not isinstance(limit, int | str) or not (number.isascii() and number.isdecimal()):
        raise _nonsense(
            f'a number of {name}, or "+" and how many more', repr(limit), f'Write {name}=75 or {name}="+10".'
        )
    return there + int(number) if text != number else int(number)


def _nonsense(expected: str, got: str, remedy: str) -> SettingsError:
    return SettingsError(expected=expected, got=got, where="Until", remedy=remedy)
