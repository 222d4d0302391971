"""What this trainer's epochs and evaluations came to, told to the coordinator until all ranks have told theirs.

Rules: pure. Each is repeated until the answer is whole, and then all before it are over as well: whoever waited for one
of them told no later one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.wire import messages as m
from shared.wire.parts import clipped
from trainer_client.core import instructions as i

if TYPE_CHECKING:
    from trainer_client.core.events import ResultsTold
    from trainer_client.core.settings import CoreSettings

__all__ = ["OpenResults"]

_PAUSE_S = 1.0
#: Nobody is further ahead of the other ranks.
_MOST_OPEN = 16


class OpenResults:
    """Those that are not known to be whole."""

    def __init__(self, settings: CoreSettings, out: list[i.Instruction]) -> None:
        #: When to say them again.
        self.due_s = float("inf")
        self._settings = settings
        self._out = out
        self._open: dict[int, m.Results] = {}

    def tell(self, told: ResultsTold, now_s: float) -> None:
        """Say it with the next `tick`."""
        if len(self._open) >= _MOST_OPEN:
            del self._open[min(self._open)]
        self._open[told.serial] = m.Results(
            stream=self._settings.stream,
            incarnation=self._settings.incarnation,
            serial=told.serial,
            epoch=told.epoch,
            step=told.step,
            rows=told.rows,
            values=told.values,
            ended=clipped(told.ended),
        )
        self.due_s = now_s

    def tick(self, now_s: float) -> None:
        """Say again what is open, if it is time."""
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
