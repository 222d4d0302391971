"""Members of an elastic run at a coordinator's state, on a clock of their own: they join, train and leave as real ones
do, commit what they trained on in one chain, and may be killed or held up at any point.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from loader_server.coordinator.events import Keep, Received, Send, Ticked, WorldNamed
from shared.wire import messages as m
from shared.wire.codec import decode, encode
from tests.support.coordinator import TIMEOUT_S, attach, coordinator, progress

if TYPE_CHECKING:
    from loader_server.coordinator.state import CoordinatorState
    from tests.support.coordinator import View

__all__ = ["BEAT_S", "Member", "Run", "join"]

BEAT_S = TIMEOUT_S / 4


def join(member: int, serial: int = 1, *, least: int = 2, most: int = 3, **other) -> m.Join:
    fields = {
        "job": "digits", "stream": "train", "incarnation": 1000 * member + serial, "name": f"host:{member}",
        "replicas": 1, "behind": 0,
    }  # fmt: skip
    return m.Join(member=member, serial=serial, least=least, most=most, **{**fields, **other})


@dataclass
class Member:
    """A process; `told` is what it was told last about its world."""

    number: int
    serial: int = 0
    attaches: int = 0
    #: Its place, the cursor that it restored, and the one where it stands once it has begun.
    placed: m.Placed | None = None
    restored: tuple[int, int] | None = None
    begun: tuple[int, int] | None = None
    base: int = 0
    is_over: bool = False
    #: The world that it waits behind.
    behind: int = 0

    @property
    def incarnation(self) -> int:
        return 1000 * self.number + self.serial


@dataclass
class Run:
    """The members, and the coordinator, which can be killed: it comes back with what it kept."""

    least: int = 2
    most: int = 3
    view: View | None = None
    group: int = 0
    now_s: float = 0.0
    members: dict[int, Member] = field(default_factory=dict)
    #: Committed cursors, each with the version of the world that did.
    chain: list[tuple[tuple[int, int], int]] = field(default_factory=lambda: [((0, 0), 0)])
    worlds: dict[int, WorldNamed] = field(default_factory=dict)
    #: By version: where its members began.
    began: dict[int, set] = field(default_factory=lambda: defaultdict(set))
    refused: list[m.NotAttached] = field(default_factory=list)
    facts: dict[object, object] = field(default_factory=dict)
    started: int = 0
    state: CoordinatorState = field(init=False)

    def __post_init__(self) -> None:
        self.state = coordinator(self.view, group=self.group)

    # --- the coordinator ---

    def say(self, message: m.Message) -> list[m.Message]:
        """A member says it; what it is answered."""
        peer = b"%d" % (message.incarnation // 1000)
        orders = self.state.handle(Received(peer, message), self.now_s)
        self._take(orders)
        return [order.message for order in orders if isinstance(order, Send) and order.peer == peer]

    def tick(self, passed_s: float = BEAT_S) -> None:
        self.now_s += passed_s
        self._take(self.state.handle(Ticked(), self.now_s))

    def _take(self, orders: list) -> None:
        for order in orders:
            if isinstance(order, Keep):
                fact = order.fact
                self.facts.pop(type(fact), None)
                self.facts[type(fact)] = fact
                if isinstance(fact, WorldNamed):
                    assert fact.version not in self.worlds
                    assert not self.worlds or fact.version > max(self.worlds)
                    assert self.least <= len(fact.members) <= self.most
                    self.worlds[fact.version] = fact
            elif isinstance(order, Send):
                assert decode(encode(order.message)) == order.message
                member = self.members.get(int(order.peer))
                if member is not None:
                    self._hear(member, order.message)

    def restart_coordinator(self) -> None:
        """Killed, and started again with its journal."""
        self.state = coordinator(self.view, group=self.group)
        for fact in self.facts.values():
            self.state.recover(fact)

    # --- a member ---

    def start(self) -> int:
        """A new process; its number."""
        self.started += 1
        member = self.members[self.started] = Member(self.started)
        self._join_anew(member)
        return member.number

    def kill(self, number: int) -> None:
        """It says nothing any more."""
        del self.members[number]

    def _join_anew(self, member: Member) -> None:
        member.serial += 1
        member.attaches, member.is_over, member.behind = 0, False, 0
        member.placed = member.restored = member.begun = None
        self.say(join(member.number, member.serial, least=self.least, most=self.most))

    def beat(self, number: int) -> None:
        """It says whatever it has to say next."""
        member = self.members[number]
        if member.is_over:
            self.leave(number)
        elif member.placed is None:
            self.say(join(number, member.serial, least=self.least, most=self.most, behind=member.behind))
        elif member.begun is None:
            if member.restored is None:
                member.restored, member.base = self.chain[-1][0], len(self.chain)
            self.say(self._attach(member))
        else:
            epoch, at = member.begun
            self.say(progress(member.placed.rank, epoch, at, incarnation=member.incarnation))

    def _attach(self, member: Member) -> m.Attach:
        member.attaches += 1
        placed = member.placed
        return attach(
            placed.rank, placed.world, at=member.restored, group=self.most, incarnation=member.incarnation,
            serial=1, world_version=placed.version, name=f"host:{member.number}",
        )  # fmt: skip

    def train(self, number: int) -> None:
        """A step, if it may, and a commit by the chief."""
        member = self.members[number]
        if member.begun is not None:
            member.begun = (0, member.begun[1] + member.placed.world)
            self.commit(number)

    def commit(self, number: int) -> None:
        member = self.members[number]
        if member.placed.rank == 0 and member.base == len(self.chain):
            self.chain.append((member.begun, member.placed.version))
            member.base += 1

    def leave(self, number: int) -> None:
        """Out of a world that is over, and to the next."""
        member = self.members[number]
        if member.placed is not None:
            self.say(m.Detach(stream="train", rank=member.placed.rank, incarnation=member.incarnation))
        self._join_anew(member)

    def _hear(self, member: Member, message: m.Message) -> None:
        if isinstance(message, m.Placed) and message.serial == member.serial and member.placed is None:
            assert message.rank < message.world
            member.placed = message
        elif isinstance(message, m.Gathering) and message.serial == member.serial:
            member.behind = message.behind
        elif isinstance(message, m.WorldOver):
            member.is_over |= member.placed is not None and message.version == member.placed.version
        elif isinstance(message, m.NotAttached) and message.code == "changed":
            member.is_over = member.is_over or member.placed is not None
        elif isinstance(message, m.NotAttached):
            self.refused.append(message)
        elif isinstance(message, m.Attached) and member.placed is not None and member.begun is None:
            member.begun = (message.cursor.epoch, message.cursor.number)
            assert member.begun == member.restored
            self.began[member.placed.version].add(member.begun)
            assert len(self.began[member.placed.version]) == 1
        elif isinstance(message, m.Refused) and message.code == "unknown":
            self.say(self._attach(member))

    def go_on(self, timeouts: float, *, but: frozenset[int] = frozenset()) -> None:
        """Time passes, and all that are alive say what they have to."""
        for _ in range(int(4 * timeouts)):
            for number in list(self.members):
                if number not in but:
                    self.beat(number)
            self.tick()

    def training(self) -> list[int]:
        """Who trains in the newest world, in the order of ranks."""
        newest = max(self.worlds, default=0)
        there = [
            member for member in self.members.values()
            if member.begun is not None and not member.is_over and member.placed.version == newest
        ]  # fmt: skip
        return [member.number for member in sorted(there, key=lambda member: member.placed.rank)]
