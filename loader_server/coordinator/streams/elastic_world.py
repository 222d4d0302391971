"""The elastic world of one stream: trainers that wait for a place, its members, and when the next world begins.

Rules: pure. A world is formed from waiting trainers, written to the journal before anyone hears of it, and over as soon
as its members change. The next one begins when all members of the last have left it or are gone: by then, whatever the
chief commits as it leaves is there for the others to restore. Ranks keep their order, so the chief stays while it
lives. Nobody starts before all members have reported the same cursor. Messages from trainers of another world count for
nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from loader_server.coordinator import objections
from loader_server.coordinator.events import Instruction, Keep, Send, WorldNamed
from shared.silence import GONE_AFTER
from shared.wire import messages as m

if TYPE_CHECKING:
    from shared.wire.message_parts import Cursor

__all__ = ["ElasticWorld", "WorldMember", "WorldStage"]

#: Waits, in heartbeat timeouts: of a first world for more trainers once it has enough; of a newcomer, so that several
#: are admitted at once; for members of a world that is over to leave it; and then for them to join the next.
_SETTLING, _NEWCOMER_WAITS, _LEAVING, _COMING_BACK = 4, 2, 60, 2


class WorldStage(Enum):
    """Stage of a world's life."""

    NONE = "gathering"
    TRAINING = "training"
    OVER = "changing"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class WorldMember:
    """A trainer with a place: `member` is the process, `incarnation` its feed in this world."""

    member: int
    incarnation: int
    name: str
    replicas: int


@dataclass(slots=True)
class _Joiner:
    """A trainer that waits for a place: its last request, since when it waits, and when it last asked."""

    join: m.Join
    peer: bytes
    since_s: float
    heard_s: float


