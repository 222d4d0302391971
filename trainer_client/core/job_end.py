"""The end of the job by order, and when readers stop.

Rules: pure. A draining trainer in queue mode reads to the end of its leases. Ranks in lockstep must all end with the
same round, or those that go on would wait for the others for ever: each stands still and reports how far it has come,
until the coordinator names the last round. Everyone else stops at once, and so does a rank that no longer hears from
the coordinator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.silence import GONE_AFTER
from trainer_client.core import instructions as i
from trainer_client.core.feed_errors import job_ended

if TYPE_CHECKING:
    from shared.wire import messages as m
    from trainer_client.core.settings import CoreSettings

__all__ = ["JobEnd"]

#: How long a rank waits for the last round, in heartbeat timeouts; the coordinator may itself wait for a lost rank.
_PATIENCE = GONE_AFTER + 3


class JobEnd:
    """The coordinator's latest word about the end of the job, and the order that followed from it."""

    def __init__(self, settings: CoreSettings, attached: m.Attached, out: list[i.Instruction]) -> None:
        #: When to stop without the coordinator, because it has been silent for too long.
        self.due_s = float("inf")
        #: Whether trainers finish the batches that they have; None while the job goes on.
        self.drains: bool | None = None
        self._out = out
        self._leases = bool(attached.work)
        self._is_rank = not attached.work and not attached.evaluation and settings.ranks.world > settings.ranks.replicas
        self._patience_s = _PATIENCE * attached.heartbeat_timeout_ms / 1000
        self._ordered: i.EndReading | None = None

    def hear(self, word: m.JobEnds, now_s: float) -> None:
        """Order readers to stop, drain or stand still, as the coordinator says."""
        # The message is repeated, and a later one may forbid draining; a repetition that was on its way meanwhile must
        # not allow it again.
        self.drains = word.drains and self.drains is not False
        if not self._is_rank:
            self._end(i.EndReading(job_ended(), at_once=not (self._leases and self.drains)))
            return
        self.due_s = now_s + self._patience_s
        # A rank that went on by itself would wait in the next step for ranks that have stopped. So all stand still
        # until the coordinator, which knows how far each has come, names the last round.
        if word.last is None:
            self._out.append(i.StandStill())
        else:
            last = (word.last.epoch, word.last.number)
            self._end(i.EndReading(job_ended(), at_once=False, last=last, waits=self.drains))

    def tick(self, now_s: float) -> None:
        """Stop readers at once if the coordinator has been silent for too long."""
        if now_s >= self.due_s:
            self.due_s = float("inf")
            self._end(i.EndReading(job_ended(), at_once=True))

    def _end(self, order: i.EndReading) -> None:
        # The coordinator repeats its message. An unchanged order is given once; its error is a new object each time.
        former = self._ordered
        if former is None or (former.at_once, former.last, former.waits) != (order.at_once, order.last, order.waits):
            self._ordered = order
            self._out.append(order)
