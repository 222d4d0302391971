"""The line that tells every so many steps how training is going.

Rules: pure; figures are those since the line before. It must not know feeds or TensorFlow.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainer_client.runs.lines import spell_time

__all__ = ["Figures", "Rates", "progress_line", "seconds_left"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What grew so far, at a moment."""

    at_s: float
    steps: int = 0
    waited_s: float = 0.0
    sample_bytes: int = 0
    padded_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What lies between two moments."""

    steps_per_s: float
    #: Shares of time and of bytes.
    waiting: float
    padding: float

    @classmethod
    def between(cls, before: Figures, now: Figures) -> Rates:
        """Rates and shares."""
        seconds = max(now.at_s - before.at_s, 1e-9)
        padded = now.padded_bytes - before.padded_bytes
        return cls(
            steps_per_s=(now.steps - before.steps) / seconds,
            waiting=min((now.waited_s - before.waited_s) / seconds, 1.0),
            padding=1 - (now.sample_bytes - before.sample_bytes) / padded if padded else 0.0,
        )


def progress_line(epoch: float, step: int, loss: float, rates: Rates, left_s: float | None) -> str:
    """`epoch` counts what is done of the one in training as its part."""
    left = "" if left_s is None else f", {spell_time(left_s)} left"
    return (
        f"epoch {epoch:.2f}, step {step}: loss {loss:.4f}, {rates.steps_per_s:.1f} steps/s, "
        f"waiting {rates.waiting:.1%}, padding {rates.padding:.1%}{left}"
    )


def seconds_left(
    steps_per_s: float, left: tuple[float | None, float | None, float | None], *, epoch_steps: int | None
) -> float | None:
    """How long it takes until the first of the limits, of which `left` has steps, epochs and seconds; epochs are as
    long as this one. None where nothing is known.
    """
    steps, epochs, limit_s = left
    to_go = [steps] if steps is not None else []
    to_go += [epochs * epoch_steps] if epochs is not None and epoch_steps is not None else []
    seconds = [min(to_go) / steps_per_s] if to_go and steps_per_s > 0 else []
    seconds += [limit_s] if limit_s is not None else []
    return max(0.0, min(seconds)) if seconds else None
