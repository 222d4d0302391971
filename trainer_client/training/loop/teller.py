"""Reports of a training loop: a progress line every so many steps, summaries, and steps traced too late.

Summaries have the number of batches ahead of the model as well, smoothed over steps.

Rules: one process of all speaks. Figures are those since the line before, the loss among them, which is a mean over
samples. If a run has several processes, a line says which of the figures are of this process alone. A step has one line
at most: one that was not applied, because its gradients came too late, is no step. It decides nothing.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

from trainer_client.training.runs.printed_lines import spell_time
from trainer_client.training.runs.summaries import Summaries
from trainer_client.training.runs.until import NotedMeans

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from trainer_client.session.feed_session import FeedSession
    from trainer_client.training.runs.run_progress import RunProgress
    from trainer_client.training.runs.until import RunTotals

__all__ = ["Figures", "Rates", "Scope", "Teller", "progress_line", "seconds_left"]

#: How much of a smoothed figure each step leaves: the figure is about the mean of the last twenty.
_LEFT = 0.95


class Scope(Enum):
    """The figures of a line that are of this process alone, though others train the same model."""

    #: There is no other process.
    WHOLE = "whole"
    #: Waiting and padding; the loss is of all processes, which train in lockstep.
    FEED = "feed"
    #: The loss as well, as each process takes batches of its own.
    SHARE = "share"


#: Part of the time from which on a line says why steps wait.
_WORTH_A_REASON = 0.05


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
    #: What limits the job, if that is worth saying; otherwise empty.
    limit: str = ""

    @classmethod
    def between(cls, before: Figures, now: Figures) -> Rates:
        """Return the rates between two readings of the figures.

        The time waited is at most the whole; without any bytes the padding is 0.
        """
        seconds = max(now.at_s - before.at_s, 1e-9)
        padded = now.padded_bytes - before.padded_bytes
        return cls(
            steps_per_s=(now.steps - before.steps) / seconds,
            waiting=min((now.waited_s - before.waited_s) / seconds, 1.0),
            padding=1 - (now.sample_bytes - before.sample_bytes) / padded if padded else 0.0,
        )


class Teller:
    """The reports of one run; `traces` is how often the step was traced, as far as it was reported.

    There is a line every `every` steps. With `is_quiet` nothing is printed, and no summaries are written.
    """

    def __init__(self, session: FeedSession, summaries: Path | None, every: int, *, is_quiet: bool) -> None:
        self.traces = 0
        #: Which figures of a line are of this process alone.
        self.scope = Scope.FEED if session.ranks.world > session.ranks.replicas else Scope.WHOLE
        self._session = session
        self._every = every
        #: How many steps were done when it was last looked whether a line is due.
        self._looked_steps = 0
        #: Losses since the last line.
        self._noted = NotedMeans()
        self._is_quiet = is_quiet
        self._summaries = Summaries(summaries) if summaries is not None and not is_quiet else None
        self._log = session.log
        #: The figures at the last line.
        self._before = self._figures(0)
        #: Smoothed numbers of ready and of staged batches; empty before the first step. If both are near 0, the loaders
        #: are too slow; if only the latter is, handing batches to TensorFlow is.
        self._ahead: list[float] = []

    def begin(self, progress: RunProgress, traces: int) -> None:
        """Begin the reports of a run; the traces so far were to be expected."""
        self.traces = traces
        self._before = self._figures(progress.totals.steps)
        self._looked_steps, self._noted = progress.totals.steps, NotedMeans()

    def note_step(self, loss: float, rows: int) -> None:
        """Note a step that was applied, with its mean loss over this many samples."""
        self._noted.add({"loss": loss}, rows)

    def note_ahead(self) -> None:
        """Note how many batches are ahead of the model, as it asks for its next one; do nothing without summaries."""
        if self._summaries is None:
            return
        now = self._session.batches_ahead()
        before = self._ahead or now
        self._ahead = [_LEFT * old + (1 - _LEFT) * new for old, new in zip(before, now, strict=True)]

    def count_traces(self, traces: int) -> None:
        """Count and log traces in the midst of training, for unplanned shapes; `traces` is their number in all."""
        self._session.accounts.count_retraces(traces - self.traces)
        self.traces = traces
        self._log.warning("a step was traced again: its shape was not planned", traces=traces)

    def tell_progress(self, progress: RunProgress) -> None:
        """Print a progress line if it is time, and summarize its figures; do nothing in a quiet process.

        Where other processes take steps as well, the count may pass over a multiple of the interval. Raise LostError if
        no worker says how many batches the epoch has, the error of a feed that fails or is closed, and those of
        `Summaries.write`.
        """
        # Not `steps % every`: a count that leaps over a multiple, or stays on it for a refused step, would have no line
        # or two.
        before, self._looked_steps = self._looked_steps, progress.steps
        if not self._is_quiet and progress.steps // self._every > before // self._every:
            self._tell(progress)

    def _tell(self, progress: RunProgress) -> None:
        """Print a progress line and write its figures to the summaries, if there are any.

        Raise LostError if no worker says how many batches the epoch has, the error of a feed that fails or is closed,
        and those of `Summaries.write`.
        """
        totals, session = progress.totals, self._session
        loss, self._noted = self._noted.means(), NotedMeans()  # over samples: a batch with few rows counts for few
        now = self._figures(totals.steps)
        rates, self._before = Rates.between(self._before, now), now
        epoch, epoch_steps = session.cursor.epochs_done()
        left_s = seconds_left(rates.steps_per_s, progress.left(epoch), epoch_steps=epoch_steps)
        rates = replace(rates, limit=session.limit_now if rates.waiting >= _WORTH_A_REASON else "")
        print(progress_line((epoch, totals.steps), loss.get("loss"), rates, left_s, self.scope), flush=True)
        values = {**loss, "steps_per_s": rates.steps_per_s, "waiting": rates.waiting, "padding": rates.padding}
        values |= zip(("batches_ready", "batches_staged"), self._ahead, strict=False)
        self._summarize(totals.steps, values)

    def tell_judged(self, steps: int, values: Mapping[str, float]) -> None:
        """Write the values of an evaluation within an epoch to the summaries, if there are any.

        `loss`, that of training, is left out. Its lines are printed already. Raise TypeError or ValueError for another
        value that is no number; errors of `Summaries.write` pass.
        """
        self._summarize(steps, {name: float(value) for name, value in values.items() if name != "loss"})

    def tell_epoch(self, totals: RunTotals, logs: Mapping[str, Any], whose: str = "") -> None:
        """Print and summarize the values of an epoch, validation included; `whose` is added to the step.

        Values that are no plain numbers are left out. A quiet process does nothing. Errors of `Summaries.write` pass.
        """
        if self._is_quiet:
            return
        values = {name: float(value) for name, value in logs.items() if isinstance(value, int | float)}
        results = ", ".join(f"{name} {value:.4f}" for name, value in values.items())
        print(f"epoch {totals.epochs} is over, step {totals.steps}{whose}: {results}", flush=True)
        self._summarize(totals.steps, {f"epoch/{name}": value for name, value in values.items()})

    def _summarize(self, step: int, values: Mapping[str, float]) -> None:
        if self._summaries is not None:
            self._summaries.write(step, values)

    def _figures(self, steps: int) -> Figures:
        counts = self._session.accounts.counts
        return Figures(
            at_s=time.monotonic(),
            steps=steps,
            waited_s=counts.step_wait_s or 0.0,
            sample_bytes=counts.sample_bytes,
            padded_bytes=counts.sample_bytes + counts.padding_bytes + counts.masked_bytes,
        )

    def close(self) -> None:
        """Close the summaries, if there are any; no more can be written then."""
        if self._summaries is not None:
            self._summaries.close()


def progress_line(
    place: tuple[float, int], loss: float | None, rates: Rates, left_s: float | None, scope: Scope = Scope.WHOLE
) -> str:
    """Return the progress line.

    `place` is the epoch, with a fraction for the part of it that is done, and the step. Without samples there is no
    loss, and with `left_s` None no time that is left. By `scope` it says which figures are of this process alone.
    Errors of `spell_time` pass through, as for infinity.
    """
    epoch, step = place
    loss_text = "no samples" if loss is None else f"loss {loss:.4f}"
    pace = f"{rates.steps_per_s:.1f} steps/s"
    limit = f" (limit: {rates.limit})" if rates.limit else ""
    feed = f"waiting {rates.waiting:.1%}{limit}, padding {rates.padding:.1%}"
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

    `left` is the steps, epochs and seconds until each limit; all epochs are taken to have `epoch_steps` steps. Steps
    and epochs count only at a pace above 0, and epochs only if their steps are known. A limit that is passed gives 0.
    """
    steps, epochs, limit_s = left
    to_go = [steps] if steps is not None else []
    to_go += [epochs * epoch_steps] if epochs is not None and epoch_steps is not None else []
    seconds = [min(to_go) / steps_per_s] if to_go and steps_per_s > 0 else []
    seconds += [limit_s] if limit_s is not None else []
    return max(0.0, min(seconds)) if seconds else None
