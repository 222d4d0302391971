"""Rules of early stopping, which look at the losses of all evaluations so far.

Rules: pure. A rule is a function of the history alone, so a run takes the same decisions, restarted or not; the
history is the whole state. Lower is better. NaN is worse than every number.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from shared.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["LevelledOff", "NoProgress", "StopRule", "Worsening", "stopping_rule"]


class StopRule(Protocol):
    """A rule over the losses of all evaluations, the latest one last."""

    def holds(self, losses: Sequence[float]) -> bool:
        """Return whether to stop now, after the last of these losses."""


@dataclass(frozen=True, slots=True)
class NoProgress:
    """A rule that stops after several evaluations in a row that were not better than the best before them.

    Args:
        evaluations: How many in a row.
        min_change: By how much an evaluation has to be better.

    Raises:
        SettingsError: A number is too small.

    Example:
        >>> rule = trainer_client.NoProgress(2)
        >>> rule.holds([3.0, 1.0, 1.0]), rule.holds([3.0, 1.0, 1.0, 2.0])
        (False, True)
    """

    evaluations: int = 3
    min_change: float = 0.0

    def __post_init__(self) -> None:
        _check("NoProgress", "evaluations", self.evaluations, 1)
        _check("NoProgress", "min_change", self.min_change, 0)

    def holds(self, losses: Sequence[float]) -> bool:
        """Return whether to stop now.

        Args:
            losses: The losses of all evaluations, the latest one last; lower is better.

        Returns:
            True if none of the last `evaluations` losses was below the best by more than `min_change`; the best begins
            as infinity, and only such a loss takes its place.
        """
        best, since = math.inf, 0
        for loss in losses:
            best, since = (loss, 0) if loss < best - self.min_change else (best, since + 1)
        return since >= self.evaluations


@dataclass(frozen=True, slots=True)
class Worsening:
    """A rule that stops once the latest of the last evaluations is worse than all the others.

    Args:
        last: How many evaluations to look at.

    Raises:
        SettingsError: `last` is below 2.

    Example:
        >>> trainer_client.Worsening(3).holds([1.0, 2.0, 3.0])
        True
    """

    last: int = 4

    def __post_init__(self) -> None:
        _check("Worsening", "last", self.last, 2)

    def holds(self, losses: Sequence[float]) -> bool:
        """Return whether to stop now.

        Args:
            losses: The losses of all evaluations, the latest one last; lower is better.

        Returns:
            True if the latest of the `last` losses is above all the others; False with fewer than `last`.
        """
        return len(losses) >= self.last and losses[-1] > max(losses[-self.last : -1])


@dataclass(frozen=True, slots=True)
class LevelledOff:
    """A rule that stops once the latest of the last evaluations is close to the others, which hardly differ.

    Args:
        last: How many evaluations to look at.
        mean: How close the latest has to be to the mean of the others.
        deviation: The bound of their standard deviation.

    Raises:
        SettingsError: A number is too small.

    Example:
        >>> trainer_client.LevelledOff(3, mean=0.1, deviation=0.1).holds([9.0, 1.0, 1.0, 1.05])
        True
    """

    last: int = 4
    mean: float = 0.5
    deviation: float = 0.5

    def __post_init__(self) -> None:
        _check("LevelledOff", "last", self.last, 2)
        _check("LevelledOff", "mean", self.mean, 0)
        _check("LevelledOff", "deviation", self.deviation, 0)

    def holds(self, losses: Sequence[float]) -> bool:
        """Return whether to stop now.

        Args:
            losses: The losses of all evaluations, the latest one last; lower is better.

        Returns:
            True if the latest of the `last` losses is nearer than `mean` to the mean of the others, and their standard
            deviation is below `deviation`; False with fewer than `last` losses, or if one of them is not finite.
        """
        if len(losses) < self.last or not all(map(math.isfinite, losses[-self.last :])):
            return False
        *before, now = losses[-self.last :]
        return abs(now - statistics.fmean(before)) < self.mean and statistics.pstdev(before) < self.deviation


def stopping_rule(rules: Sequence[StopRule], losses: Sequence[float]) -> StopRule | None:
    """Return the first rule by which training stops after these evaluations; None if it goes on.

    Without evaluations it goes on. NaN counts as infinity. Errors of a rule are passed on.
    """
    # NaN compares as False with everything, so rules would pass over it; infinity is worse than every number.
    comparable = [math.inf if math.isnan(loss) else loss for loss in losses]
    return next((rule for rule in rules if losses and rule.holds(comparable)), None)


def _check(rule: str, name: str, got: float, least: float) -> None:
    if not got >= least:
        raise SettingsError(
            expected=f"{name} of at least {least}", got=f"{got}", where=rule, remedy="Leave it out for the usual value."
        )
