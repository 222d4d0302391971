"""Loss and metrics of this trainer among those of all ranks.

Rules: what is told is kept by the coordinator or told again, so a lost coordinator costs a moment and no result.
Whoever waits for all ranks gets the same numbers as they do: decisions that all have to take alike may rest on them.
He waits as long as the feed lives, as for a batch: another rank may evaluate for long. Who does not wait gets no error
from here, so that nothing keeps him from saving his checkpoint.
"""

from __future__ import annotations

import contextlib
import math
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import TYPE_CHECKING

import numpy as np

from shared.errors import SettingsError
from shared.wire.topics.result_messages import LONGEST_NAME, MOST_MEANS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from concurrent.futures import Future
    from typing import Any

    from shared.wire.messages import Aggregate
    from trainer_client.network.receiver import Receiver

__all__ = ["SharedResults", "refuse_what_cannot_be_told"]

#: How long to wait for the coordinator to say that it has them, which matters to a process that is about to end.
_MOMENT_S = 1.0
#: Strings, dates and complex numbers, some of which would pass for numbers.
_NO_NUMBERS = "SUMmc"

Values = tuple[tuple[str, float | None], ...]


class SharedResults:
    """What one feed tells of its stream."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        #: Names of which the log says that they are not told.
        self._left_out: set[str] = set()

    def share(
        self, values: Mapping[str, Any], *, rows: int, epoch: int, step: int, wait: bool
    ) -> dict[str, float] | None:
        """Tell means over so many rows, those of them that are numbers; the means over all ranks, if that is waited
        for.
        """
        told = _plain(values)
        self._log_left_out(values, told)
        answer = self._receiver.tell_results((epoch, step), rows, told, ended="", whole=wait)
        said = self._receiver.wait_for(answer, of_all=True) if wait else _wait_a_moment(answer)
        if said is None or not said.whole:
            return None
        return {name: math.nan if value is None else value for name, value in said.values}

    def _log_left_out(self, values: Mapping[str, Any], told: Values) -> None:
        names = set(values) - {name for name, _ in told} - self._left_out
        if names:
            self._left_out |= names
            self._receiver.log.warning(
                "results are not shared: numbers are, that are no arrays", names=sorted(names), most=MOST_MEANS
            )

    def end(self, why: str, *, epoch: int, step: int) -> None:
        """The run came to its end in good order; a coordinator that is away is told as long as we are there."""
        _wait_a_moment(self._receiver.tell_results((epoch, step), 0, (), ended=why, whole=False))


def _wait_a_moment(answer: Future[Aggregate]) -> Aggregate | None:
    """None if there is none yet, or the feed failed: that is raised where it is read."""
    with contextlib.suppress(FutureTimeoutError):
        return answer.result() if answer.exception(_MOMENT_S) is None else None
    return None


def refuse_what_cannot_be_told(values: Mapping[str, Any]) -> None:
    """Where the user names the values, none is left out in silence."""
    told = {name for name, _ in _plain(values)}
    missing = [name for name in values if name not in told]
    if missing:
        raise SettingsError(
            expected=f"at most {MOST_MEANS} numbers, with names of at most {LONGEST_NAME} characters",
            got=f"{len(values)} values, of which {missing[0][:50]!r} cannot be told",
            where="aggregate",
            remedy="Pass plain numbers, such as float(loss); of arrays their means, or each item by a name of its own.",
        )


def _plain(values: Mapping[str, Any]) -> Values:
    """Those that a message can hold."""
    numbers = ((name, _number(value)) for name, value in values.items() if len(name) <= LONGEST_NAME)
    told = [(name, number) for name, number in numbers if number is not None]
    return tuple((name, number if math.isfinite(number) else None) for name, number in told[:MOST_MEANS])


def _number(value: Any) -> float | None:  # noqa: ANN401 - whatever stands in the logs
    """Also of an array or tensor without dimensions; None if it is no number."""
    try:
        array = np.asarray(value)
        return None if array.ndim or array.dtype.kind in _NO_NUMBERS else float(array)
    except (TypeError, ValueError, OverflowError):
        return None
