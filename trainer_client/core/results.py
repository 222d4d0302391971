"""The results of this trainer's epochs and evaluations, repeated to the coordinator until all ranks have reported.

Rules: pure. Each is repeated until its answer covers all ranks, and then all before it are over as well: a caller that
waits for one reports no later one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.wire import messages as m
from shared.wire.parts import clipped
from trainer_client.core import instructions as i

if TYPE_CHECKING:
    from trainer_client.core.events import ResultsTold
    from trainer_client.core.settings import CoreSettings

__all__ = ["OpenResults", "results_message"]

_PAUSE_S = 1.0
#: The most results that are open: no rank is further ahead of the others.
_MOST_OPEN = 16


class OpenResults:
    """Results whose means over all ranks are not known yet."""

    def __init__(self, settings: CoreSettings, out: list[i.Instruction]) -> None:
        #: When to repeat them.
        self.due_s = float("inf")
        self._settings = settings
        self._out = out
        self._open: dict[int, m.Results] = {}

    def tell(self, told: ResultsTold, now_s: float) -> None:
        """Send it with the next `tick`."""
        if len(self._open) >= _MOST_OPEN:
            del self._open[min(self._open)]
        self._open[told.serial] = results_message(self._settings, told)
        self.due_s = now_s

    def tick(self, now_s: float) -> None:
        """Repeat open results, if it is time."""
        if now_s >= self.due_s:
            self._out.extend(i.ToCoordinator(one) for one in self._open.values())
            self.due_s = now_s + _PAUSE_S if self._open else float("inf")

    def receive(self, said: m.Aggregate) -> bool:
        """Take in an answer; False if it answers nothing that is open."""
        if said.serial not in self._open:
            return False
        self._out.append(i.AnswerResults(said))
        if said.whole:
            self._open = {serial: one for serial, one in self._open.items() if serial > said.serial}
        return True


def results_message(settings: CoreSettings, told: ResultsTold) -> m.Results:
    """Return what the coordinator is told."""
    return m.Results(
        stream=settings.stream,
        incarnation=settings.incarnation,
        serial=told.serial,
        epoch=told.epoch,
        step=told.step,
        rows=told.rows,
        values=told.values,
        ended=clipped(told.ended),
        aside=told.aside,
        evaluation=told.evaluation,
        part=told.part,
        states=told.states,
    )
