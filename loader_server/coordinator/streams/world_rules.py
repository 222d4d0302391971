"""Rules for attaching in lockstep: the cursor fits the plan, the world fits the group, and ranks agree.

Rules: pure; the only state is since when each rank has been waiting, and when the coordinator began to hear. Ranks of
one world hold equal cursors; a rank with another cursor waits a while, because the others may just be restarting, and
is then refused. A load test takes no rank from anybody who trains.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from loader_server.coordinator import refusals
from loader_server.coordinator.streams.stream_trainers import compared, overlap
from shared.silence import GONE_AFTER
from shared.wire import messages as m
from shared.wire.message_parts import Cursor
from shared.wire.topics.work_messages import MEASURE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from loader_server.coordinator.streams.stream_trainers import StreamTrainers

__all__ = ["COUNTING_MS", "WorldRules"]

#: How long a rank that disagrees with the others may wait before it is refused, in heartbeat timeouts.
_PATIENCE_TIMEOUTS = 2

#: Retry interval of a trainer that waits for batches to be counted.
COUNTING_MS = 250


class WorldRules:
    """Checks of trainers that attach in lockstep; `group` is the job's, 0 if it sets none."""

    def __init__(self, group: int, timeout_s: float) -> None:
        self._group = group
        self._timeout_s = timeout_s
        #: Streams that had rank holders in an earlier run of the coordinator (None before the first event), and until
        #: when these trainers may come back.
        self._awaited: frozenset[str] | None = None
        self._awaited_until_s = 0.0

    def begin(self, streams: Mapping[str, StreamTrainers], now_s: float) -> None:
        """Note at the first call which streams' trainers may come back; later calls change nothing."""
        if self._awaited is None:
            self._awaited = frozenset(name for name, stream in streams.items() if stream.succession.is_known())
            self._awaited_until_s = now_s + GONE_AFTER * self._timeout_s

    def cursor(self, attach: m.Attach, stream: StreamTrainers) -> Cursor:
        """Return the cursor the trainer asks for, or the beginning; the group changes only at the start of an epoch."""
        # Readers of an evaluation stream are independent, so each one's group is its own world.
        group = self._group or (0 if stream.view.evaluation else stream.group) or attach.world
        if attach.cursor is None:
            return Cursor(0, 0, group, stream.view.digest)
        said = attach.cursor
        return Cursor(said.epoch, said.number, said.group if said.number else group, said.plan_digest)

    def check_fits(
        self, attach: m.Attach, cursor: Cursor, batches: int | None, stream: StreamTrainers
    ) -> m.NotAttached | m.Wait | None:
        """Return a refusal if the stream cannot have this cursor or world, or a wait while its batches are counted."""
        if cursor.plan_digest != stream.view.digest:
            return refusals.another_plan(attach, cursor, stream.view.digest)
        if (misfit := refusals.world_misfit(attach, cursor, stream.view)) is not None:
            return misfit
        group = self._group or stream.group or cursor.group
        if (objection := refusals.objection(stream.view, {cursor.group, group})) is not None:
            return refusals.group_misfit(attach, objection)
        if batches is None:
            reason = f"counting the batches of epoch {cursor.epoch}"
            return m.Wait(serial=attach.serial, reason=reason, retry_ms=COUNTING_MS)
        if cursor.number > batches:
            return refusals.no_such_batch(attach, cursor, batches)
        return None

    def check_takes_nothing(
        self, attach: m.Attach, stream: StreamTrainers, now_s: float
    ) -> m.Wait | m.NotAttached | None:
        """Refuse a load test while somebody trains on the stream; let it wait if a trainer may still come back."""
        if attach.work != MEASURE or stream.view.evaluation:
            return None
        trainers = [other.attach for other in stream.trainers.values() if other.attach.work != MEASURE]
        if trainers:
            return refusals.trained_on(attach, trainers)
        if attach.stream in (self._awaited or ()) and now_s < self._awaited_until_s:
            reason = "trainers from before the coordinator's restart may come back"
            return m.Wait(serial=attach.serial, reason=reason, retry_ms=int(self._timeout_s * 250))
        return None

    def check_agrees(
        self, attach: m.Attach, cursor: Cursor, stream: StreamTrainers, now_s: float
    ) -> m.Wait | m.NotAttached | None:
        """Compare with the ranks that are alive; on a mismatch let it wait first, then refuse it.

        The other rank may be on its way out. Ranks that the trainer would take over, and ranks that have been silent
        for a heartbeat timeout, are not compared.
        """
        if stream.view.evaluation:
            return None
        mine = range(attach.rank, attach.rank + attach.replicas)
        for other in stream.trainers.values():
            if now_s - other.heard_s > self._timeout_s or overlap(mine, other.ranks):
                continue
            problem = compared(attach, cursor, other)
            if problem is not None:
                since_s = stream.waiting_since_s.setdefault(attach.incarnation, now_s)
                if now_s - since_s > _PATIENCE_TIMEOUTS * self._timeout_s:
                    return problem
                return m.Wait(
                    serial=attach.serial,
                    reason=f"expected {problem.expected}, got {problem.got}",
                    retry_ms=int(self._timeout_s * 250),
                )
        stream.waiting_since_s.pop(attach.incarnation, None)
        return None
