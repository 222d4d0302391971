"""What the coordinator knows and decides, without a socket, a disk or a clock.

One door: `handle(event, now_s) -> instructions`. Rules:
- What has to survive a crash leaves as `Keep(fact)`, in front of the messages that promise it; recovery feeds the
  facts back.
- A newer incarnation of a rank takes it over; the older one is told so and stops.
- Ranks of one world hold equal cursors. One that stands elsewhere waits a while, for the others may just be
  restarting, and is then refused, naming both. Evaluation streams promise nothing of the kind: anyone may read them,
  all at once.
- The group is the world's size when a stream first starts, unless the job file sets it, and kept from then on.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from loader_server.coordinator import refusals
from loader_server.coordinator.events import (
    Advanced,
    CulpritFound,
    Fact,
    GroupFixed,
    Instruction,
    Keep,
    Received,
    Send,
    StreamView,
    Ticked,
)
from shared import messages as m
from shared.hashing import digest64

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["CoordinatorState", "Counts"]

#: A rank that disagrees with the others is asked to wait for so many heartbeat timeouts before it is refused.
_PATIENCE_TIMEOUTS = 2

#: A worker or trainer that has been silent for so many heartbeat timeouts is no member any more.
_GONE_AFTER = 5

#: No more samples than one message names are known to kill decoders; long before that the data is at fault.
_MOST_CULPRITS = 2**13


@dataclass(slots=True, kw_only=True)
class _Worker:
    peer: bytes
    address: m.WorkerAddress
    heard_s: float
    beat: m.Beat | None = None


@dataclass(slots=True, kw_only=True)
class _Seat:
    """A trainer's claim of ranks."""

    peer: bytes
    attach: m.Attach
    cursor: m.Cursor
    #: Whether the trainer has said where it stands, rather than just come.
    stated: bool
    heard_s: float
    progress: tuple[int, int]

    def ranks(self) -> range:
        return range(self.attach.rank, self.attach.rank + self.attach.replicas)


@dataclass(slots=True)
class Counts:
    """What happened so far."""

    attaches: int = 0
    refusals: int = 0
    superseded: int = 0
    workers_gone: int = 0


@dataclass(slots=True)
class _Stream:
    view: StreamView
    group: int = 0
    progress: tuple[int, int] = (0, 0)
    seats: dict[int, _Seat] = field(default_factory=dict)
    #: Trainers that disagree with the others, since when.
    waiting_since_s: dict[int, float] = field(default_factory=dict)
    #: Incarnations that a newer one has taken over from; they may not come back.
    superseded: set[int] = field(default_factory=set)

    def holder(self, rank: int) -> _Seat | None:
        return next((seat for seat in self.seats.values() if rank in seat.ranks()), None)

    def seat_of(self, incarnation: int) -> _Seat | None:
        return next((seat for seat in self.seats.values() if seat.attach.incarnation == incarnation), None)