class ElasticWorld:
    """The world of one stream, and those who wait for a place.

    `version` is that of the last world; 0 if there was none.
    """

    def __init__(self, stream: str, timeout_s: float) -> None:
        self.stage = WorldStage.NONE
        self.version = 0
        #: In rank order.
        self.members: tuple[WorldMember, ...] = ()
        #: The least and the largest number of trainers of a world.
        self.limits = (1, 1)
        #: Why the last world ended.
        self.reason = ""
        #: Number of worlds that ended before their run did.
        self.changes = 0
        self._stream = stream
        self._timeout_s = timeout_s
        #: By member.
        self._joiners: dict[int, _Joiner] = {}
        #: By member: the serial of its last request.
        self._serials: dict[int, int] = {}
        #: By incarnation: each member's connection, when it was last heard, and where it starts.
        self._peers: dict[int, bytes] = {}
        self._heard_s: dict[int, float] = {}
        self._starts: dict[int, tuple[int, int]] = {}
        #: By incarnation: until when to wait for each member of a world that is over.
        self._awaited_s: dict[int, float] = {}
        #: Since when there are enough joiners for a world; None while there are not.
        self._enough_s: float | None = None
        #: Whether the members of the last world restored different checkpoints.
        self._disagreed = False
        self._out: list[Instruction] = []

    # --- queries ---

    def member_of(self, incarnation: int) -> WorldMember | None:
        """Return the member with this incarnation; None if there is none."""
        return next((member for member in self.members if member.incarnation == incarnation), None)

    def lives(self) -> bool:
        """Return whether a world trains, or anybody waits for a place or is expected to leave or to come back."""
        return self.stage is WorldStage.TRAINING or bool(self._awaited_s or self._joiners)

    def rank_of(self, member: WorldMember) -> int:
        """Return the member's first rank; raise a ValueError if it is not a member of this world."""
        return sum(before.replicas for before in self.members[: self.members.index(member)])

    @property
    def ranks(self) -> int:
        """Return how many ranks the last world has, over all its members; 0 if there was none."""
        return sum(member.replicas for member in self.members)

    # --- joining ---

    def join(self, peer: bytes, join: m.Join, room: int, now_s: float) -> list[Instruction]:
        """Handle a request for a place, perhaps repeated: place the trainer, let it wait, or refuse it.

        Refused are a spare of a run that has ended, a least world larger than `room`, which is how many ranks a world
        may have, and limits other than those of the others. A member that joins with another incarnation ends the world
        that trains. A request that is not refused, but older than the trainer's last, gets no answer. What others are
        to hear, and the fact of a world that begins, are returned too.
        """
        answer = self._answer_without_a_place(join, room, now_s)
        if answer is not None:
            return [Send(peer, answer)]
        # A request that was delayed must not undo a later one.
        if join.serial < self._serials.get(join.member, 0):
            return []
        member = next((known for known in self.members if known.member == join.member), None)
        if member is not None and member.incarnation == join.incarnation and self.stage is WorldStage.TRAINING:
            return [Send(peer, self._placed(join, member))]
        self.limits = (join.least, join.most)
        if member is not None:
            self._leave(member, f"{join.name} joins anew", now_s, back_s=0.0)
        known = self._joiners.get(join.member)
        # A connection speaks for one trainer, so an earlier joiner on it is gone, replaced by this process.
        for other in [other for other, joiner in self._joiners.items() if joiner.peer == peer and other != join.member]:
            del self._joiners[other]
        self._serials[join.member] = join.serial
        self._joiners[join.member] = _Joiner(join, peer, known.since_s if known is not None else now_s, now_s)
        self._decide(room, now_s)
        if join.member in self._joiners:
            self._out.append(Send(peer, self._gathering(join, room, now_s)))
        return self.take_news()

    def _answer_without_a_place(self, join: m.Join, room: int, now_s: float) -> m.NotAttached | None:
        # Only a spare that waited behind this run hears that it ended; another trainer begins a new run.
        if self.stage is WorldStage.ENDED and 0 < join.behind <= self.version:
            return objections.run_ended(join)
        if join.least * join.replicas > room:
            return objections.no_room(join, room)
        others = [joiner for joiner in self._fresh(now_s) if joiner.join.member != join.member]
        is_bound = others or self._awaited_s or self.stage is WorldStage.TRAINING
        if is_bound and (join.least, join.most) != self.limits:
            return objections.other_limits(join, *self.limits)
        return None

    def _placed(self, join: m.Join, member: WorldMember) -> m.Placed:
        return m.Placed(serial=join.serial, version=self.version, rank=self.rank_of(member), world=self.ranks)

    def _gathering(self, join: m.Join, room: int, now_s: float) -> m.Gathering:
        return m.Gathering(
            serial=join.serial,
            reason=self._why_waiting(join, room, now_s),
            behind=self.version if self.stage is WorldStage.TRAINING else 0,
            retry_ms=int(250 * self._timeout_s),
        )

    def _why_waiting(self, join: m.Join, room: int, now_s: float) -> str:
        least, most = self.limits
        if self.stage is WorldStage.TRAINING:
            if self._has_room(join, room):
                return "others are training: this one is let in soon"
            limit = f"at most {most} trainers" if len(self.members) >= most else f"a group of {room} ranks"
            return f"the world is full ({limit}): this one is a spare"
        fresh = len(self._fresh(now_s))
        if fresh < least:
            return f"{fresh} of at least {least} trainers are there"
        if self._awaited_s:
            return f"trainers of the last world have not joined yet: {', '.join(self._awaited())}"
        return f"{fresh} trainers are there, more are waited for, up to {most}"

    # --- attaching ---

    def check(self, attach: m.Attach, now_s: float) -> m.NotAttached | None:
        """Return a refusal unless the trainer has this place in the world that trains, or that has ended its run.

        Otherwise note that it lives, and return None.
        """
        member = self.member_of(attach.incarnation)
        place = (self.version, self.rank_of(member), self.ranks, member.replicas) if member is not None else None
        claimed = (attach.world_version, attach.rank, attach.world, attach.replicas)
        # The version counts, not the rank alone: a trainer of the last world may come back and claim a rank that
        # another has now.
        if self.stage in (WorldStage.NONE, WorldStage.OVER) or place != claimed:
            return objections.world_changed(attach, self.version, self.reason)
        self._heard_s[attach.incarnation] = now_s
        return None

    def begin(self, peer: bytes, attach: m.Attach, cursor: Cursor, now_s: float) -> m.NotAttached | m.Wait | None:
        """Record where a member starts; let it wait until all members have reported the same start.

        That it is a member of the world is left to `check`. Returns None once they have, or if the trainer has no
        cursor or the run has ended. If the starts differ, the world ends at the first time, with a refusal; at the
        second, those that differ from rank 0 are refused, and the others wait.
        """
        self._peers[attach.incarnation] = peer
        if attach.cursor is None or self.stage is WorldStage.ENDED:
            return None
        self._starts[attach.incarnation] = (cursor.epoch, cursor.number)
        # Nobody starts before all have reported: one would train and commit while another still reads the checkpoint.
        missing = [member.name for member in self.members if member.incarnation not in self._starts]
        if missing:
            reason = f"{', '.join(missing)} did not say yet where to start"
            return m.Wait(serial=attach.serial, reason=reason, retry_ms=int(125 * self._timeout_s))
        chief = self._starts[self.members[0].incarnation]
        if all(start == chief for start in self._starts.values()):
            self._disagreed = False
            return None
        return self._disagree(attach, chief, now_s)

    def _disagree(self, attach: m.Attach, chief: tuple[int, int], now_s: float) -> m.NotAttached | m.Wait:
        """End the world at the first disagreement; at the second, refuse those that differ from the chief.

        At the first the sender is refused; at the second, senders that agree with the chief wait. The first may be a
        mere race: a checkpoint was committed after some members had read the one before.
        """
        start = self._starts[attach.incarnation]
        if not self._disagreed:
            self._disagreed = True
            self._end("its members restored different checkpoints", now_s)
            return objections.world_changed(attach, self.version, self.reason)
        if start == chief:
            reason = "others restored another checkpoint, and are refused"
            return m.Wait(serial=attach.serial, reason=reason, retry_ms=int(250 * self._timeout_s))
        return objections.another_start(attach, start, chief)

    # --- while it trains ---

    def hear(self, peer: bytes, incarnation: int, now_s: float) -> m.WorldOver | None:
        """Note that a member lives; return the news that its world is over, if it is and the member is still awaited.

        Return None otherwise: it left for good, the wait for it is over, or the trainer is no member.
        """
        if self.member_of(incarnation) is None:
            return None
        self._peers[incarnation], self._heard_s[incarnation] = peer, now_s
        if self.stage is WorldStage.OVER and incarnation in self._awaited_s:
            return m.WorldOver(version=self.version, reason=self.reason)
        return None

    def leave(self, incarnation: int, room: int, now_s: float) -> list[Instruction]:
        """Handle a trainer that detached or gave up waiting; a member that leaves ends a world that trains.

        Return the instructions that follow, with the places of the next world if it begins now.
        """
        self._joiners = {
            number: joiner for number, joiner in self._joiners.items() if joiner.join.incarnation != incarnation
        }
        member = self.member_of(incarnation)
        if member is not None:
            # One that leaves a world that is over will join the next; one that leaves a world that trains may not.
            back_s = _COMING_BACK * self._timeout_s if incarnation in self._awaited_s else 0.0
            self._leave(member, f"{member.name} left", now_s, back_s=back_s)
            self._decide(room, now_s)
        return self.take_news()

    def _leave(self, member: WorldMember, reason: str, now_s: float, *, back_s: float) -> None:
        """End the member's world, if it trains; wait for the member for at most `back_s` to join again, not if 0."""
        if self.stage is WorldStage.TRAINING:
            self._end(reason, now_s)
        until_s = self._awaited_s.pop(member.incarnation, 0.0)
        if back_s:
            self._awaited_s[member.incarnation] = min(until_s, now_s + back_s)

    def end_run(self) -> list[Instruction]:
        """Mark the run as completed: members may leave one by one, and waiting spares are sent away.

        Return the refusals for the spares. A world that does not train is left as it is.
        """
        if self.stage is WorldStage.TRAINING:
            self.stage = WorldStage.ENDED
            self._out += [Send(joiner.peer, objections.run_ended(joiner.join)) for joiner in self._joiners.values()]
            self._joiners.clear()
        return self.take_news()

    def tick(self, room: int, now_s: float) -> list[Instruction]:
        """Drop silent members and joiners, and begin the next world if it is due; return the instructions.

        A silent member, or a newcomer that has waited for long enough and has room, ends the world that trains.
        """
        # After a restart nobody has been heard yet, so a member's time of silence begins with the first tick
        # (`setdefault`).
        gone_s = now_s - GONE_AFTER * self._timeout_s
        for member in self.members:
            if self._heard_s.setdefault(member.incarnation, now_s) < gone_s:
                self._leave(member, f"{member.name} is gone", now_s, back_s=0.0)
        self._joiners = {number: joiner for number, joiner in self._joiners.items() if joiner.heard_s >= gone_s}
        self._awaited_s = {number: until_s for number, until_s in self._awaited_s.items() if until_s > now_s}
        self._decide(room, now_s)
        return self.take_news()

    def _end(self, reason: str, now_s: float) -> None:
        self.stage, self.reason = WorldStage.OVER, reason
        self.changes += 1
        # The chief may still be committing a checkpoint. The next world waits for all members to leave (or be gone), so
        # that none of them restores an older one meanwhile.
        self._awaited_s = {member.incarnation: now_s + _LEAVING * self._timeout_s for member in self.members}
        over = m.WorldOver(version=self.version, reason=reason)
        self._out += [Send(self._peers[number], over) for number in self._awaited_s if number in self._peers]

    # --- the next world ---

    def _decide(self, room: int, now_s: float) -> None:
        if self.stage is WorldStage.TRAINING:
            # A newcomer waits a little, so that several that start together change the world once.
            due_s = now_s - _NEWCOMER_WAITS * self._timeout_s
            newcomers = [joiner.join for joiner in self._fresh(now_s) if joiner.since_s <= due_s]
            admitted = [join.name for join in newcomers if self._has_room(join, room)]
            if admitted:
                self._end(f"{', '.join(admitted)} joined", now_s)
            return
        chosen = self._choose(room, now_s)
        if self._is_time(chosen, now_s):
            self._name(chosen, now_s)

    def _has_room(self, join: m.Join, room: int) -> bool:
        return len(self.members) < self.limits[1] and self.ranks + join.replicas <= room

    def _fresh(self, now_s: float) -> list[_Joiner]:
        """Return the joiners, if any, that asked within the last heartbeat timeout: others may be gone."""
        return [joiner for joiner in self._joiners.values() if now_s - joiner.heard_s <= self._timeout_s]

    def _awaited(self) -> list[str]:
        """Return the names of the members of the last world that are expected to leave it, or to join again."""
        return [member.name for member in self.members if member.incarnation in self._awaited_s]

    def _choose(self, room: int, now_s: float) -> list[_Joiner]:
        """Return who would be in a world that began now: former members in rank order, then by time of joining.

        Only joiners that asked within the last heartbeat timeout count; those that do not fit into limits or room are
        left out.
        """
        # Former members first, so that the chief stays while it lives: a checkpoint follows the one that its writer
        # read or wrote last.
        places = {member.member: place for place, member in enumerate(self.members)}

        def order(joiner: _Joiner) -> tuple[int, float, int]:
            return places.get(joiner.join.member, len(places)), joiner.since_s, joiner.join.member

        chosen: list[_Joiner] = []
        ranks = 0
        for joiner in sorted(self._fresh(now_s), key=order):
            if len(chosen) < self.limits[1] and ranks + joiner.join.replicas <= room:
                chosen.append(joiner)
                ranks += joiner.join.replicas
        return chosen

    def _is_time(self, chosen: list[_Joiner], now_s: float) -> bool:
        if len(chosen) < self.limits[0]:
            self._enough_s = None
            return False
        if self._enough_s is None:
            self._enough_s = now_s
        # One that may still commit a checkpoint: a member that restored the one before would train its steps again.
        if any(until_s > now_s for until_s in self._awaited_s.values()):
            return False
        # The rest of a world goes on at once; only a world of strangers waits for more to come.
        former = {member.member for member in self.members}
        if self.stage is WorldStage.OVER and any(joiner.join.member in former for joiner in chosen):
            return True
        return len(chosen) == self.limits[1] or now_s - self._enough_s >= _SETTLING * self._timeout_s

    def _name(self, chosen: list[_Joiner], now_s: float) -> None:
        joins = [joiner.join for joiner in chosen]
        fact = WorldNamed(
            self._stream,
            self.version + 1,
            *self.limits,
            tuple((join.member, join.incarnation, join.name, join.replicas) for join in joins),
        )
        # The fact comes before the answers: a member must never have a place that a restarted coordinator does not
        # know.
        self.recover(fact)
        self._out.append(Keep(fact))
        self._heard_s = {join.incarnation: now_s for join in joins}
        for joiner, member in zip(chosen, self.members, strict=True):
            del self._joiners[member.member]
            self._out.append(Send(joiner.peer, self._placed(joiner.join, member)))
        present = self._joiners.keys() | {join.member for join in joins}
        self._serials = {member: self._serials[member] for member in present}

    def recover(self, fact: WorldNamed) -> None:
        """Begin the world of this fact, new or from the journal; forget starts and heartbeats of the one before."""
        self.version, self.limits = fact.version, (fact.least, fact.most)
        self.members = tuple(WorldMember(*member) for member in fact.members)
        self.stage, self._enough_s = WorldStage.TRAINING, None
        # What was reported in the world before counts for nothing in this one. After a restart nobody has been heard.
        self._awaited_s.clear()
        self._starts.clear()
        self._peers.clear()
        self._heard_s.clear()

    def take_news(self) -> list[Instruction]:
        """Return the instructions that have accumulated, and clear them."""
        out, self._out = self._out, []
        return out

    # --- for people ---

    def report(self, now_s: float) -> dict[str, Any]:
        """Return stage, version, limits, members while it trains, who waits or leaves, why it last ended, changes."""
        return {
            "stage": self.stage.value,
            "version": self.version,
            "least": self.limits[0],
            "most": self.limits[1],
            "members": [member.name for member in self.members] if self.stage is WorldStage.TRAINING else [],
            "waiting": [joiner.join.name for joiner in self._fresh(now_s)],
            "leaving": self._awaited(),
            "reason": self.reason,
            "changes": self.changes,
        }
