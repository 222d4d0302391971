"""The end of the job by order: when readers stop.

Rules: pure. A trainer in queue mode reads on to the end of what it has leased, if it drains. Ranks in lockstep must all
end with the same round, or those that go on would wait for the others for ever: each stands still and says how far it
has come, until the coordinator names the last round. Everyone else stops at once, and so does a rank that does not hear
from the coordinator any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.silence import GONE_AFTER
from trainer_client.core import instructions as i
from trainer_client.core.failures import job_ended

if TYPE_CHECKING:
    from shared.wire import messages as m
    from trainer_client.core.settings import CoreSettings

__all__ = ["JobEnd"]

#: In heartbeat timeouts; the coordinator may wait for a rank that is gone before it answers.
_PATIENCE = GONE_AFTER + 3


class JobEnd:
    """What the coordinator said of it, and what was ordered."""

    def __init__(self, settings: CoreSettings, attached: m.Attached, out: list[i.Instruction]) -> None:
        #: When the coordinator has been silent for too long.
        self.due_s = float("inf")
        #: Whether trainers finish what they have; None: the job goes on.
        self.drains: bool | None = None
        self._out = out
        self._leases = bool(attached.work)
        self._is_rank = not attached.work and not attached.evaluation and settings.ranks.world > settings.ranks.replicas
        self._patience_s = _PATIENCE * attached.heartbeat_timeout_ms / 1000
        self._ordered: i.EndReading | None = None

    def hear(self, said: m.JobEnds, now_s: float) -> None:
        """It is said again and again, and may be said anew: not to drain any longer."""
        self.drains = said.drains and self.drains is not False
        if not self._is_rank:
            self._end(i.EndReading(job_ended(), at_once=not (self._leases and self.drains)))
            return
        self.due_s = now_s + self._patience_s
        if said.last is None:
            self._out.append(i.StandStill())
        else:
            last = (said.last.epoch, said.last.number)
            self._end(i.EndReading(job_ended(), at_once=False, last=last, waits=self.drains))

    def tick(self, now_s: float) -> None:
        """Stop at once if the coordinator is gone."""
        if now_s >= self.due_s:
            self.due_s = float("inf")
            self._end(i.EndReading(job_ended(), at_once=True))

    def _end(self, order: i.EndReading) -> None:
        said = self._ordered
        if said is None or (said.at_once, said.last, said.waits) != (order.at_once, order.last, order.waits):
            self._ordered = order
            self._out.append(order)
