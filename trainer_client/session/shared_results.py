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
from trainer_client.core.events import ResultsTold
from trainer_client.session.call_checks import refused

if TYPE_CHECKING:
    from concurrent.futures import Future
    from typing import Any

    from shared.wire.messages import Aggregate
    from trainer_client.network.receiver import Receiver

__all__ = ["MeansOfTrainers", "SharedResults", "refuse_what_cannot_be_told"]

#: How long to wait for the coordinator's receipt, which matters to a process that is about to end.
_MOMENT_S = 1.0
#: Kinds of arrays that are not numbers, although some would pass for them: strings, dates and complex numbers.
_NO_NUMBERS = "SUMmc"

#: The pause before asking again for other trainers' reports.
_AGAIN_S = 0.1

Values = tuple[tuple[str, float | None], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeansOfTrainers:
    """Means over rows, from `parts` of the `trainers` that are attached."""

    means: dict[str, float]
    rows: int
    parts: int
    trainers: int

    def words(self) -> str:
        """Return in words how many samples and processes the means cover, for a log line."""
        who = f"{self.parts}" if self.parts >= self.trainers else f"{self.parts} of {self.trainers}"
        return f" ({self.rows} samples of {who} process{'es' if max(self.parts, self.trainers) > 1 else ''})"


class SharedResults:
    """The results that one feed shares about its stream."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        #: The latest report of the run's end: why, and at which epoch and step.
        self._ended: tuple[str, int, int] | None = None
        #: Names of values that are not shared, which the log has mentioned already.
        self._left_out: set[str] = set()

    def share(  # noqa: PLR0913 - each is a fact of its own
        self, values: Mapping[str, Any], *, rows: int, epoch: int, step: int, wait: bool, evaluation: str = ""
    ) -> dict[str, float] | None:
        """Report those means that are plain numbers, over this many rows; return the means over all ranks.

        With `wait`, wait for all ranks; otherwise return None if they are not known within a second. Other values are
        left out, with a warning in the log.
        """
        told = _plain(values)
        self._log_left_out(values, told)
        answer = self._receiver.tell_results(ResultsTold(0, epoch, step, rows, told, evaluation=evaluation), whole=wait)
        said = self._receiver.wait_for(answer, of_all=True) if wait else _wait_a_moment(answer)
        if said is None or not said.whole:
            return None
        return {name: math.nan if value is None else value for name, value in said.values}

    def gather(self, values: Mapping[str, Any], *, rows: int, epoch: int, patience_s: float) -> MeansOfTrainers:
        """Report means of an epoch, in queue mode, and return those over all trainers.

        Wait at most `patience_s` until every attached trainer has reported, then return the means so far: only our own
        if the coordinator is away.
        """
        until_s = time.monotonic() + patience_s
        gathered = MeansOfTrainers(means=dict(values), rows=rows, parts=1, trainers=1)
        while (left_s := until_s - time.monotonic()) > 0:
            answer = self._receiver.tell_results(ResultsTold(0, epoch, 0, rows, _plain(values)), whole=True)
            try:
                said = self._receiver.wait_for(answer, timeout_s=left_s)
            except FutureTimeoutError:  # the coordinator is away
                break
            means = {name: math.nan if value is None else value for name, value in said.values}
            gathered = MeansOfTrainers(means=means, rows=said.rows, parts=said.parts, trainers=said.trainers)
            if said.parts >= said.trainers:
                break
            threading.Event().wait(_AGAIN_S)
        return gathered

    def _log_left_out(self, values: Mapping[str, Any], told: Values) -> None:
        names = set(values) - {name for name, _ in told} - self._left_out
        if names:
            self._left_out |= names
            self._receiver.log.warning(
                "results are not shared: only plain numbers are, not arrays", names=sorted(names), most=MOST_MEANS
            )

    def agree(self, value: float, *, epoch: int, step: int) -> float:
        """Return the mean of all ranks' values at this step, after waiting for all; it is no result of the run."""
        told = (("value", float(value)),)
        answer = self._receiver.tell_results(ResultsTold(0, epoch, step, 1, told, aside=True), whole=True)
        ((_, mean),) = self._receiver.wait_for(answer, of_all=True).values
        assert mean is not None
        return mean

    def sum_states(self, states: bytes, *, epoch: int, step: int, run: str) -> bytes:
        """Return the sums over all ranks of a run of their metric states, after waiting for all; they are no results.

        The states go in pieces, one after the other. Raise SettingsError if ranks have states of different sizes.
        """
        summed = b""
        for part, start in enumerate(range(0, len(states), PIECE_BYTES)):
            piece = states[start : start + PIECE_BYTES]
            told = ResultsTold(0, epoch, step, 1, (), aside=True, evaluation=run, part=1 + part, states=piece)
            answer = self._receiver.wait_for(self._receiver.tell_results(told, whole=True), of_all=True)
            if len(answer.states) != len(piece):
                raise _other_metrics()
            summed += answer.states
        return summed

    def end(self, why: str, *, epoch: int, step: int, together: bool = False) -> None:
        """Report that the run ended in good order; if the coordinator is away, the report is repeated while we live.

        A run that ends `together` with others reports in `end_together` instead: until then, a lost rank is still a
        change of the world.
        """
        self._ended = (why, epoch, step)
        if together:
            return
        _wait_a_moment(self._receiver.tell_results(ResultsTold(0, epoch, step, 0, (), why), whole=False))

    def end_together(self, epoch: int) -> None:
        """Report the end of the run, as given to `end` or else at this epoch, and wait until all ranks have reached it.

        If the job is ended by order, stop waiting.
        """
        why, epoch, step = self._ended or ("training is done", epoch, 0)
        answer = self._receiver.tell_results(ResultsTold(0, epoch, step, 0, (), why), whole=True)
        with contextlib.suppress(EndedError):
            self._receiver.wait_for(answer, of_all=True)


def _other_metrics() -> SettingsError:
    return SettingsError(
        expected="the same metrics on all ranks", got="metrics whose states differ in size", where="evaluation",
        remedy="Give all processes the same model and the same metrics, in the same order.",
    )  # fmt: skip


def _wait_a_moment(answer: Future[Aggregate]) -> Aggregate | None:
    """Return the answer if it comes within a second; None if not, or if the feed failed, which readers will see."""
    with contextlib.suppress(FutureTimeoutError):
        return answer.result() if answer.exception(_MOMENT_S) is None else None
    return None


def refuse_what_cannot_be_told(values: Mapping[str, Any]) -> None:
    """Raise SettingsError if any of these values cannot be sent: values that a user named are never left out."""
    if not isinstance(values, Mapping) or not all(isinstance(name, str) for name in values):
        raise refused("a dict of numbers by their names", values, "aggregate")
    told = {name for name, _ in _plain(values)}
    missing = [name for name in values if name not in told]
    if missing:
        raise SettingsError(
            expected=f"at most {MOST_MEANS} numbers, with names of at most {LONGEST_NAME} characters",
            got=f"{len(values)} values, of which {missing[0][:50]!r} cannot be sent",
            where="aggregate",
            remedy="Pass plain numbers, such as float(loss); of arrays pass the mean, or each item under its own name.",
        )


def _plain(values: Mapping[str, Any]) -> Values:
    """Return the values that fit into a message: plain numbers with short names, non-finite ones as None."""
    numbers = ((name, _number(value)) for name, value in values.items() if len(name) <= LONGEST_NAME)
    told = [(name, number) for name, number in numbers if number is not None]
    return tuple((name, number if math.isfinite(number) else None) for name, number in told[:MOST_MEANS])


def _number(value: Any) -> float | None:
    """Return the value as float, also from an array or tensor without dimensions; None if it is no number."""
    try:
        array = np.asarray(value)
        return None if array.ndim or array.dtype.kind in _NO_NUMBERS else float(array)
    except (TypeError, ValueError, OverflowError):
        return None
