"""Results (loss and metrics) that this trainer shares with all ranks, and the means over them.

Rules: a result is kept by the coordinator or reported again, so a lost coordinator costs a moment and no result. All
ranks that wait for a mean get the same numbers, so a decision that all have to make alike can be based on them. A
caller waits as long as the feed lives, as it would for a batch, because another rank may evaluate for long; but not for
a coordinator that is silent meanwhile. A caller that does not wait gets no error from here, so that nothing keeps it
from saving its checkpoint.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Mapping
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from shared.errors import EndedError, SettingsError
from shared.wire.message_parts import PIECE_BYTES
from shared.wire.topics.work_messages import LONGEST_NAME, MOST_MEANS
from trainer_client.core.events import ResultsReported
from trainer_client.session.call_checks import refused

if TYPE_CHECKING:
    from concurrent.futures import Future
    from typing import Any

    from shared.wire.messages import Aggregate
    from trainer_client.network.receiver import Receiver
    from trainer_client.session.trained_cursor import FeedCursor

__all__ = ["MeansOfTrainers", "SharedResults", "refuse_unsendable_results"]

#: How long to wait for the coordinator's receipt, which matters to a process that is about to end.
_MOMENT_S = 1.0
#: Kinds of arrays that are not numbers, although some would pass for them: strings, dates and complex numbers.
_NO_NUMBERS = "SUMmc"

#: The pause before asking again for other trainers' reports.
_AGAIN_S = 0.1

#: How long to wait for other trainers' results of an epoch, which they report as soon as they hear of its end.
_GATHERING_S = 5.0

Values = tuple[tuple[str, float | None], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeansOfTrainers:
    """Means over rows, from `parts` of the `trainers` that are attached."""

    means: dict[str, float]
    rows: int
    parts: int
    trainers: int

    def words(self) -> str:
        """Return in words how many samples and processes the means cover, for a log line.

        For example: " (90 samples of 2 of 3 processes)".
        """
        who = f"{self.parts}" if self.parts >= self.trainers else f"{self.parts} of {self.trainers}"
        return f" ({self.rows} samples of {who} process{'es' if max(self.parts, self.trainers) > 1 else ''})"


class SharedResults:
    """The results that one feed shares about its stream."""

    def __init__(self, receiver: Receiver, cursor: FeedCursor) -> None:
        self._receiver = receiver
        self._cursor = cursor
        #: The training stream of the run that this feed evaluates for; empty if not known.
        self._run = ""
        #: The latest report of the run's end: why, and at which epoch and step.
        self._ended: tuple[str, int, int] | None = None
        #: Names of values that are not shared, which the log has mentioned already.
        self._left_out: set[str] = set()

    def join_run(self, stream: str) -> None:
        """Name the run to evaluate for by its training stream: `sum_states` sums over the ranks of this run."""
        self._run = stream

    def share(  # noqa: PLR0913 - each is a fact of its own
        self, values: Mapping[str, Any], *, rows: int, epoch: int, step: int, wait: bool = False, evaluation: str = ""
    ) -> dict[str, float] | None:
        """Report those means that are plain numbers, over this many rows; return the means over all ranks.

        With `wait`, wait for all ranks; otherwise return None if they are not known within a second, or the feed has
        failed. Other values are left out, with a warning in the log; means that are not finite come back as NaN. Means
        of a named `evaluation` cover all its batches.

        With `wait`, raise LostError if a rank or the coordinator is lost, EndedError if the ranks part at the end of
        the job, and the error of a feed that fails or is closed. Raise SettingsError if a number is out of the
        protocol's bounds.
        """
        means = _plain(values)
        self._log_left_out(values, means)
        at_step = step if evaluation else self._cursor.step_of_results(step)
        report = ResultsReported(0, epoch, at_step, rows, means, evaluation=evaluation)
        answer = self._receiver.report_results(report, whole=wait)
        aggregate = self._receiver.wait_for(answer, of_all=True) if wait else _wait_a_moment(answer)
        return None if aggregate is None or not aggregate.whole else _means_of(aggregate)

    def gather(
        self, values: Mapping[str, Any], *, rows: int, epoch: int, patience_s: float = _GATHERING_S
    ) -> MeansOfTrainers:
        """Report means of an epoch, in queue mode, and return those over all trainers.

        Wait at most `patience_s` until every attached trainer has reported, then return the means so far: only our own
        if the coordinator is away. Raise SettingsError if a number is out of the protocol's bounds, and the error of a
        feed that fails or is closed.
        """
        until_s = time.monotonic() + patience_s
        gathered = MeansOfTrainers(means=dict(values), rows=rows, parts=1, trainers=1)
        while (left_s := until_s - time.monotonic()) > 0:
            answer = self._receiver.report_results(ResultsReported(0, epoch, 0, rows, _plain(values)), whole=True)
            try:
                aggregate = self._receiver.wait_for(answer, timeout_s=left_s)
            except FutureTimeoutError:  # the coordinator is away
                break
            gathered = MeansOfTrainers(
                means=_means_of(aggregate), rows=aggregate.rows, parts=aggregate.parts, trainers=aggregate.trainers
            )
            if gathered.parts >= gathered.trainers:
                break
            threading.Event().wait(_AGAIN_S)
        return gathered

    def _log_left_out(self, values: Mapping[str, Any], means: Values) -> None:
        names = set(values) - {name for name, _ in means} - self._left_out
        if names:
            self._left_out |= names
            self._receiver.log.warning(
                "results are not shared: only plain numbers are, not arrays", names=sorted(names), most=MOST_MEANS
            )

    def agree(self, value: float, *, epoch: int, step: int) -> float:
        """Return the mean of all ranks' values at this step, after waiting for all; it is no result of the run.

        Raise SettingsError if the value is not finite or a number out of bounds, LostError if a rank or the coordinator
        is lost, EndedError if the ranks part at the job's end, or the error of a feed that fails or is closed.
        """
        aggregate = self._wait_whole(ResultsReported(0, epoch, step, 1, (("value", float(value)),), aside=True))
        ((_, mean),) = aggregate.values
        assert mean is not None
        return mean

    def sum_states(self, states: bytes, *, epoch: int, step: int) -> bytes:
        """Return the sums over all ranks of the run of their metric states, after waiting for all; they are no results.

        Empty states are returned at once. Raise SettingsError if ranks have states of different sizes or a number
        is out of bounds, LostError if a rank or the coordinator is lost, EndedError if the ranks part at the end of the
        job, and the error of a feed that fails or is closed.
        """
        # In pieces, one after the other: a message is bounded, and a metric may have more states than one holds.
        summed = b""
        for part, start in enumerate(range(0, len(states), PIECE_BYTES)):
            piece = states[start : start + PIECE_BYTES]
            report = ResultsReported(
                0, epoch, step, 1, (), aside=True, evaluation=self._run, part=1 + part, states=piece
            )
            answer = self._wait_whole(report)
            if len(answer.states) != len(piece):
                raise SettingsError(
                    expected="the same metrics on all ranks",
                    got="metrics whose states differ in size",
                    where="evaluation",
                    remedy="Give all processes the same model and the same metrics, in the same order.",
                )
            summed += answer.states
        return summed

    def end(self, why: str, *, epoch: int, step: int, together: bool = False) -> None:
        """Report that the run ended in good order; if the coordinator is away, the report is repeated while we live.

        Wait for its receipt for a second at most, and raise no error of the feed, but SettingsError if a number is out
        of the protocol's bounds. A run that ends `together` with others reports in `end_together` instead.
        """
        step = self._cursor.step_of_results(step)
        self._ended = (why, epoch, step)
        if together:  # until all have come so far, a lost rank is still a change of the world
            return
        _wait_a_moment(self._receiver.report_results(ResultsReported(0, epoch, step, 0, (), why), whole=False))

    def end_together(self) -> None:
        """Report the end of the run, as given to `end` or else at the cursor, and wait until all ranks have reached it.

        If the job is ended by order, stop waiting. Raise LostError if a rank or the coordinator is lost, SettingsError
        if a number is out of the protocol's bounds, and the error of a feed that fails or is closed.
        """
        # The first to finish would otherwise end the world of the others in their last step.
        why, epoch, step = self._ended or ("training is done", self._cursor.at.epoch, 0)
        with contextlib.suppress(EndedError):
            self._wait_whole(ResultsReported(0, epoch, step, 0, (), why))

    def _wait_whole(self, report: ResultsReported) -> Aggregate:
        return self._receiver.wait_for(self._receiver.report_results(report, whole=True), of_all=True)


def _wait_a_moment(answer: Future[Aggregate]) -> Aggregate | None:
    """Return the answer if it comes within a second; None if not, or if the feed failed, which readers will see."""
    with contextlib.suppress(FutureTimeoutError):
        return answer.result() if answer.exception(_MOMENT_S) is None else None
    return None


def refuse_unsendable_results(values: Mapping[str, Any]) -> None:
    """Raise SettingsError if any of these values cannot be sent: values that a user named are never left out.

    Refused are anything but a mapping with strings as names, values that are no plain numbers, names that are too long,
    and more than MOST_MEANS values.
    """
    if not isinstance(values, Mapping) or not all(isinstance(name, str) for name in values):
        raise refused("a dict of numbers by their names", values, "aggregate")
    sendable = {name for name, _ in _plain(values)}
    missing = [name for name in values if name not in sendable]
    if missing:
        raise SettingsError(
            expected=f"at most {MOST_MEANS} numbers, with names of at most {LONGEST_NAME} characters",
            got=f"{len(values)} values, of which {missing[0][:50]!r} cannot be sent",
            where="aggregate",
            remedy="Pass plain numbers, such as float(loss); of arrays pass the mean, or each item under its own name.",
        )


def _plain(values: Mapping[str, Any]) -> Values:
    """Return the values that fit into a message: plain numbers with short names, non-finite ones as None.

    Of more than MOST_MEANS, the first are returned.
    """
    numbers = ((name, _number(value)) for name, value in values.items() if len(name) <= LONGEST_NAME)
    means = [(name, number) for name, number in numbers if number is not None]
    return tuple((name, number if math.isfinite(number) else None) for name, number in means[:MOST_MEANS])


def _means_of(aggregate: Aggregate) -> dict[str, float]:
    return {name: math.nan if value is None else value for name, value in aggregate.values}


def _number(value: Any) -> float | None:
    """Return the value as float, also from an array or tensor without dimensions; None if it is no number.

    Strings, dates and complex numbers are none, nor are arrays with dimensions.
    """
    try:
        array = np.asarray(value)
        return None if array.ndim or array.dtype.kind in _NO_NUMBERS else float(array)
    except (TypeError, ValueError, OverflowError):
        return None
