"""The verifiers of a job's streams: readers of batches that are not trainers.

Rules: pure. A verifier holds no rank, takes part in no world, leases nothing and moves no cursor. It is kept apart from
the trainers, so whatever counts, waits for or ends trainers never sees it. It may read any epoch, in groups of the size
that trainers get. The journal keeps nothing about it. Where batches are built shard by shard it must not disturb: a
worker would restart a shard for it that it is building for a trainer. A connection speaks for one verifier.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from loader_server.coordinator import objections
from loader_server.coordinator.events import Instruction, Send
from loader_server.coordinator.streams.stream_trainers import AttachedReader
from loader_server.coordinator.streams.world_rules import batch_misfit, plan_misfit
from shared.wire import messages as m
from shared.wire.message_parts import Cursor
from shared.wire.refusing import not_attached

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from loader_server.coordinator.streams.stream_trainers import StreamTrainers
    from shared.wire import messages as m

__all__ = ["Verifiers"]


class Verifiers:
    """The verifiers of all streams.

    `grant` makes the answer to a verifier that is admitted, and `group` is the job's, 0 if it sets none.
    """

    def __init__(
        self,
        job: str,
        streams: Mapping[str, StreamTrainers],
        grant: Callable[[AttachedReader], m.Attached],
        *,
        group: int,
    ) -> None:
        self._job = job
        self._streams = streams
        self._grant = grant
        self._group = group
        #: By incarnation.
        self._attached: dict[int, AttachedReader] = {}

    def __len__(self) -> int:
        return len(self._attached)

    def attach(self, peer: bytes, attach: m.Attach, now_s: float) -> m.Attached | m.NotAttached | m.Wait | None:
        """Admit a verifier, or return a refusal or a wait; None if the request is older than the last one.

        Refused are another job, a stream that the job lacks, a cursor, group or world that does not fit the plan, and a
        stream that is built shard by shard while a trainer is attached. It waits while the epoch's batches are counted.
        """
        known = self._attached.get(attach.incarnation)
        if known is not None and attach.serial < known.attach.serial:
            return None
        if attach.job not in ("", self._job):
            return objections.another_job(attach, self._job)
        if attach.stream not in self._streams:
            return objections.no_such_stream(attach, self._streams)
        stream = self._streams[attach.stream]
        cursor = self._cursor(attach, stream)
        misfit = plan_misfit(attach, cursor, stream.view, {cursor.group}, carries=False)
        # Workers would restart for it the shards that they build for a trainer.
        if misfit is None and stream.view.producers and stream.trainers:
            misfit = not_attached(attach.serial, objections.gives_way(attach))
        return misfit or self._admit(peer, attach, cursor, now_s)

    def _admit(
        self, peer: bytes, attach: m.Attach, cursor: Cursor, now_s: float
    ) -> m.Attached | m.NotAttached | m.Wait:
        batches = self._streams[attach.stream].view.batches(cursor.epoch, cursor.group)
        misfit = batch_misfit(attach, cursor, batches)
        if misfit is not None:
            return misfit
        assert batches is not None
        # A connection speaks for one verifier: another one on it is gone.
        self._forget(lambda other: other.peer == peer)
        verifier = AttachedReader(
            peer=peer,
            attach=attach,
            cursor=cursor,
            batches=batches,
            heard_s=now_s,
            read=(cursor.epoch, cursor.number),
        )
        self._attached[attach.incarnation] = verifier
        return self._grant(verifier)

    def _cursor(self, attach: m.Attach, stream: StreamTrainers) -> Cursor:
        """Return where it reads from, in the group that trainers get, or in its own if that is not known yet.

        A cursor that is not at the start of an epoch keeps its group; without a cursor it reads from the beginning.
        """
        asked = attach.cursor or Cursor(0, 0, 1, stream.view.digest)
        if asked.number:
            return asked
        # In queue mode a batch is a group of its own; an evaluation stream has no fixed group.
        usual = 1 if stream.view.leases is not None else 0 if stream.view.evaluation else stream.group
        return Cursor(asked.epoch, 0, self._group or usual or asked.group, asked.plan_digest)

    def hear(self, peer: bytes, progress: m.Progress, now_s: float) -> bool:
        """Record a verifier's heartbeat and position; return False if the sender is no verifier of the stream."""
        verifier = self._attached.get(progress.incarnation)
        if verifier is None or verifier.attach.stream != progress.stream:
            return False
        verifier.peer, verifier.heard_s = peer, now_s
        verifier.read = (progress.read_epoch, progress.read_number)
        return True

    def leave(self, stream: str, incarnation: int) -> None:
        """Forget a verifier that detached; do nothing if the stream has no such verifier."""
        self._forget(lambda verifier: (verifier.attach.stream, verifier.attach.incarnation) == (stream, incarnation))

    def remove_silent(self, since_s: float) -> None:
        """Forget verifiers that were last heard before this time."""
        self._forget(lambda verifier: verifier.heard_s < since_s)

    def _forget(self, is_gone: Callable[[AttachedReader], bool]) -> None:
        self._attached = {key: verifier for key, verifier in self._attached.items() if not is_gone(verifier)}

    def give_way(self, stream: str) -> Iterator[Instruction]:
        """Refuse and forget the verifiers of a stream that is built shard by shard, as a trainer came.

        Yield the refusals, nothing for any other stream; each is forgotten once its refusal was taken.
        """
        if self._streams[stream].view.producers:
            for verifier in self._of(stream):
                yield Send(verifier.peer, objections.gives_way(verifier.attach))
                self.leave(stream, verifier.attach.incarnation)

    def send_all(self, news: Callable[[str], m.Message]) -> Iterator[Instruction]:
        """Yield the news of its stream for each verifier."""
        return (Send(verifier.peer, news(verifier.attach.stream)) for verifier in self._attached.values())

    def _of(self, stream: str) -> list[AttachedReader]:
        return [verifier for verifier in self._attached.values() if verifier.attach.stream == stream]

    def report_of(self, stream: str, now_s: float) -> list[dict[str, Any]]:
        """Return the verifiers of a stream, if any, by name, and how far each has read, for people and scripts."""
        return [
            {
                "name": verifier.attach.name,
                "read_epoch": verifier.read[0],
                "read_number": verifier.read[1],
                "batches": verifier.batches,
                "silent_s": round(now_s - verifier.heard_s, 1),
            }
            for verifier in sorted(self._of(stream), key=lambda verifier: verifier.attach.name)
        ]
