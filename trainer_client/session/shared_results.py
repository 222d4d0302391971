"""Loss and metrics of this trainer among those of all ranks.

Rules: what is told is kept by the coordinator or told again, so a lost coordinator costs a moment and no result.
Whoever waits for all ranks gets the same numbers as they do: decisions that all have to take alike may rest on them.
"""

from __future__ import annotations

import contextlib
import math
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import TYPE_CHECKING

from shared.errors import LostError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from trainer_client.network.receiver import Receiver

__all__ = ["SharedResults"]

#: How long to wait for the coordinator to say that it has them, which matters to a process that is about to end.
_MOMENT_S = 1.0

Values = tuple[tuple[str, float | None], ...]


class SharedResults:
    """What one feed tells of its stream."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver

    def share(
        self, values: Mapping[str, Any], *, rows: int, epoch: int, step: int, wait: bool
    ) -> dict[str, float] | None:
        """Tell means over so many rows; the means over all ranks, if that is waited for."""
        timeout_s = self._receiver.settings.core.lost_timeout_s if wait else _MOMENT_S
        answer = self._receiver.tell_results((epoch, step), rows, _plain(values), ended="", whole=wait)
        try:
            said = answer.result(timeout_s)
        except FutureTimeoutError:
            if wait:
                raise _missing(timeout_s, epoch, step) from None
            return None
        return {name: math.nan if value is None else value for name, value in said.values} if said.whole else None

    def end(self, why: str, *, epoch: int, step: int) -> None:
        """The run came to its end in good order."""
        with contextlib.suppress(FutureTimeoutError):  # a coordinator that is away is told as long as we are there
            self._receiver.tell_results((epoch, step), 0, (), ended=why, whole=False).result(_MOMENT_S)


def _plain(values: Mapping[str, Any]) -> Values:
    numbers = {name: float(value) for name, value in values.items()}
    return tuple((name, number if math.isfinite(number) else None) for name, number in numbers.items())


def _missing(timeout_s: float, epoch: int, step: int) -> LostError:
    return LostError(
        expected=f"the results of all ranks after epoch {epoch}, step {step}, within {timeout_s:g} s",
        got="none, or only some", where="aggregate",
        remedy="All ranks have to tell theirs for the same epoch and step. Look whether one has ended, or allow more "
        "time with lost_timeout_s.",
    )  # fmt: skip
