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
    from trainer_client.core.events import ResultsReported
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

    def report(self, report: ResultsReported, now_s: float) -> None:
        """Open a result, to be sent with the next `tick`; drop the oldest if too many are open."""
        if len(self._open) >= _MOST_OPEN:
            del self._open[min(self._open)]
        self._open[report.serial] = results_message(self._settings, report)
        self.due_s = now_s

    def tick(self, now_s: float) -> None:
        """Send all open results if that is due: at once after a new one, and then every second while any is open."""
        # A receipt is not enough: a coordinator that was restarted has forgotten the results of an epoch that not all
        # ranks had reported. So they are repeated until the answer covers all ranks.
        if now_s >= self.due_s:
            self._out.extend(map(i.ToCoordinator, self._open.values()))
            self.due_s = now_s + _PAUSE_S if self._open else float("inf")

    def receive(self, aggregate: m.Aggregate) -> bool:
        """Pass an answer to the caller; return False if its result is not open.

        If all ranks have reported, close the result and all earlier ones.
        """
        if aggregate.serial not in self._open:
            return False
        self._out.append(i.AnswerResults(aggregate))
        if aggregate.whole:
            self._open = {serial: results for serial, results in self._open.items() if serial > aggregate.serial}
        return True


def results_message(settings: CoreSettings, report: ResultsReported) -> m.Results:
    """Return the message that reports a result to the coordinator; too long a reason for the end is shortened."""
    return m.Results(
        stream=settings.stream,
        incarnation=settings.incarnation,
        serial=report.serial,
        epoch=report.epoch,
        step=report.step,
        rows=report.rows,
        values=report.values,
        ended=clipped(report.ended),
        aside=report.aside,
        evaluation=report.evaluation,
        part=report.part,
        states=report.states,
    )