class CoordinatorState:
    """The state behind the door."""

    def __init__(  # noqa: PLR0913 - what a job is, each by name
        self,
        job: str,
        streams: dict[str, StreamView],
        *,
        builder: str,
        group: int,
        heartbeat_timeout_s: float,
        first_members: int = 1,
        max_bad: float = 0.5,
    ) -> None:
        self._job = job
        self._streams = {name: _Stream(view) for name, view in streams.items()}
        self._builder = builder
        self._group_setting = group
        self._timeout_s = heartbeat_timeout_s
        self._max_bad = max_bad
        self._workers: dict[str, _Worker] = {}
        #: Version of the list of workers; never the same for two lists, whichever start of the coordinator made them.
        self._members = first_members
        #: What was said of each: by stream and identity.
        self._culprits: dict[tuple[str, str], str] = {}
        self._out: list[Instruction] = []
        self.counts = Counts()

    def handle(self, event: Received | Ticked, now_s: float) -> list[Instruction]:
        """Take in a fact; what is to be done now, in order."""
        if isinstance(event, Ticked):
            self._tick(now_s)
        else:
            door = self._doors.get(type(event.message))
            if door is not None:
                door(self, event.peer, event.message, now_s)
        out, self._out = self._out, []
        return out

    def recover(self, fact: Fact) -> None:
        """A fact from the journal, at the start."""
        if isinstance(fact, CulpritFound):
            self._culprits[fact.stream, fact.identity] = fact.ends
        elif fact.stream in self._streams and isinstance(fact, GroupFixed):
            self._streams[fact.stream].group = fact.group
        elif fact.stream in self._streams and isinstance(fact, Advanced):
            self._streams[fact.stream].progress = (fact.epoch, fact.number)

    def _keep(self, fact: Fact) -> None:
        self._out.append(Keep(fact))
        self.recover(fact)

    # --- trainers ---

    def _attach(self, peer: bytes, attach: m.Attach, now_s: float) -> None:
        stream = self._streams.get(attach.stream)
        problem: m.Refused | m.Wait | None = self._stranger(attach, stream)
        if problem is None:
            assert stream is not None
            cursor = self._cursor(attach, stream)
            problem = self._unfit(attach, cursor, stream) or self._disagreement(attach, cursor, stream, now_s)
        if problem is not None:
            self.counts.refusals += isinstance(problem, m.Refused)
            self._out.append(Send(peer, _named(attach, problem)))
            return
        assert stream is not None
        self._seat(peer, attach, cursor, now_s)

    def _stranger(self, attach: m.Attach, stream: _Stream | None) -> m.Refused | None:
        if attach.job not in ("", self._job):
            return refusals.another_job(attach, self._job)
        if stream is None:
            return refusals.no_such_stream(attach, self._streams)
        if attach.rank + attach.replicas > attach.world:
            return refusals.no_such_rank(attach)
        if attach.incarnation in stream.superseded:
            holder = stream.holder(attach.rank)
            return refusals.superseded(attach.rank, holder.attach if holder is not None else None)
        return None

    def _cursor(self, attach: m.Attach, stream: _Stream) -> m.Cursor:
        """Where the trainer starts: what it says, or the beginning; a group changes only where an epoch starts."""
        # An evaluation stream has no run that a later reader has to fit into: its group is each reader's own world.
        group = self._group_setting or (0 if stream.view.evaluation else stream.group) or attach.world
        if attach.cursor is None:
            return m.Cursor(0, 0, group, stream.view.digest)
        said = attach.cursor
        return m.Cursor(said.epoch, said.number, said.group if said.number else group, said.plan_digest)

    def _unfit(self, attach: m.Attach, cursor: m.Cursor, stream: _Stream) -> m.Refused | None:
        if cursor.plan_digest != stream.view.digest:
            return refusals.another_plan(cursor, stream.view.digest)
        if attach.world > cursor.group:
            return refusals.too_large_a_world(attach, cursor)
        objections = map(stream.view.objection, {cursor.group, self._group_setting or stream.group or cursor.group})
        if (objection := next(filter(None, objections), None)) is not None:
            return refusals.group_misfit(objection)
        batches = stream.view.batches(cursor.epoch, cursor.group)
        if cursor.number > batches:
            return refusals.no_such_batch(cursor, batches)
        return None

    def _disagreement(
        self, attach: m.Attach, cursor: m.Cursor, stream: _Stream, now_s: float
    ) -> m.Wait | m.Refused | None:
        """Another live rank is of another world or stands elsewhere: wait first, for it may be on its way out."""
        if stream.view.evaluation:
            return None
        mine = range(attach.rank, attach.rank + attach.replicas)
        for other in list(stream.seats.values()):
            if now_s - other.heard_s > self._timeout_s or set(mine) & set(other.ranks()):
                continue
            problem = _compared(attach, cursor, other)
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

    def _seat(self, peer: bytes, attach: m.Attach, cursor: m.Cursor, now_s: float) -> None:
        stream = self._streams[attach.stream]
        if stream.view.evaluation:
            stream.group = cursor.group
        else:
            if not stream.group and not self._group_setting:
                self._keep(GroupFixed(attach.stream, cursor.group))
            self._take_over(stream, attach)
        key = attach.incarnation if stream.view.evaluation else attach.rank
        stream.seats[key] = _Seat(
            peer=peer,
            attach=attach,
            cursor=cursor,
            stated=attach.cursor is not None,
            heard_s=now_s,
            progress=(cursor.epoch, cursor.number),
        )
        self.counts.attaches += 1
        self._out.append(Send(peer, self._attached(attach, cursor, stream)))

    def _take_over(self, stream: _Stream, attach: m.Attach) -> None:
        """Whoever else has one of these ranks is told to stop, and may not come back."""
        mine = set(range(attach.rank, attach.rank + attach.replicas))
        for rank, other in list(stream.seats.items()):
            if other.attach.incarnation == attach.incarnation:
                del stream.seats[rank]
            elif mine & set(other.ranks()):
                del stream.seats[rank]
                stream.superseded.add(other.attach.incarnation)
                self.counts.superseded += 1
                self._out.append(Send(other.peer, refusals.superseded(other.attach.rank, attach)))

    def _attached(self, attach: m.Attach, cursor: m.Cursor, stream: _Stream) -> m.Attached:
        next_group = self._group_setting or (cursor.group if stream.view.evaluation else stream.group)
        view = stream.view
        return m.Attached(
            serial=attach.serial,
            job=self._job,
            stream=attach.stream,
            evaluation=view.evaluation,
            cursor=cursor,
            next_group=next_group,
            batches=view.batches(cursor.epoch, cursor.group),
            most_batches=view.most_batches(max(next_group, cursor.group)),
            fields=view.fields,
            shapes=view.shapes,
            heartbeat_timeout_ms=int(1000 * self._timeout_s),
            max_bad=self._max_bad,
            members=self._members,
            workers=self._addresses(),
        )

    def _progress(self, peer: bytes, progress: m.Progress, now_s: float) -> None:
        stream = self._streams.get(progress.stream)
        seat = stream.seat_of(progress.incarnation) if stream is not None else None
        if stream is None or seat is None:
            self._out.append(Send(peer, self._unknown_trainer(progress, stream)))
            return
        seat.peer, seat.heard_s, seat.progress = peer, now_s, (progress.epoch, progress.number)
        self._advance(progress.stream, stream)
        self._out.append(Send(peer, self._list() if progress.members != self._members else m.Noted()))

    def _unknown_trainer(self, progress: m.Progress, stream: _Stream | None) -> m.Refused:
        holder = stream.holder(progress.rank) if stream is not None and not stream.view.evaluation else None
        if stream is not None and (holder is not None or progress.incarnation in stream.superseded):
            return refusals.superseded(progress.rank, holder.attach if holder is not None else None)
        return refusals.unknown_trainer()

    def _advance(self, name: str, stream: _Stream) -> None:
        """A stream is as far as its last rank."""
        if not stream.view.evaluation:
            furthest = min(seat.progress for seat in stream.seats.values())
            if furthest != stream.progress:
                self._keep(Advanced(name, *furthest))

    def _detach(self, _peer: bytes, detach: m.Detach, _now_s: float) -> None:
        stream = self._streams.get(detach.stream)
        if stream is not None:
            stream.seats = {
                key: seat for key, seat in stream.seats.items() if seat.attach.incarnation != detach.incarnation
            }

    # --- workers ---

    def _register(self, peer: bytes, register: m.Register, now_s: float) -> None:
        if register.builder != self._builder:
            self.counts.refusals += 1
            self._out.append(Send(peer, refusals.another_builder(register, self._builder)))
            return
        address = m.WorkerAddress(
            register.worker, register.incarnation, register.endpoint, register.boot_id, register.uid
        )
        self._workers[register.worker] = _Worker(peer=peer, address=address, heard_s=now_s)
        self._out.append(Send(peer, m.Registered(heartbeat_timeout_ms=int(1000 * self._timeout_s))))
        self._out.extend(Send(peer, self._culprits_of(stream)) for stream in sorted({one for one, _ in self._culprits}))
        self._tell_members()

    def _beat(self, peer: bytes, beat: m.Beat, now_s: float) -> None:
        worker = self._workers.get(beat.worker)
        if worker is None or worker.address.incarnation != beat.incarnation:
            self._out.append(Send(peer, refusals.unknown_worker()))
            return
        worker.heard_s, worker.beat = now_s, beat

    def _culprit(self, _peer: bytes, message: m.Culprit, _now_s: float) -> None:
        key = (message.stream, message.identity)
        if message.stream in self._streams and key not in self._culprits and len(self._culprits) < _MOST_CULPRITS:
            self._keep(CulpritFound(*key, message.ends))
            for worker in self._workers.values():
                self._out.append(Send(worker.peer, self._culprits_of(message.stream)))

    def _leave(self, _peer: bytes, leave: m.Leave, _now_s: float) -> None:
        worker = self._workers.get(leave.worker)
        if worker is not None and worker.address.incarnation == leave.incarnation:
            del self._workers[leave.worker]
            self._tell_members()

    def _tell_members(self) -> None:
        self._members += 1
        members = self._list()
        for stream in self._streams.values():
            self._out.extend(Send(seat.peer, members) for seat in stream.seats.values())

    def _addresses(self) -> tuple[m.WorkerAddress, ...]:
        return tuple(worker.address for _, worker in sorted(self._workers.items()))

    def _list(self) -> m.Members:
        return m.Members(version=self._members, workers=self._addresses())

    def _culprits_of(self, stream: str) -> m.Culprits:
        keys = (digest64(identity.encode()) for name, identity in self._culprits if name == stream)
        return m.Culprits(stream=stream, keys=tuple(sorted(keys)))

    # --- time, and questions ---

    def _tick(self, now_s: float) -> None:
        gone_s = _GONE_AFTER * self._timeout_s
        gone = [name for name, worker in self._workers.items() if now_s - worker.heard_s > gone_s]
        for name in gone:
            del self._workers[name]
        self.counts.workers_gone += len(gone)
        if gone:
            self._tell_members()
        for stream in self._streams.values():
            stream.seats = {key: seat for key, seat in stream.seats.items() if now_s - seat.heard_s <= gone_s}
            since = stream.waiting_since_s
            stream.waiting_since_s = {one: at_s for one, at_s in since.items() if now_s - at_s <= gone_s}

    def _status(self, peer: bytes, _query: m.StatusQuery, now_s: float) -> None:
        self._out.append(Send(peer, m.Status(report=_json(self.report(now_s)))))

    def report(self, now_s: float) -> dict[str, Any]:
        """How things stand, for people and scripts."""
        return {
            "job": self._job,
            "streams": {name: self._stream_report(stream, now_s) for name, stream in self._streams.items()},
            "workers": [self._worker_report(worker, now_s) for _, worker in sorted(self._workers.items())],
            "culprits": [
                {"stream": stream, "identity": identity, "ends": ends}
                for (stream, identity), ends in sorted(self._culprits.items())
            ],
            "attaches": self.counts.attaches,
            "refusals": self.counts.refusals,
        }

    def _stream_report(self, stream: _Stream, now_s: float) -> dict[str, Any]:
        epoch, number = stream.progress
        group = self._group_setting or stream.group
        return {
            "evaluation": stream.view.evaluation,
            "group": group,
            "epoch": epoch,
            "number": number,
            "batches": stream.view.batches(epoch, group) if group else None,
            "plan_digest": stream.view.digest,
            "trainers": [
                {
                    "rank": seat.attach.rank,
                    "replicas": seat.attach.replicas,
                    "world": seat.attach.world,
                    "name": seat.attach.name,
                    "epoch": seat.progress[0],
                    "number": seat.progress[1],
                    "silent_s": round(now_s - seat.heard_s, 1),
                }
                for seat in stream.seats.values()
            ],
        }

    def _worker_report(self, worker: _Worker, now_s: float) -> dict[str, Any]:
        beat = worker.beat
        return {
            "name": worker.address.worker,
            "endpoint": worker.address.endpoint,
            "silent_s": round(now_s - worker.heard_s, 1),
            "waiting": beat.waiting if beat else 0,
            "building": beat.building if beat else 0,
            "built": beat.built if beat else 0,
            "masked": beat.masked if beat else 0,
        }

    _doors: ClassVar[dict[type[m.Message], Callable[..., None]]] = {
        m.Attach: _attach,
        m.Progress: _progress,
        m.Detach: _detach,
        m.Register: _register,
        m.Beat: _beat,
        m.Culprit: _culprit,
        m.Leave: _leave,
        m.StatusQuery: _status,
    }


def _compared(attach: m.Attach, cursor: m.Cursor, other: _Seat) -> m.Refused | None:
    """Two live ranks of one stream: the same world, and the same cursor once both have said it."""
    if attach.world != other.attach.world:
        return refusals.another_world(attach, other.attach)
    if attach.cursor is None or not other.stated:
        return None
    theirs = other.cursor
    if (cursor.epoch, cursor.number) != (theirs.epoch, theirs.number):
        return refusals.another_cursor(attach, cursor, other.attach, theirs)
    return None


def _named(attach: m.Attach, problem: m.Refused | m.Wait) -> m.NotAttached | m.Wait:
    """An answer names its request."""
    if isinstance(problem, m.Wait):
        return problem
    return m.NotAttached(
        serial=attach.serial,
        code=problem.code,
        expected=problem.expected,
        got=problem.got,
        remedy=problem.remedy,
    )


def _json(report: dict[str, Any]) -> str:
    return json.dumps(report)
