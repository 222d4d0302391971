"""The progress line of training, which is printed every so many steps.

Rules: pure; figures are those since the line before, the loss among them, which is a mean over samples. If a run has
several processes, a line says which of the figures are of this process alone. It must not know feeds or TensorFlow.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from trainer_client.training.runs.printed_lines import spell_time

__all__ = ["Figures", "Rates", "Scope", "progress_line", "seconds_left"]


class Scope(Enum):
    """The figures of a line that are of this process alone, though others train the same model."""

    #: There is no other process.
    WHOLE = "whole"
    #: Waiting and padding; the loss is of all processes, which train in lockstep.
    FEED = "feed"
    #: The loss as well, as each process takes batches of its own.
    SHARE = "share"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Counts that only grow, as they are at a moment."""

    at_s: float
    steps: int = 0
    waited_s: float = 0.0
    sample_bytes: int = 0
    padded_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Rates and fractions between two moments."""

    steps_per_s: float
    #: Fractions of the time, and of the bytes.
    waiting: float
    padding: float

    @classmethod
    def between(cls, before: Figures, now: Figures) -> Rates:
        """Return the rates between two readings of the figures."""
        seconds = max(now.at_s - before.at_s, 1e-9)
        padded = now.padded_bytes - before.padded_bytes
        return cls(
            steps_per_s=(now.steps - before.steps) / seconds,
            waiting=min((now.waited_s - before.waited_s) / seconds, 1.0),
            padding=1 - (now.sample_bytes - before.sample_bytes) / padded if padded else 0.0,
        )


def progress_line(
    place: tuple[float, int], loss: float | None, rates: Rates, left_s: float | None, scope: Scope = Scope.WHOLE
) -> str:
    """Return the progress line.

    `place` is the epoch, with a fraction for the part of it that is done, and the step. Without samples there is no
    loss.
    """
    epoch, step = place
    loss_text = "no samples" if loss is None else f"loss {loss:.4f}"
    pace = f"{rates.steps_per_s:.1f} steps/s"
    feed = f"waiting {rates.waiting:.1%}, padding {rates.padding:.1%}"
    figures = {
        Scope.WHOLE: f"{loss_text}, {pace}, {feed}",
        Scope.FEED: f"{loss_text}, {pace}; this process: {feed}",
        Scope.SHARE: f"{pace}; this process: {loss_text}, {feed}",
    }[scope]
    left = "" if left_s is None else f"{', ' if scope is Scope.WHOLE else '; '}{spell_time(left_s)} left"
    return f"epoch {epoch:.2f}, step {step}: {figures}{left}"


def seconds_left(
    steps_per_s: float, left: tuple[float | None, float | None, float | None], *, epoch_steps: int | None
) -> float | None:
    """Return the seconds until the first of the limits is reached, or None if nothing is known.

    `left` is the steps, epochs and seconds until each limit; all epochs are taken to have `epoch_steps` steps.
    """
    steps, epochs, limit_s = left
    to_go = [steps] if steps is not None else []
    to_go += [epochs * epoch_steps] if epochs is not None and epoch_steps is not None else []
    seconds = [min(to_go) / steps_per_s] if to_go and steps_per_s > 0 else []
    seconds += [limit_s] if limit_s is not None else []
    return max(0.0, min(seconds)) if seconds else None
