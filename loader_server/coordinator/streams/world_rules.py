"""Rules for attaching in lockstep: the cursor fits the plan, the world fits the group, and ranks agree.

Rules: pure; the only state is since when each rank has been waiting, and when the coordinator began to hear. Ranks of
one world hold equal cursors; a rank with another cursor waits a while, because the others may just be restarting, and
is then refused. A load test takes no rank from anybody who trains.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from loader_server.coordinator import objections
from loader_server.coordinator.streams.stream_trainers import wait_for_count
from loader_server.coordinator.streams.succession import overlap
from shared.silence import GONE_AFTER
from shared.wire import messages as m
from shared.wire.message_parts import Cursor
from shared.wire.topics.work_messages import MEASURE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from loader_server.coordinator.events import StreamView
    from loader_server.coordinator.streams.stream_trainers import AttachedTrainer, StreamTrainers

__all__ = ["WorldRules", "batch_misfit", "plan_misfit"]

#: How long a rank that disagrees with the others may wait before it is refused, in heartbeat timeouts.
_PATIENCE_TIMEOUTS = 2


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
        """Return the cursor the trainer asks for, or the beginning; the group changes only at the start of an epoch.

        There it becomes the job's group, else the stream's unless the stream is for evaluation, else the trainer's
        world.
        """
        # Readers of an evaluation stream are independent, so each one's group is its own world.
        group = self._group or (0 if stream.view.evaluation else stream.group) or attach.world
        asked = attach.cursor or Cursor(0, 0, group, stream.view.digest)
        return asked if asked.number else replace(asked, group=group)

    def check_fits(
        self, attach: m.Attach, cursor: Cursor, batches: int | None, stream: StreamTrainers
    ) -> m.NotAttached | m.Wait | None:
        """Return a refusal if the stream cannot have this cursor or world, or a wait while its batches are counted.

        Return None if cursor and world fit.
        """
        groups = {cursor.group, self._group or stream.group or cursor.group}
        misfit = plan_misfit(attach, cursor, stream.view, groups, carries=stream.view.carries)
        return misfit or batch_misfit(attach, cursor, batches)

    def check_takes_nothing(
        self, attach: m.Attach, stream: StreamTrainers, now_s: float
    ) -> m.Wait | m.NotAttached | None:
        """Refuse a load test while somebody trains on the stream; let it wait if a trainer may still come back.

        Return None otherwise, for any other work, and on an evaluation stream.
        """
        if attach.work != MEASURE or stream.view.evaluation:
            return None
        trainers = [other.attach for other in stream.trainers.values() if other.attach.work != MEASURE]
        if trainers:
            return objections.trained_on(attach, trainers)
        # Attached trainers are not in the journal: after a restart those who train here have not been heard yet.
        if attach.stream in (self._awaited or ()) and now_s < self._awaited_until_s:
            reason = "trainers from before the coordinator's restart may come back"
            return m.Wait(serial=attach.serial, reason=reason, retry_ms=int(self._timeout_s * 250))
        return None

    def check_agrees(
        self, attach: m.Attach, cursor: Cursor, stream: StreamTrainers, now_s: float
    ) -> m.Wait | m.NotAttached | None:
        """Compare with the ranks that are alive; on a mismatch let it wait first, then refuse it.

        Return None if world and cursor agree, and on an evaluation stream. The other rank may be on its way out. Ranks
        that the trainer would take over, and ranks that have been silent for a heartbeat timeout, are not compared.
        """
        if stream.view.evaluation:
            return None
        ranks = range(attach.rank, attach.rank + attach.replicas)
        heard = (other for other in stream.trainers.values() if now_s - other.heard_s <= self._timeout_s)
        problems = (_compared(attach, cursor, other) for other in heard if not overlap(ranks, other.ranks))
        problem = next(filter(None, problems), None)
        if problem is not None:
            since_s = stream.waiting_since_s.setdefault(attach.incarnation, now_s)
            if now_s - since_s > _PATIENCE_TIMEOUTS * self._timeout_s:
                return problem
            reason = f"expected {problem.expected}, got {problem.got}"
            return m.Wait(serial=attach.serial, reason=reason, retry_ms=int(self._timeout_s * 250))
        stream.waiting_since_s.pop(attach.incarnation, None)
        return None


def _compared(attach: m.Attach, cursor: Cursor, other: AttachedTrainer) -> m.NotAttached | None:
    """Return a refusal if two ranks disagree on the world, or on the cursor if both have stated one; else None.

    Whether the other is alive, the caller has to check.
    """
    if attach.world != other.attach.world:
        return objections.another_world(attach, other.attach)
    # A rank that came without a cursor has not stated where it is.
    if attach.cursor is None or other.attach.cursor is None:
        return None
    theirs = other.cursor
    if (cursor.epoch, cursor.number) != (theirs.epoch, theirs.number):
        return objections.another_cursor(attach, cursor, other.attach, theirs)
    return None


def plan_misfit(
    attach: m.Attach, cursor: Cursor, view: StreamView, groups: set[int], *, carries: bool
) -> m.NotAttached | None:
    """Return why the plan does not have this cursor, or one of these groups, for this world; None if it does.

    With `carries` each rank has to get the same rows from batch to batch, so the world has to be the group.
    """
    if cursor.plan_digest != view.digest:
        return objections.another_plan(attach, cursor, view.digest)
    misfit = objections.world_misfit(attach, cursor, carries=carries)
    if misfit is not None:
        return misfit
    objection = next(filter(None, map(view.objection, sorted(groups))), None)
    return objections.group_misfit(attach, objection) if objection is not None else None


def batch_misfit(attach: m.Attach, cursor: Cursor, batches: int | None) -> m.NotAttached | m.Wait | None:
    """Return a refusal of a cursor past its epoch's end, a wait while the epoch's batches are counted, else None."""
    if batches is None:
        return wait_for_count(attach, cursor.epoch)
    return objections.no_such_batch(attach, cursor, batches) if cursor.number > batches else None
