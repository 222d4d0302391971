"""Results of this trainer's epochs and evaluations, repeated to the coordinator until all ranks have reported.

Rules: pure. A result is repeated until its answer covers all ranks; then all earlier ones are closed as well, because
a caller that waits for one result reports no later one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.wire import messages as m
from shared.wire.message_parts import clipped
from trainer_client.core import instructions as i

if TYPE_CHECKING:
    from trainer_client.core.events import ResultsTold
    from trainer_client.core.settings import CoreSettings

__all__ = ["OpenResults", "results_message"]

#: How often open results are repeated.
_PAUSE_S = 1.0
#: The most results that may be open; beyond it the oldest is dropped. No rank is this far ahead of the others.
_MOST_OPEN = 16


class OpenResults:
    """Results whose means over all ranks are not known yet, by serial."""

    def __init__(self, settings: CoreSettings, out: list[i.Instruction]) -> None:
        #: When to send open results again.
        self.due_s = float("inf")
        self._settings = settings
        self._out = out
        self._open: dict[int, m.Results] = {}

    def tell(self, told: ResultsTold, now_s: float) -> None:
        """Open a result, to be sent with the next `tick`; drop the oldest if too many are open."""
        if len(self._open) >= _MOST_OPEN:
            del self._open[min(self._open)]
        self._open[told.serial] = results_message(self._settings, told)
        self.due_s = now_s

    def tick(self, now_s: float) -> None:
        """Send all open results, if that is due."""
        if now_s >= self.due_s:
            self._out.extend(i.ToCoordinator(one) for one in self._open.values())
            self.due_s = now_s + _PAUSE_S if self._open else float("inf")

    def receive(self, said: m.Aggregate) -> bool:
        """Pass an answer to the caller; return False if its result is not open. Close it if all ranks have reported."""
        if said.serial not in self._open:
            return False
        self._out.append(i.AnswerResults(said))
        if said.whole:
            self._open = {serial: one for serial, one in self._open.items() if serial > said.serial}
        return True


def results_message(settings: CoreSettings, told: ResultsTold) -> m.Results:
    """Return the message that reports a result to the coordinator."""
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
