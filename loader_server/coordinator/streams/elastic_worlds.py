"""The elastic worlds of all streams, and their effects on attached trainers.

Rules: pure. When a new world begins, the attached trainers of the one before are forgotten, and so are the results they
reported. A trainer with a fixed rank and an elastic world never share a stream.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from loader_server.coordinator import objections
from loader_server.coordinator.events import GroupFixed, Instruction, Keep, ResultsKept, Send, WorldNamed
from loader_server.coordinator.streams.elastic_world import ElasticWorld, WorldStage
from shared.wire import messages as m

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from loader_server.coordinator.streams.stream_trainers import AttachedTrainer, StreamTrainers
    from shared.wire.message_parts import Cursor

__all__ = ["Worlds"]


class Worlds:
    """The elastic worlds of all streams; `group` is the job's, 0 if it sets none."""

    def __init__(self, job: str, streams: Mapping[str, StreamTrainers], *, group: int, timeout_s: float) -> None:
        self._job = job
        self._streams = streams
        self._group = group
        self._timeout_s = timeout_s
        #: By stream; one that never was elastic has none.
        self._worlds: dict[str, ElasticWorld] = {}

    # --- joining ---

    def join(self, peer: bytes, join: m.Join, now_s: float) -> list[Instruction]:
        """Handle a trainer's request for a place in its stream's world.

        Return a refusal if the job or stream does not fit, a wait while trainers with fixed ranks are attached, or else
        the instructions of the stream's world.
        """
        stream = self._streams.get(join.stream)
        problem = objections.join_misfit(join, self._job, self._streams, stream.view if stream is not None else None)
        if problem is not None or stream is None:
            return [Send(peer, problem)] if problem is not None else []
        fixed = [trainer.attach.name for trainer in stream.trainers.values() if trainer.attach.world_version is None]
        if fixed:
            gathering = m.Gathering(
                serial=join.serial,
                reason=f"trainers with fixed ranks are attached: {', '.join(sorted(fixed)[:8])}",
                behind=0,
                retry_ms=int(250 * self._timeout_s),
            )
            return [Send(peer, gathering)]
        return self._settle(join.stream, self._world(join.stream).join(peer, join, self._room(join.stream), now_s))

    def _world(self, stream: str) -> ElasticWorld:
        return self._worlds.setdefault(stream, ElasticWorld(stream, self._timeout_s))

    def _room(self, stream: str) -> int:
        """Return how many ranks a world may have: the job's group, else the stream's; no limit if neither is set."""
        return self._group or self._streams[stream].group or sys.maxsize

    def _settle(self, stream: str, out: list[Instruction]) -> list[Instruction]:
        """If a new world has just begun, clear what the previous one left on the stream; return all instructions.

        Then, if neither job nor stream has a group yet, the stream gets as many ranks as the largest world that the
        limits allow may have, and the fact of this leads the instructions. Without a new world, return `out` as it is.
        """
        begun = [order.fact for order in out if isinstance(order, Keep) and isinstance(order.fact, WorldNamed)]
        if not begun:
            return out
        trainers = self._streams[stream]
        for trainer in list(trainers.trainers.values()):
            if trainer.attach.world_version is not None:
                trainers.remove(trainer.attach.incarnation)
        # A part of a dead trainer must not stand in for one of the new world that has not come as far.
        trainers.results.begin_anew()
        # The largest world that the limits allow, so that later worlds have room to grow.
        if not trainers.group and not self._group:
            trainers.group = begun[-1].most * max(replicas for *_, replicas in begun[-1].members)
            out = [Keep(GroupFixed(stream, trainers.group)), *out]
        return out

    # --- attached trainers ---

    def check(self, attach: m.Attach, now_s: float) -> m.NotAttached | None:
        """Return a refusal if the rank is not the trainer's to have: in the elastic world, or beside one; else None."""
        world = self._worlds.get(attach.stream)
        if attach.world_version is not None:
            return world.check(attach, now_s) if world is not None else objections.world_changed(attach, 0, "")
        return objections.fixed_rank(attach, *world.limits) if world is not None and world.lives() else None

    def begin(self, peer: bytes, attach: m.Attach, cursor: Cursor, now_s: float) -> m.NotAttached | m.Wait | None:
        """Record where a member of an elastic world starts; let it wait until all members have reported the same start.

        Return None once they have, without a cursor or after the run's end, and a refusal if its world ends over
        different starts or it differs from rank 0 again. That it is a member is left to `check`; raise a KeyError if
        the stream never had a world.
        """
        return self._worlds[attach.stream].begin(peer, attach, cursor, now_s)

    def take_news(self, stream: str) -> list[Instruction]:
        """Return and clear what is to be done after a trainer has reported its start in a world of the stream.

        Raise a KeyError if the stream never had a world.
        """
        return self._worlds[stream].take_news()

    def hear(self, trainer: AttachedTrainer, now_s: float) -> list[Instruction]:
        """Note that an attached trainer lives; return the news for it if its world is over, otherwise an empty list."""
        world = self._worlds.get(trainer.attach.stream)
        over = world.hear(trainer.peer, trainer.attach.incarnation, now_s) if world is not None else None
        return [Send(trainer.peer, over)] if over is not None else []

    def leave(self, stream: str, incarnation: int, now_s: float) -> list[Instruction]:
        """Handle a trainer that detached; return the instructions of its stream's world, none if there is no world."""
        world = self._worlds.get(stream)
        return self._settle(stream, world.leave(incarnation, self._room(stream), now_s)) if world is not None else []

    def end_runs(self, done: Iterable[Instruction]) -> list[Instruction]:
        """End the world of each run whose final results are among `done`; return refusals for its waiting spares.

        Without such results, or without a world of that stream, nothing is done and [] returned.
        """
        # Not before all ranks are done: the first to leave would otherwise end the world of the others in their last
        # step.
        facts = [order.fact for order in done if isinstance(order, Keep) and isinstance(order.fact, ResultsKept)]
        ended = [fact.stream for fact in facts if fact.ended]
        return [order for stream in ended if stream in self._worlds for order in self._worlds[stream].end_run()]

    def tick(self, now_s: float) -> list[Instruction]:
        """Let each world drop silent trainers and begin anew if that is due; return the instructions that follow."""
        orders: list[Instruction] = []
        for stream, world in self._worlds.items():
            orders += self._settle(stream, world.tick(self._room(stream), now_s))
        return orders

    # --- the journal, and people ---

    def recover(self, fact: WorldNamed | ResultsKept) -> None:
        """Begin the world of a fact, or end the run of a world whose final results the fact has; ignore other results.

        Facts of these kinds come in the order in which they were kept.
        """
        if isinstance(fact, WorldNamed):
            self._world(fact.stream).recover(fact)
        elif fact.ended and fact.stream in self._worlds:
            self._worlds[fact.stream].end_run()

    def report_of(self, stream: str, now_s: float) -> dict[str, Any] | None:
        """Return the state of the stream's world; None if it never had one and nobody waits for one."""
        world = self._worlds.get(stream)
        if world is None or (world.stage is WorldStage.NONE and not world.lives()):
            return None
        return world.report(now_s)
