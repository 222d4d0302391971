"""The verifiers of a job's streams: readers of batches that are not trainers.

Rules: pure. A verifier holds no rank, takes part in no world, leases nothing and moves no cursor. It is kept apart from
the trainers, so whatever counts, waits for or ends trainers never sees it. It may read any epoch, in groups of the size
that trainers get. The journal keeps nothing about it. Where batches are built shard by shard it must not disturb: a
worker would restart a shard for it that it is building for a trainer. A connection speaks for one verifier.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from loader_server.coordinator import refusals
from loader_server.coordinator.events import Instruction, Send
from loader_server.coordinator.streams.world_rules import COUNTING_MS
from shared.wire import messages as m
from shared.wire.message_parts import Cursor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from loader_server.coordinator.streams.stream_trainers import StreamTrainers

__all__ = ["AttachedVerifier", "Verifiers"]


@dataclass(slots=True, kw_only=True)
class AttachedVerifier:
    """An attached verifier, where it reads from, and how far it has come."""

    peer: bytes
    attach: m.Attach
    cursor: Cursor
    #: Batches in the cursor's epoch.
    batches: int
    heard_s: float
    read: tuple[int, int]
    #: It claims no rank.
    tenure: None = None


class Verifiers:
    """The verifiers of all streams.

    `grant` makes the answer to a verifier that is admitted, and `group` is the job's, 0 if it sets none.
    """

    def __init__(
        self,
        job: str,
        streams: Mapping[str, StreamTrainers],
        grant: Callable[[AttachedVerifier], m.Attached],
        *,
        group: int,
    ) -> None:
        self._job = job
        self._streams = streams
        self._grant = grant
        self._group = group
        self._attached: dict[int, AttachedVerifier] = {}

    def __len__(self) -> int:
        return len(self._attached)

    def attach(self, peer: bytes, attach: m.Attach, now_s: float) -> m.Attached | m.NotAttached | m.Wait | None:
        """Admit a verifier, or return a refusal or a wait; None if the request is older than the last one."""
        known = self._attached.get(attach.incarnation)
        if known is not None and attach.serial < known.attach.serial:
            return None
        if attach.job not in ("", self._job):
            return refusals.another_job(attach, self._job)
        if attach.stream not in self._streams:
            return refusals.no_such_stream(attach, self._streams)
        stream = self._streams[attach.stream]
        cursor = self._cursor(attach, stream)
        return _objection(attach, cursor, stream) or self._admit(peer, attach, cursor, now_s)

    def _admit(
        self, peer: bytes, attach: m.Attach, cursor: Cursor, now_s: float
    ) -> m.Attached | m.NotAttached | m.Wait:
        batches = self._streams[attach.stream].view.batches(cursor.epoch, cursor.group)
        if batches is None:
            reason = f"counting the batches of epoch {cursor.epoch}"
            return m.Wait(serial=attach.serial, reason=reason, retry_ms=COUNTING_MS)
        if cursor.number > batches:
            return refusals.no_such_batch(attach, cursor, batches)
        self._forget(lambda other: other.peer == peer)
        verifier = AttachedVerifier(
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
        """Return where it reads from, in the group that trainers get, or in its own if that is not known yet."""
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
        """Forget a verifier that detached."""
        self._forget(lambda verifier: (verifier.attach.stream, verifier.attach.incarnation) == (stream, incarnation))

    def remove_silent(self, since_s: float) -> None:
        """Forget verifiers that were last heard before this time."""
        self._forget(lambda verifier: verifier.heard_s < since_s)

    def _forget(self, is_gone: Callable[[AttachedVerifier], bool]) -> None:
        self._attached = {key: verifier for key, verifier in self._attached.items() if not is_gone(verifier)}

    def give_way(self, stream: str) -> Iterator[Instruction]:
        """Yield refusals for the verifiers of a stream that is built shard by shard, as a trainer came."""
        if self._streams[stream].view.producers:
            for verifier in self._of(stream):
                yield Send(verifier.peer, refusals.gives_way(verifier.attach))
                self.leave(stream, verifier.attach.incarnation)

    def tell(self, news: Callable[[str], m.Message]) -> Iterator[Instruction]:
        """Yield the news of its stream for each verifier."""
        return (Send(verifier.peer, news(verifier.attach.stream)) for verifier in self._attached.values())

    def _of(self, stream: str) -> list[AttachedVerifier]:
        return [verifier for verifier in self._attached.values() if verifier.attach.stream == stream]

    def report_of(self, stream: str, now_s: float) -> list[dict[str, Any]]:
        """Return the verifiers of a stream and how far each has read, for people and scripts."""
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


def _objection(attach: m.Attach, cursor: Cursor, stream: StreamTrainers) -> m.NotAttached | None:
    if cursor.plan_digest != stream.view.digest:
        return refusals.another_plan(attach, cursor, stream.view.digest)
    if attach.world > cursor.group:
        return refusals.too_large_a_world(attach, cursor)
    if (objection := refusals.objection(stream.view, {cursor.group})) is not None:
        return refusals.group_misfit(attach, objection)
    if stream.view.producers and stream.trainers:
        return refusals.shards_in_use(attach)
    return None
